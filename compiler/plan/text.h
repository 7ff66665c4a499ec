#pragma once

#include <cstdint>
#include <string>

#include "compiler/plan/cost.h"

namespace contraflow {

/// "6.67 %"; two digits, so that figures compare at a glance. What is above 0 never reads as 0.
std::string FormatPercent(double ratio);

/// "1,234,567"
std::string FormatCount(int64_t count);

/// In the unit that fits, to four digits: "4.02 s", "326 ms". In the abstract unit all of it, "66
/// units".
std::string FormatWithUnit(Time ticks, Unit unit);

/// For people, to three digits: "512 bytes", "22.3 GB".
std::string FormatBytes(int64_t bytes);

}  // namespace contraflow
