#pragma once

#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/plan/error.h"

namespace CLI {
class App;
}  // namespace CLI

namespace contraflow {

/// Exit codes of every tool (the public contract). 128 + N, as shells show it, is the end by signal
/// N.
inline constexpr int kExitFine = 0;
inline constexpr int kExitInput = 1;  ///< the input is wrong, or a check did not hold
inline constexpr int kExitUsage = 2;  ///< the command line is wrong
inline constexpr int kExitBug = 70;   ///< our own bug
inline constexpr int kExitLost = 75;  ///< a process of the job was lost or hung; --resume goes on
inline constexpr int kExitStopped =
    76;  ///< the training was asked to stop, and did so after a step

/// The command line is wrong: an option is unknown or missing, has a value that it does not take,
/// or does not go with another. A value that it takes but that the plan, the costs, the schedule or
/// the machine do not go with is an Error.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Texts of errors name an option by its field, between backticks: `memory_limit`. They become the
// words of the user once, where they are shown. Other words between backticks stay as they are.
/// Returns the text in the words of the command line: --memory-limit.
std::string WithFlags(std::string_view text);
/// Returns the text in the words of Python: memory_limit.
std::string WithKeywords(std::string_view text);
/// Takes the options of a program, and of its commands, for those that texts name. The options of
/// compile and compare are known without.
void KnowOptions(const CLI::App& app);
/// Returns the field of a flag as texts name it: "`memory_limit`" of "--memory-limit".
std::string FieldOf(std::string_view flag);

/// Returns the result of `read` for the value of an option. An Error of it is a UsageError.
template <typename Read>
auto ReadOption(Read read) {
  try {
    return read();
  } catch (const Error& error) {
    throw UsageError(error.what());
  }
}

/// Message of a tool about an exception that ends it, and its exit code.
struct ExitError {
  std::string text;
  int code = kExitBug;
};
ExitError ExitErrorOf(const std::exception_ptr& error);

/// Runs `body` and returns its exit code. No exception leaves it: each becomes one line
/// "PROGRAM: error: ..." on stderr and an exit code.
int RunMain(std::string_view program, const std::function<int()>& body);

/// Like the overload above, as all of a program's main: `body` gets the words of the command line.
int RunMain(std::string_view program, int argc, char** argv,
            const std::function<int(const std::vector<std::string>& words)>& body);

/// Prints an error as RunMain does, removes half-written files, and ends the process with the same
/// exit code, without a destructor. For errors after which nothing can be cleaned up.
[[noreturn]] void EndAtOnce(std::string_view program, const std::exception_ptr& error);

}  // namespace contraflow
