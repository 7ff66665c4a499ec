#include "compiler/plan/units.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "compiler/plan/error.h"
#include "compiler/plan/layer_cost.h"
#include "compiler/plan/memory_limit.h"
#include "compiler/plan/spec.h"
#include "compiler/plan/text.h"

namespace contraflow {
namespace {

/// Largest first.
constexpr Unit kOfTime[] = {Unit::kSeconds, Unit::kMilliseconds, Unit::kMicroseconds,
                            Unit::kNanoseconds};

/// A number, and what stands after it.
struct Figure {
  double value = 0;
  std::string_view unit;
};

std::optional<Figure> ReadFigure(std::string_view text) {
  Figure figure;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, figure.value);
  if (error != std::errc() || !std::isfinite(figure.value)) return std::nullopt;
  figure.unit = std::string_view(at, static_cast<size_t>(end - at));
  if (figure.unit.starts_with(' ') && figure.unit.size() > 1) figure.unit.remove_prefix(1);
  return figure;
}

std::string Quoted(std::string_view text) { return "\"" + std::string(text.substr(0, 40)) + "\""; }

Time RoundedTo(Time step, Time ticks) {
  const Time half = ticks < 0 ? -step / 2 : step / 2;
  return (ticks + half) / step * step;
}

/// Worth of the last digit, if the time has four.
Time FourthDigit(Time ticks) {
  Time digit = 1;
  while (std::abs(ticks) / digit >= 10'000) digit *= 10;
  return digit;
}

/// The same with five digits, in the abstract unit: at most a whole unit.
Time FifthDigit(Time ticks) { return std::min(FourthDigit(ticks / 10), TicksPerUnit(Unit::kUnit)); }

/// A time in the abstract unit to five digits; whole units stay.
std::string FormatAbstract(Time ticks) {
  return FormatTime(RoundedTo(FifthDigit(ticks), ticks), Unit::kUnit);
}

}  // namespace

GivenTime ParseGivenTime(std::string_view text) {
  const auto fail = [&](const std::string& why) -> Error {
    return Error("must be a time such as 6.2ms, or a number, " + why + ", is " + Quoted(text));
  };
  if (text.find(',') != std::string_view::npos) {
    throw Error(
        "must be one time, such as 6.2ms; where stages differ, give a cost file with "
        "\"stages\"; is " +
        Quoted(text));
  }
  const std::optional<Figure> figure = ReadFigure(text);
  if (!figure) throw fail("which is in the unit of the costs");
  if (figure->unit.empty()) return {figure->value};
  for (const Unit unit : kOfTime) {
    if (figure->unit == Name(unit)) return {figure->value, unit};
  }
  throw fail("and units are ns, us, ms and s");
}

Time ToTicks(const GivenTime& given, Unit unit, const std::string& place) {
  if (given.unit && unit == Unit::kUnit) {
    throw Error(place + ": the costs are in an abstract unit, of which no " +
                std::string(Name(*given.unit)) + " are known; give a number alone");
  }
  return ToTicks(given.value, given.unit.value_or(unit), place);
}

bool LacksUnit(const std::string& text, const CostModel& costs) {
  if (text.empty() || text.size() > 6 || text.find_first_not_of("0123456789.") < text.size()) {
    return false;
  }
  int64_t largest = MemoryLimit(costs).largest();
  for (const LayerCost& layer : costs.layers) largest = std::max(largest, layer.activation_bytes);
  if (text.find('.') != std::string::npos) return true;
  return text != "0" && std::stoll(text) <= largest / 1000;
}

double ParseBandwidth(const std::string& text, Unit unit) {
  constexpr std::string_view kPerSecond = "/s";
  // Without its B, "25G/s" is of bits elsewhere.
  if (!text.ends_with(kPerSecond) || text.find_last_of("KMGT") + 3 == text.size()) {
    throw Error("must be a bandwidth such as 25GB/s, is " + Quoted(text));
  }
  if (unit == Unit::kUnit) {
    throw Error(
        "the costs are in an abstract unit; give them in ms, or the link as the time of one "
        "copy, such as 0.5; is " +
        Quoted(text));
  }
  const std::string bytes = text.substr(0, text.size() - kPerSecond.size());
  // In this order: both are whole numbers, and the quotient mostly is.
  return static_cast<double>(ParseBytes(bytes, "a second")) *
         static_cast<double>(TicksPerUnit(unit)) / 1e9;
}

Unit FittingUnit(Time ticks, Unit unit) {
  if (unit == Unit::kUnit) return unit;
  for (const Unit larger : kOfTime) {
    if (std::abs(ticks) >= TicksPerUnit(larger)) return larger;
  }
  return Unit::kNanoseconds;
}

std::string FormatFigure(Time ticks, Unit unit) {
  return unit == Unit::kUnit ? FormatAbstract(ticks) : FormatWithUnit(ticks, unit);
}

std::string FormatWithUnit(Time ticks, Unit unit) {
  if (unit == Unit::kUnit) {
    // "unit" is a word and not a symbol.
    const std::string figure = FormatAbstract(ticks);
    return figure + (figure == "1" ? " unit" : " units");
  }
  if (ticks != 0) {
    ticks = RoundedTo(FourthDigit(ticks), ticks);
    unit = FittingUnit(ticks, unit);
  }
  return FormatTime(ticks, unit) + " " + std::string(Name(unit));
}

TimeScale::TimeScale(Time largest, Unit unit)
    : unit_(unit), shown_(unit), abstract_step_(FifthDigit(largest)) {
  if (unit == Unit::kUnit || largest == 0) return;
  const Time rounded = RoundedTo(FourthDigit(largest), largest);
  const Time digit = FourthDigit(rounded);
  shown_ = FittingUnit(rounded, unit);
  for (Time step = TicksPerUnit(shown_); step > digit; step /= 10) ++digits_;
}

std::string TimeScale::Of(Time ticks) const {
  if (unit_ == Unit::kUnit) {
    const Time rounded = RoundedTo(abstract_step_, ticks);
    return rounded == 0 ? FormatAbstract(ticks) : FormatTime(rounded, unit_);
  }
  if (ticks == 0) return "0 " + std::string(Name(shown_));
  Time step = TicksPerUnit(shown_);
  for (int k = 0; k < digits_; ++k) step /= 10;
  const Time rounded = RoundedTo(step, ticks);
  if (rounded == 0 && ticks != 0) return FormatWithUnit(ticks, unit_);
  std::string text = FormatTime(rounded, shown_);
  const size_t point = text.find('.');
  if (digits_ > 0) {
    if (point == std::string::npos) text += ".";
    const size_t behind = point == std::string::npos ? 0 : text.size() - point - 1;
    text.append(static_cast<size_t>(digits_) - behind, '0');
  }
  return text + " " + std::string(Name(shown_));
}

}  // namespace contraflow
