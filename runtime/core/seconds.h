#pragma once

#include <chrono>
#include <string>

namespace contraflow {

/// A time that was measured, with one decimal: `0.3 s`.
std::string SecondsText(double seconds);
/// One that was set, as it is: `60 s`, `0.25 s`.
std::string SecondsText(std::chrono::milliseconds time);

}  // namespace contraflow
