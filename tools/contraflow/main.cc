#include <CLI/CLI.hpp>
#include <cctype>
#include <string>
#include <vector>

#include "compiler/files/file.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"
#include "tools/cli/terminal.h"
#include "tools/contraflow/cmd.h"

namespace contraflow {
namespace {

constexpr const Command* kCommands[] = {
    &kListCommand,     &kPlanCommand,       &kCompileCommand, &kShowCommand,   &kVerifyCommand,
    &kSimulateCommand, &kExplainCommand,    &kCompareCommand, &kCheckCommand,  &kDiffCommand,
    &kCostsCommand,    &kProfilesCommand,   &kProfileCommand, &kExportCommand, &kImportCommand,
    &kTokenizeCommand, &kCompletionCommand,
#ifndef __EMSCRIPTEN__  // a page starts no programs
    &kOpenCommand,     &kDoctorCommand,
#endif
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
    name.resize(12, ' ');
    help += "  " + name + std::string(command->summary) + "\n";
  }
  help +=
      "\n"
      "To execute a plan: contraflow-run --help\n"
      "\n"
      "Exit codes: 0 success; 1 bad input, or a check failed (for diff: the plans differ);\n"
      "2 bad command line; 70 a bug in contraflow.\n";
  return Wrapped(help, HelpWidth());
}

std::string Sentence(std::string_view summary) {
  std::string text = std::string(summary) + ".\n";
  text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  return text;
}

int Main(std::vector<std::string> words) {
  if (!words.empty() && words.front() == "help") {
    words.erase(words.begin());
    words.emplace_back("--help");
  }
  int code = kExitFine;
  CLI::App app("compile, prove, simulate and draw schedules of pipeline-parallel training",
               "contraflow");
  app.set_version_flag("-V,--version", "contraflow " CF_VERSION);
  app.require_subcommand(1);
  UseHelpFormatter(&app);
  for (const Command* command : kCommands) {
    CLI::App* const added =
        app.add_subcommand(std::string(command->name), Sentence(command->summary));
    added->footer("Example: " + std::string(command->example));
    added->final_callback([&code, run = command->add(added)] { code = run(); });
  }
  // Set after the commands, so outside of them alone: words after an unknown one are not read.
  app.prefix_command();
  app.parse_complete_callback([&app] {
    if (app.remaining_size() > 0) throw CLI::ExtrasError(app.get_name(), app.remaining());
  });
  app.formatter_fn(
      [](const CLI::App*, const std::string&, CLI::AppFormatMode) { return TopHelp(); });
  return Parse(&app, words) ? code : kExitFine;
}

}  // namespace
}  // namespace contraflow

int main(int argc, char** argv) {
  contraflow::RemoveUnfinishedOnSignals();
  return contraflow::RunMain("contraflow", argc, argv, contraflow::Main);
}
