#include "compiler/plan/error.h"

#include <algorithm>
#include <cctype>
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

bool IsDigit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

std::string Digits(std::string_view name) {
  std::string digits;
  std::copy_if(name.begin(), name.end(), std::back_inserter(digits), IsDigit);
  return digits;
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
  const bool begun = name_.size() >= kClear && known.size() > name_.size() &&
                     known.starts_with(name_) && !IsDigit(known[name_.size()]);
  // Other digits are another version, size or speed, and no slip of the hand.
  if (!begun && Digits(name_) != Digits(known)) return;
  // All options agree in their dashes.
  const size_t dashes = name_.starts_with("--") && known.starts_with("--") ? 2 : 0;
  const std::string_view name = name_.substr(dashes), other = known.substr(dashes);
  const int distance = begun ? 0 : EditDistance(name, other);
  if (distance >= distance_ || distance >= std::ssize(other) || distance >= std::ssize(name))
    return;
  // Half of it or more has to be there.
  if (2 * distance > std::max(std::ssize(other), std::ssize(name))) return;
  best_ = known;
  distance_ = distance;
}

std::string NearestName::Hint() const {
  return best_.empty() ? "" : " (did you mean \"" + std::string(best_) + "\"?)";
}

}  // namespace contraflow
