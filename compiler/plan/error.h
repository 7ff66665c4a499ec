#pragma once

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace contraflow {

/// The input is wrong: a spec, cost file, plan or environment. Tools print what() and exit 1.
/// The message names the place (file, JSON path or line), what is wrong there and what would be
/// right.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Our own bug. Tools print what() and exit 70.
struct InternalError : std::logic_error {
  using std::logic_error::logic_error;
};

[[noreturn]] void AssertFailed(const char* condition, const char* file, int line);

/// The known name nearest to `name` as ` (did you mean "x"?)`, or "" if none is close.
template <typename Names>
std::string DidYouMean(const std::string& name, const Names& known);

/// Levenshtein distance: insertions, deletions and replacements that turn `a` into `b`.
int EditDistance(const std::string& a, const std::string& b);

template <typename Names>
std::string DidYouMean(const std::string& name, const Names& known) {
  std::string best;
  int best_distance = 4;  // Beyond three edits a suggestion is noise.
  for (const auto& candidate : known) {
    std::string text(candidate);
    const int distance = EditDistance(name, text);
    if (distance < best_distance &&
        distance < static_cast<int>(std::min(text.size(), name.size()))) {
      best = std::move(text);
      best_distance = distance;
    }
  }
  return best.empty() ? "" : " (did you mean \"" + best + "\"?)";
}

}  // namespace contraflow

/// Checks our own invariants, in release builds too; never reachable from user input.
#define CF_ASSERT(condition) \
  ((condition) ? void() : ::contraflow::AssertFailed(#condition, __FILE__, __LINE__))
