#include "tools/cli/completion.h"

#include <CLI/CLI.hpp>
#include <memory>

#include "compiler/files/file.h"
#include "compiler/files/profiles.h"
#include "schedules/registry.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"
#include "tools/contraflow/cmd.h"

namespace contraflow {
namespace {

int Completion(const CLI::App& program, const std::string& form) {
  if (form == "man") {
    WriteFile("-", WriteManual(program, CF_VERSION));
    return kExitFine;
  }
  KnownWords known;
  for (const Schedule* schedule : Schedules()) {
    known["--schedule"].emplace_back(schedule->name);
  }
  known["--costs"] = ProfileNames();
  WriteFile("-", WriteCompletion(program, known));
  return kExitFine;
}

std::function<int()> AddCompletion(CLI::App* app) {
  const auto form = std::make_shared<std::string>();
  Require(AddChoice(app, "FORM", form.get(), "bash|man",
                    "a script that completes commands in bash, or the manual page"));
  return [=] { return Completion(*app->get_parent(), *form); };
}

}  // namespace

const Command kCompletionCommand = {
    .name = "completion",
    .summary = "print a script that completes commands in bash, or the manual page",
    .example = "contraflow completion bash",
    .add = AddCompletion,
};

}  // namespace contraflow
