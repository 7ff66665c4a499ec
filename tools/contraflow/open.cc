#include <fcntl.h>
#include <spawn.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "compiler/files/file.h"
#include "compiler/plan/error.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"
#include "tools/cli/terminal.h"
#include "tools/contraflow/cmd.h"
#include "tools/contraflow/shown_plan.h"

extern char** environ;  // POSIX, declared in no header

namespace contraflow {
namespace {

/// Returns a new folder that only this user reads.
std::filesystem::path NewFolder() {
  const char* const place = std::getenv("TMPDIR");
  const std::filesystem::path parent = place != nullptr && *place != '\0' ? place : "/tmp";
  std::string name = (parent / "contraflow-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) {
    throw Error("cannot make a folder in " + parent.string() + ": " + std::strerror(errno) +
                "; TMPDIR names another place");
  }
  return name;
}

/// Programs that open a page, the user's own first.
std::vector<std::string> Browsers() {
  const char* const own = std::getenv("BROWSER");
  if (own != nullptr && *own != '\0') return {own};
  return {"xdg-open", "open", "wslview"};
}

/// Starts a program without its output and does not wait for it. Returns false if there is none.
bool Start(std::string program, std::string file) {
  posix_spawn_file_actions_t quiet;
  posix_spawn_file_actions_init(&quiet);
  posix_spawn_file_actions_addopen(&quiet, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addopen(&quiet, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  char* const words[] = {program.data(), file.data(), nullptr};
  pid_t child = 0;
  const int error = posix_spawnp(&child, program.c_str(), &quiet, nullptr, words, environ);
  posix_spawn_file_actions_destroy(&quiet);
  return error == 0;
}

int Open(const ShownPlans& options) {
  const std::string page = PageOfPlans(options);
  const std::filesystem::path plan(options.plans.front());
  const std::string stem = options.plans.front() == "-" ? "plan" : plan.stem().string();
  const std::string file = (NewFolder() / (stem.empty() ? "plan" : stem)).string() + ".html";
  WriteFile(file, page);
  for (const std::string& browser : Browsers()) {
    if (!Start(browser, file)) continue;
    Print(file + "\n");
    return kExitFine;
  }
  throw Error("no program opens pages here (BROWSER, xdg-open); the page is " + file);
}

std::function<int()> AddOpen(CLI::App* app) {
  const auto options = std::make_shared<ShownPlans>();
  AddShownPlans(app, options.get(),
                "plan files or folders, or PyTorch's CSV; - is standard input; several\nare drawn "
                "one above the other");
  return [options] { return Open(*options); };
}

}  // namespace

const Command kOpenCommand = {
    .name = "open",
    .summary = "open the page of a plan, or of several, in a browser",
    .example = "contraflow open plan.json",
    .add = AddOpen,
};

}  // namespace contraflow
