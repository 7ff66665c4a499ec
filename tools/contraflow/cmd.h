#pragma once

#include <functional>
#include <string_view>

namespace CLI {
class App;
}

namespace contraflow {

/// One command: a row of the table in main.cc, one file <name>.cc each.
struct Command {
  std::string_view name;
  std::string_view summary;
  std::string_view example;  ///< a whole command line, shown by --help
  /// Adds the command's options to `app` and returns the function to run once they are parsed. That
  /// returns the exit code; bad input throws Error or UsageError.
  std::function<int()> (*add)(CLI::App* app);
};

/// Adds `init`, a command of its own, to `costs`. Returns the function to run if its words were
/// given.
std::function<int()> AddCostsInit(CLI::App* init);

extern const Command kCheckCommand;
extern const Command kCompareCommand;
extern const Command kCompileCommand;
extern const Command kCompletionCommand;
extern const Command kCostsCommand;
extern const Command kDiffCommand;
extern const Command kDoctorCommand;
extern const Command kExplainCommand;
extern const Command kExportCommand;
extern const Command kImportCommand;
extern const Command kListCommand;
extern const Command kOpenCommand;
extern const Command kPlanCommand;
extern const Command kProfileCommand;
extern const Command kProfilesCommand;
extern const Command kShowCommand;
extern const Command kSimulateCommand;
extern const Command kTokenizeCommand;
extern const Command kVerifyCommand;

}  // namespace contraflow
