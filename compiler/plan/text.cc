#include "compiler/plan/text.h"

#include <cstdio>

namespace contraflow {

std::string FormatPercent(double ratio) {
  // What is not nothing does not read so: a gap of nothing is a proof.
  if (ratio > 0 && ratio < 0.00005) return "<0.01 %";
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "%.2f %%", 100 * ratio);
  return buffer;
}

std::string FormatCount(int64_t count) {
  std::string text = std::to_string(count);
  const int first = count < 0 ? 1 : 0;
  for (int at = static_cast<int>(text.size()) - 3; at > first; at -= 3) {
    text.insert(static_cast<size_t>(at), ",");
  }
  return text;
}

std::string FormatBytes(int64_t bytes) {
  constexpr const char* kUnits[] = {"bytes", "kB", "MB", "GB", "TB", "PB", "EB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  // What would be rounded to 1000 is one of the next.
  while (value >= 999.5) value /= 1000, ++unit;
  char buffer[64];
  const int digits = unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  std::snprintf(buffer, sizeof buffer, "%.*f %s", digits, value, kUnits[unit]);
  return buffer;
}

}  // namespace contraflow
