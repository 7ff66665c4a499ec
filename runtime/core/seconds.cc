#include "runtime/core/seconds.h"

#include <algorithm>
#include <cstdio>

namespace contraflow {

std::string SecondsText(double seconds) {
  char text[64];
  std::snprintf(text, sizeof text, "%.1f s", std::max(0.0, seconds));
  return text;
}

std::string SecondsText(std::chrono::milliseconds time) {
  char text[64];
  std::snprintf(text, sizeof text, "%.15g s", static_cast<double>(time.count()) / 1000);
  return text;
}

}  // namespace contraflow
