#include "tools/profile/setup_options.h"

#include <CLI/CLI.hpp>

#include "compiler/files/file.h"
#include "compiler/plan/error.h"
#include "compiler/plan/spec.h"
#include "compiler/plan/text.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"

namespace contraflow {
namespace {

constexpr int64_t kLeastWorkspace = 1'000'000;

}  // namespace

GpuSheet GpuOf(const std::string& text) {
  if (text.ends_with(".json")) return ReadGpuFile(ReadFile(text, kMaxGpuFileBytes), text);
  try {
    return FindGpu(text);
  } catch (const Error& error) {
    throw UsageError(std::string("`gpu`: ") + error.what());
  }
}

std::vector<CLI::Option*> AddKeptOptions(CLI::App* app, KeptFlags* flags) {
  std::string optimizers, bytes;
  for (const OptimizerSheet& optimizer : kOptimizers) {
    optimizers += (optimizers.empty() ? "" : "|") + std::string(optimizer.name);
    bytes += (bytes.empty() ? "" : ", ") + std::to_string(optimizer.of_matrices);
  }
  return {
      AddChoice(app, "--optimizer", &flags->optimizer, optimizers,
                "sets the bytes of optimizer state: " + bytes +
                    "\na parameter in this order (default: adam)"),
      AddChoice(app, "--activations", &flags->activations, "ideal|megatron|torch",
                "tensors that kernels keep for the backward: the minimum,\nMegatron-LM's, or "
                "PyTorch's (default: ideal)"),
      AddText(app, "--workspace", &flags->workspace, "BYTES",
              "memory of a GPU for the CUDA context, communicators and\nfragments (default: 0)")};
}

void ReadKept(const KeptFlags& flags, CostSetup* setup) {
  setup->optimizer = &FindOptimizer(flags.optimizer);
  setup->activations = ParseActivations(flags.activations);
  setup->workspace = 0;
  if (flags.workspace.empty()) return;
  setup->workspace = ReadOption([&] { return ParseBytes(flags.workspace, "`workspace`"); });
  if (setup->workspace > 0 && setup->workspace < kLeastWorkspace) {
    throw UsageError("`workspace`: " + FormatBytes(setup->workspace) +
                     " is less than any library takes; give a unit, as in 4GB");
  }
}

}  // namespace contraflow
