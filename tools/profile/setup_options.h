#pragma once

#include <string>
#include <vector>

#include "tools/profile/gpus.h"
#include "tools/profile/setup.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace contraflow {

/// Help of --gpu.
inline constexpr const char* kGpuHelp =
    "a100, a100-40gb, a800, b200, b300, gb200, gb300, h20,\n"
    "h100, h200, h800, l40s, mi300x or mi355x; or a FILE.json\n"
    "with \"name\", \"bf16_tflops\", \"memory_gb\" and the like";

/// Returns a known GPU, or the one that a file describes. Throws UsageError, or Error of the file.
GpuSheet GpuOf(const std::string& text);

/// Options for the bytes that a framework keeps in addition to the parameters.
struct KeptFlags {
  std::string optimizer = "adam", activations = "ideal", workspace;
};

/// Adds --optimizer, --activations and --workspace to a command, and returns them.
std::vector<CLI::Option*> AddKeptOptions(CLI::App* app, KeptFlags* flags);

/// Sets what they say. Throws UsageError.
void ReadKept(const KeptFlags& flags, CostSetup* setup);

}  // namespace contraflow
