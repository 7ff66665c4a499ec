#include <CLI/CLI.hpp>
#include <cctype>
#include <csignal>
#include <string>
#include <vector>

#include "compiler/files/file.h"
#include "compiler/plan/error.h"
#include "tools/contraflow/cmd.h"
#include "tools/contraflow/exit.h"

namespace contraflow {
namespace {

constexpr const Command* kCommands[] = {
    &kListCommand,     &kCompileCommand, &kShowCommand,   &kVerifyCommand,
    &kSimulateCommand, &kCompareCommand, &kCheckCommand,  &kDiffCommand,
    &kCostsCommand,    &kExportCommand,  &kImportCommand,
};

std::string TopHelp() {
  std::string help =
      "Compile, prove, simulate and draw pipeline-parallel training schedules.\n"
      "\n"
      "Usage: contraflow COMMAND [OPTIONS]\n"
      "       contraflow COMMAND --help\n"
      "       contraflow --version\n"
      "\n"
      "Commands:\n";
  for (const Command* command : kCommands) {
    std::string name(command->name);
    name.resize(10, ' ');
    help += "  " + name + std::string(command->summary) + "\n";
  }
  help +=
      "\n"
      "Exit codes: 0 fine; 1 the input is wrong, or a check did not hold (or, for diff, the plans\n"
      "differ); 2 the command line is wrong; 70 a bug in contraflow.\n";
  return help;
}

const Command& FindCommand(const std::string& name) {
  std::vector<std::string> names;
  std::string known;
  for (const Command* command : kCommands) {
    if (command->name == name) return *command;
    names.emplace_back(command->name);
    known += (known.empty() ? "" : ", ") + names.back();
  }
  const std::string shown = name.substr(0, 64);
  throw UsageError("unknown command \"" + shown + "\"" + DidYouMean(shown, names) +
                   "; commands are " + known);
}

/// "unknown option "--rnaks" (did you mean "--ranks"?)" for what the parser left over, else "".
std::string DescribeLeftOver(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  const std::vector<std::string> left = app.remaining();
  for (const std::string& word : left) {
    if (word.size() < 2 || word[0] != '-') continue;
    const std::string name = word.substr(0, word.find('=')).substr(0, 64);
    return "unknown option \"" + name + "\"" + DidYouMean(name, names);
  }
  return left.empty() ? "" : "unexpected argument \"" + left.front().substr(0, 64) + "\"";
}

std::string Describe(const CLI::ParseError& error, const CLI::App& app) {
  const std::string left_over = DescribeLeftOver(app);
  if (!left_over.empty()) return left_over;
  const std::string text = error.what();
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    return text.substr(0, text.find(':')) + " must be given once, with one value";
  }
  return text;
}

int RunCommand(const Command& command, const std::vector<std::string>& arguments) {
  const std::string name(command.name);
  std::string summary = std::string(command.summary) + ".\n";
  summary[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(summary[0])));
  CLI::App app(summary, "contraflow " + name);
  app.get_formatter()->column_width(34);
  app.footer("Example: " + std::string(command.example));
  const std::function<int()> run = command.add(&app);
  try {
    // The parser takes its words from the back.
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    WriteFile("-", app.help());
    return kExitFine;
  } catch (const CLI::ParseError& error) {
    throw UsageError(name + ": " + Describe(error, app) + "; see contraflow " + name + " --help");
  }
  return run();
}

int Main(const std::vector<std::string>& arguments) {
  if (arguments.empty()) throw UsageError("no command given; see contraflow --help");
  std::vector<std::string> rest(arguments.begin() + 1, arguments.end());
  std::string first = arguments.front();
  if (first == "--version") {
    WriteFile("-", "contraflow " CF_VERSION "\n");
    return kExitFine;
  }
  if (first == "help" && !rest.empty()) {
    first = rest.front();
    rest = {"--help"};
  }
  if (first == "--help" || first == "-h" || first == "help") {
    WriteFile("-", TopHelp());
    return kExitFine;
  }
  if (first.starts_with("-")) {
    const std::vector<std::string> known = {"--help", "--version"};
    const std::string shown = first.substr(0, 64);
    throw UsageError("unknown option \"" + shown + "\"" + DidYouMean(shown, known) +
                     "; see contraflow --help");
  }
  return RunCommand(FindCommand(first), rest);
}

}  // namespace
}  // namespace contraflow

int main(int argc, char** argv) {
  // A reader that closes its pipe (head, less) ends us quietly, also where the parent ignores it.
  std::signal(SIGPIPE, SIG_DFL);
  return contraflow::Guard("contraflow", [&] {
    return contraflow::Main(std::vector<std::string>(argv + std::min(argc, 1), argv + argc));
  });
}
