#include <algorithm>
#include <csignal>
#include <string>
#include <vector>

#include "compiler/file.h"
#include "tools/exit.h"
#include "tools/run_options.h"
#include "tools/run_train.h"

int main(int argc, char** argv) {
  // A reader that closes its pipe (head, less) ends us quietly, also where the parent ignores it.
  std::signal(SIGPIPE, SIG_DFL);
  return contraflow::Guard("contraflow-run", [&] {
    const contraflow::RunOptions options = contraflow::ParseRunOptions(
        std::vector<std::string>(argv + std::min(argc, 1), argv + argc));
    if (!options.help.empty()) {
      contraflow::WriteFile("-", options.help);
      return contraflow::kExitFine;
    }
    return contraflow::Train(options);
  });
}
