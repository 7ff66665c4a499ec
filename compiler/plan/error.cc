#include "compiler/plan/error.h"

#include <algorithm>
#include <numeric>

namespace contraflow {
namespace {

/// Levenshtein distance: insertions, deletions and replacements that turn `a` into `b`.
int EditDistance(std::string_view a, std::string_view b) {
  std::vector<int> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

}  // namespace

void AssertFailed(const char* condition, const char* file, int line) {
  // The build folder is nobody's business: only the last component of the path is shown.
  std::string name(file);
  name = name.substr(name.find_last_of('/') + 1);
  throw InternalError("internal error: " + name + ":" + std::to_string(line) +
                      ": assertion failed: " + condition +
                      "; this is a bug in contraflow, please report it");
}

std::string DidYouMean(std::string_view name, const std::vector<std::string_view>& known) {
  std::string_view best;
  int best_distance = 4;  // Beyond three edits a suggestion is noise.
  for (const std::string_view candidate : known) {
    const int distance = EditDistance(name, candidate);
    if (distance < best_distance && distance < std::ssize(candidate) &&
        distance < std::ssize(name)) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best.empty() ? "" : " (did you mean \"" + std::string(best) + "\"?)";
}

}  // namespace contraflow
