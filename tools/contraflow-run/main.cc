#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/cli/exit.h"
#include "tools/cli/run_options.h"
#include "tools/contraflow-run/train.h"

namespace {

/// The number of a standard stream that is closed would be that of the next connection, and what is
/// printed go there. The substitute has nothing to read and refuses to be written to.
void KeepStandardStreams() {
  int fd = 0;
  do fd = open("/dev/null", O_RDONLY);
  while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd > STDERR_FILENO) close(fd);
}

/// mpirun cannot end its processes where it is killed itself.
void EndWithMpirun() {
  if (std::getenv("OMPI_COMM_WORLD_RANK")) prctl(PR_SET_PDEATHSIG, SIGTERM);
}

/// OpenBLAS begins with threads, of which nobody makes use. Each wants memory, and asks for it
/// without an end where the address space is limited: there this program starts again without them.
void LeaveOutThreads(char** argv) {
  rlimit space = {};
  const char* const threads = std::getenv("OPENBLAS_NUM_THREADS");
  if (threads != nullptr && std::string_view(threads) == "1") return;
  if (getrlimit(RLIMIT_AS, &space) != 0 || space.rlim_cur == RLIM_INFINITY) return;
  setenv("OPENBLAS_NUM_THREADS", "1", /*overwrite=*/1);
  execv("/proc/self/exe", argv);
}

}  // namespace

int main(int argc, char** argv) {
  LeaveOutThreads(argv);
  KeepStandardStreams();
  EndWithMpirun();
  using contraflow::RunOptions;
  return contraflow::RunMain(
      "contraflow-run", argc, argv, [&](const std::vector<std::string>& words) {
        const std::optional<RunOptions> options = contraflow::ParseRunOptions(words);
        if (!options) return contraflow::kExitFine;
        if (!options->ask.empty()) return contraflow::Ask(*options);
        return options->device == "cuda" ? contraflow::TrainOnCuda(*options, argv)
                                         : contraflow::Train(*options);
      });
}
