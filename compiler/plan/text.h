#pragma once

#include <cstdint>
#include <string>

#include "compiler/plan/cost.h"

namespace contraflow {

/// "6.67 %"; two digits, so that figures compare at a glance. What is above 0 never reads as 0.
std::string FormatPercent(double ratio);

/// "1,234,567"
std::string FormatCount(int64_t count);

/// "66 us"; "66 units" in the abstract unit.
std::string FormatWithUnit(Time ticks, Unit unit);

/// For people, to three digits: "512 bytes", "22.3 GB".
std::string FormatBytes(int64_t bytes);

}  // namespace contraflow
