#include <algorithm>
#include <array>
#include <cstdio>

#include "compiler/files/json.h"
#include "tools/profile/profile.h"
#include "tools/report/text.h"

namespace contraflow {
namespace {

constexpr size_t kMostUnmapped = 10;

/// Microseconds with as many digits as are worth reading.
std::string Microseconds(double us) {
  std::array<char, 32> buffer{};
  std::snprintf(buffer.data(), buffer.size(), us < 100 ? "%.2f" : "%.1f", us);
  return buffer.data();
}

}  // namespace

std::string ProfileText(const ProfiledCosts& profile) {
  Table table{{"what", ">stage", ">samples", ">warm-up", ">quartile", ">median us", ">quartile"},
              {}};
  for (const ProfiledRow& row : profile.rows) {
    table.rows.push_back({row.what, row.stage < 0 ? "every" : std::to_string(row.stage),
                          std::to_string(row.samples), std::to_string(row.warmup),
                          Microseconds(row.low), Microseconds(row.median), Microseconds(row.high)});
  }
  std::string text = FormatTable(table);
  for (const std::string& note : profile.notes) text += "note: " + note + "\n";
  if (profile.unmapped.empty()) return text;
  std::vector<std::pair<int64_t, std::string>> names;
  for (const auto& [name, count] : profile.unmapped) names.emplace_back(-count, name);
  std::sort(names.begin(), names.end());
  text += "not mapped:";
  for (size_t i = 0; i < std::min(names.size(), kMostUnmapped); ++i) {
    text +=
        (i == 0 ? " " : ", ") + Excerpt(names[i].second) + " x" + std::to_string(-names[i].first);
  }
  if (names.size() > kMostUnmapped) {
    text += " and " + std::to_string(names.size() - kMostUnmapped) + " other names";
  }
  return text + "\n";
}

}  // namespace contraflow
