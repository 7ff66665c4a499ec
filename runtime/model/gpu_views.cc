#include "runtime/model/gpu_views.h"

#include <string>
#include <utility>

#include "compiler/plan/error.h"
#include "kernels/gpu/routing.h"

namespace contraflow {
namespace {

/// Limits of the kernels (kernels/gpu_attention.h, gpu_experts.h).
constexpr int kWidestHead = 128, kWidthStep = 8;

/// Whether kernels can compute the model.
void CheckKernels(const Model& model) {
  const auto refuse = [&](const std::string& what) {
    throw Error("model \"" + model.name + "\" is none for a GPU: " + what);
  };
  const auto require_step = [&](const char* field, int width) {
    if (width % kWidthStep == 0) return;
    refuse(std::string(field) + " must be a multiple of " + std::to_string(kWidthStep) + ", is " +
           std::to_string(width));
  };
  require_step("width", model.width);
  require_step("expert_width", model.expert_width);
  require_step("width / heads", model.width / model.heads);
  if (model.width / model.heads > kWidestHead) {
    refuse("width / heads must be at most " + std::to_string(kWidestHead) + ", is " +
           std::to_string(model.width / model.heads) + "; give it more heads");
  }
  if (model.top_k > gpu::kMaxTopK) {
    refuse("top_k must be at most " + std::to_string(gpu::kMaxTopK) + ", is " +
           std::to_string(model.top_k));
  }
  if (model.experts > gpu::kMaxExperts) {
    refuse("experts must be at most " + std::to_string(gpu::kMaxExperts) + ", is " +
           std::to_string(model.experts));
  }
}

}  // namespace

Model FitGpuModel(Model model, int stages, int layers, int members) {
  model = FitModel(std::move(model), stages, layers, members, Hardware::kGpus);
  CheckKernels(model);
  return model;
}

MemoryCost GpuFootprintOf(const Model& model, int stages, int layers, int expert_parallel) {
  const Model fitted = FitGpuModel(model, stages, layers, expert_parallel);
  const LayerShape shape(fitted, expert_parallel, fitted.experts / expert_parallel);
  // Parameters and their copy, gradients, two moments.
  return FootprintWith(fitted, stages, expert_parallel, BytesOfGpuValues(shape),
                       {sizeof(float) + sizeof(gpu::Bf16), sizeof(float), 2 * sizeof(float)});
}

}  // namespace contraflow
