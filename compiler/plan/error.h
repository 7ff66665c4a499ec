#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace contraflow {

/// The input is wrong: a spec, cost file, plan or environment. Tools print what() and exit 1.
/// The message names the place (file, JSON path or line, or a field of a Spec between backticks,
/// `memory_limit`), what is wrong there and what would be right.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Our own bug. Tools print what() and exit 70.
struct InternalError : std::logic_error {
  using std::logic_error::logic_error;
};

/// Called by CF_ASSERT: throws InternalError with the condition, the file's name and the line.
[[noreturn]] void AssertFailed(const char* condition, const char* file, int line);

/// Looks for the known name nearest to another: one that begins with it, else by the letters to
/// insert, delete or replace.
class NearestName {
 public:
  explicit NearestName(std::string_view name) : name_(name) {}

  void Try(std::string_view known);
  /// ` (did you mean "x"?)`; "" if none is within three such edits.
  std::string Hint() const;

 private:
  std::string_view name_, best_;
  int distance_ = 4;
};

/// The hint for a name that is none of the known ones, any list of texts.
template <typename Names>
std::string DidYouMean(std::string_view name, const Names& known) {
  NearestName nearest(name);
  for (const auto& candidate : known) nearest.Try(candidate);
  return nearest.Hint();
}

}  // namespace contraflow

/// Checks our own invariants, in release builds too; never reachable from user input.
#define CF_ASSERT(condition) \
  ((condition) ? void() : ::contraflow::AssertFailed(#condition, __FILE__, __LINE__))
