#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/plan/units.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace contraflow {

/// Has --help as wide as the terminal. Commands that are added later have it, too.
void UseHelpFormatter(CLI::App* app);

/// An option that takes a whole number, `least` or more. Text that is none, or does not fit the
/// field, is a usage error.
CLI::Option* AddInteger(CLI::App* app, const std::string& name, int* field, const std::string& noun,
                        const std::string& help, int least = std::numeric_limits<int>::min());
CLI::Option* AddInteger(CLI::App* app, const std::string& name, std::optional<int64_t>* field,
                        const std::string& noun, const std::string& help);

/// An option that takes a finite decimal number, also as in "10%"; anything else is a usage error.
CLI::Option* AddNumber(CLI::App* app, const std::string& name, std::optional<double>* field,
                       const std::string& noun, const std::string& help);
CLI::Option* AddNumber(CLI::App* app, const std::string& name, double* field,
                       const std::string& noun, const std::string& help);

/// An option that takes a time: "6.2ms", or a number in the unit of the costs.
CLI::Option* AddTime(CLI::App* app, const std::string& name, std::optional<GivenTime>* field,
                     const std::string& help);

/// An option that takes a span of the clock: "500ms", "2m", or a number of seconds.
CLI::Option* AddSeconds(CLI::App* app, const std::string& name, double* field,
                        const std::string& help);

/// "500ms", "1s" or "2m" in nanoseconds. Throws UsageError, about that flag.
int64_t ParseDuration(const std::string& flag, const std::string& text);

/// An option that takes non-empty text; catches unset shell variables.
CLI::Option* AddText(CLI::App* app, const std::string& name, std::string* field,
                     const std::string& noun, const std::string& help);

/// An option that takes one of `known`, a list such as "text|grid"; anything else is a usage error.
CLI::Option* AddChoice(CLI::App* app, const std::string& name, std::string* field,
                       const std::string& known, const std::string& help);

/// The positional argument PLAN, `field` gets the path.
CLI::Option* AddPlan(CLI::App* app, std::string* field, const std::string& name = "PLAN");

/// Throws UsageError unless --capacity is a share that experts can take.
void CheckCapacity(double capacity);

/// A file and its name in errors: "the plan", "--trace".
struct NamedFile {
  std::string what, path;
};
/// Throws Error if the output is one of the inputs. Empty paths are none.
void RefuseOverwrite(const NamedFile& output, std::initializer_list<NamedFile> inputs);

/// An option that takes any number of texts.
CLI::Option* AddTexts(CLI::App* app, const std::string& name, std::vector<std::string>* field,
                      const std::string& help);

/// Makes an option one that must be given.
void Require(CLI::Option* option);

CLI::Option* AddFlag(CLI::App* app, const std::string& name, bool* field, const std::string& help);

/// -q, which sets the verbosity; with `field` also that, for commands that then print less.
void AddQuiet(CLI::App* app, bool* field = nullptr);
/// -v, which does too, with or without -q of the same command.
void AddVerbose(CLI::App* app, const std::string& help, bool* field = nullptr);
/// The help of commands for which it does no more.
inline constexpr char kSayProgress[] = "show progress even if stderr is not a terminal";

/// --json
CLI::Option* AddJson(CLI::App* app, bool* field);

/// Reads the words and runs the callback of their command, if the app has commands. False if they
/// ask for help or the version, which was printed. Throws UsageError, with the nearest known name,
/// if they cannot be read.
bool Parse(CLI::App* app, const std::vector<std::string>& words);

/// Like Parse, for options alone, such as "--ranks=4", that come from no command line.
void ParseOptions(const std::vector<std::string>& words,
                  const std::function<void(CLI::App* app)>& add);

/// The main of a program without commands: `add` adds its options, `run` runs once they are read.
int RunTool(const std::string& program, const std::string& description, int argc, char** argv,
            const std::function<void(CLI::App* app)>& add, const std::function<int()>& run);

}  // namespace contraflow
