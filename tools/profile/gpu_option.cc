#include "tools/profile/gpu_option.h"

#include "compiler/files/file.h"
#include "compiler/plan/error.h"
#include "tools/cli/exit.h"

namespace contraflow {

GpuSheet GpuOf(const std::string& text) {
  if (text.ends_with(".json")) return ReadGpuFile(ReadFile(text, kMaxGpuFileBytes), text);
  try {
    return FindGpu(text);
  } catch (const Error& error) {
    throw UsageError(std::string("`gpu`: ") + error.what());
  }
}

}  // namespace contraflow
