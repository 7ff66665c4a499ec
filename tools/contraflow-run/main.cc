#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <string>
#include <vector>

#include "compiler/files/file.h"
#include "tools/contraflow-run/options.h"
#include "tools/contraflow-run/train.h"
#include "tools/contraflow/exit.h"

namespace {

/// The number of a standard stream that is closed would be that of the next connection, and what is
/// printed go there. What stands in for it has nothing to read and refuses to be written to.
void KeepStandardStreams() {
  int fd = 0;
  do fd = open("/dev/null", O_RDONLY);
  while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd > STDERR_FILENO) close(fd);
}

}  // namespace

int main(int argc, char** argv) {
  KeepStandardStreams();
  // A reader that closes its pipe (head, less) ends us quietly, also where the parent ignores it.
  std::signal(SIGPIPE, SIG_DFL);
  return contraflow::Guard("contraflow-run", [&] {
    const contraflow::RunOptions options = contraflow::ParseRunOptions(
        std::vector<std::string>(argv + std::min(argc, 1), argv + argc));
    if (!options.help.empty()) {
      contraflow::WriteFile("-", options.help);
      return contraflow::kExitFine;
    }
    return options.device == "cuda" ? contraflow::TrainOnCuda(options, argv)
                                    : contraflow::Train(options);
  });
}
