#pragma once

#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

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

/// What CF_ASSERT calls: throws InternalError with the condition, the file's name and the line.
[[noreturn]] void AssertFailed(const char* condition, const char* file, int line);

/// The known name nearest to `name`, by the letters to insert, delete or replace, as
/// ` (did you mean "x"?)`; "" if none is within three such edits.
std::string DidYouMean(std::string_view name, const std::vector<std::string_view>& known);
/// The same of any list of names.
template <typename Names>
std::string DidYouMean(std::string_view name, const Names& known) {
  return DidYouMean(name, std::vector<std::string_view>(std::begin(known), std::end(known)));
}

}  // namespace contraflow

/// Checks our own invariants, in release builds too; never reachable from user input.
#define CF_ASSERT(condition) \
  ((condition) ? void() : ::contraflow::AssertFailed(#condition, __FILE__, __LINE__))
