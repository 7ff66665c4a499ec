#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>

#include "compiler/plan/error.h"
#include "tools/contraflow-run/train.h"

namespace contraflow {

#ifdef CF_CUDA

int TrainOnCuda(const RunOptions&, char** argv) {
  std::error_code ignored;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", ignored);
  const std::string program = self.parent_path() / "contraflow-run-cuda";
  execv(program.c_str(), argv);
  throw Error("`device` cuda: " + program +
              " cannot be started: " + std::generic_category().message(errno) +
              "; install it next to contraflow-run, or use `device` cpu");
}

#else

int TrainOnCuda(const RunOptions&, char**) {
  throw Error(
      "`device` cuda: this build has no CUDA: use `device` cpu, or build it again where the CUDA "
      "Toolkit 13, NCCL and cuDNN are installed");
}

#endif

}  // namespace contraflow
