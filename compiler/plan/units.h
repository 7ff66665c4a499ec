#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "compiler/plan/cost.h"

namespace contraflow {

/// A time as a user gives it: in a unit of its own or, without, in that of the costs.
struct GivenTime {
  GivenTime(double number = 0, std::optional<Unit> its_unit = std::nullopt)
      : value(number), unit(its_unit) {}

  double value;
  std::optional<Unit> unit;  ///< never kUnit
};

/// Reads "6.2ms", "6.2 ms" or "6.2". Throws Error "must be a time such as ..".
GivenTime ParseGivenTime(std::string_view text);

/// In ticks of costs in `unit`. Throws Error as the other ToTicks does, and for a unit of time
/// where the costs are in the abstract one.
Time ToTicks(const GivenTime& given, Unit unit, const std::string& place);

/// True for a short number, "0.6" or "80", that cannot be meant as bytes: it has a point, or an
/// activation of these costs has a thousand times as many.
bool LacksUnit(const std::string& text, const CostModel& costs);

/// Reads "25GB/s" as bytes per unit of time. Throws Error, also where that is the abstract one.
double ParseBandwidth(const std::string& text, Unit unit);

/// Like FormatWithUnit, but of the abstract unit the number alone, for where that is said
/// elsewhere.
std::string FormatFigure(Time ticks, Unit unit);

/// The largest unit of which a time of costs in `unit` is one or more; the abstract one fits all.
Unit FittingUnit(Time ticks, Unit unit);

/// The times of one table: all in the unit that fits the largest, with as many digits after the
/// point: "4.169 s", "0.326 s". Times in the abstract unit are numbers alone, to the fifth digit
/// of the largest.
class TimeScale {
 public:
  TimeScale(Time largest, Unit unit);
  std::string Of(Time ticks) const;

 private:
  Unit unit_;           // of the costs
  Unit shown_;          // fits
  int digits_ = 0;      // after the point
  Time abstract_step_;  // worth of the last digit in the abstract unit
};

}  // namespace contraflow
