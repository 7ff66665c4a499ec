#include "compiler/plan/error.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <vector>

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

void NearestName::Try(std::string_view known) {
  // "--out" is many edits away from "--output", and yet it is clear what is meant.
  constexpr size_t kClear = 4;
  const bool begun = name_.size() >= kClear && known.starts_with(name_);
  const int distance = begun ? 0 : EditDistance(name_, known);
  if (distance >= distance_ || distance >= std::ssize(known) || distance >= std::ssize(name_))
    return;
  // Half of it or more has to be there.
  if (2 * distance > std::max(std::ssize(known), std::ssize(name_))) return;
  best_ = known;
  distance_ = distance;
}

std::string NearestName::Hint() const {
  return best_.empty() ? "" : " (did you mean \"" + std::string(best_) + "\"?)";
}

}  // namespace contraflow
