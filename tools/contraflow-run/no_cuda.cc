#include "compiler/plan/error.h"
#include "tools/contraflow-run/train.h"

namespace contraflow {

int TrainOnCuda(RunOptions, char**) {
  throw Error(
      "--device cuda: this build has no CUDA: use --device cpu, or build it again where the CUDA "
      "Toolkit 13, NCCL and cuDNN are installed");
}

}  // namespace contraflow
