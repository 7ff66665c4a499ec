#include "tools/profile/setup_options.h"

#include <CLI/CLI.hpp>

#include "compiler/files/file.h"
#include "compiler/plan/error.h"
#include "compiler/plan/spec.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"

namespace contraflow {

GpuSheet GpuOf(const std::string& text) {
  if (text.ends_with(".json")) return ReadGpuFile(ReadFile(text, kMaxGpuFileBytes), text);
  try {
    return FindGpu(text);
  } catch (const Error& error) {
    throw UsageError(std::string("`gpu`: ") + error.what());
  }
}

std::vector<CLI::Option*> AddKeptOptions(CLI::App* app, KeptFlags* flags) {
  std::string optimizers;
  for (const OptimizerSheet& optimizer : kOptimizers) {
    optimizers += (optimizers.empty() ? "" : "|") + std::string(optimizer.name);
  }
  return {AddChoice(app, "--optimizer", &flags->optimizer, optimizers,
                    "bytes of the state of each parameter (default: adam)"),
          AddChoice(app, "--activations", &flags->activations, "ideal|megatron|torch",
                    "what kernels keep for the backward: as little as they\nmust, as those of "
                    "Megatron-LM, or as PyTorch's (default:\nideal)"),
          AddText(app, "--workspace", &flags->workspace, "BYTES",
                  "of a GPU for the CUDA context, communicators and\nfragments (default: 0)")};
}

void ReadKept(const KeptFlags& flags, CostSetup* setup) {
  setup->optimizer = &FindOptimizer(flags.optimizer);
  setup->activations = ParseActivations(flags.activations);
  setup->workspace = 0;
  if (flags.workspace.empty()) return;
  setup->workspace = ReadOption([&] { return ParseBytes(flags.workspace, "`workspace`"); });
}

}  // namespace contraflow
