#include "runtime/model/gpu_views.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "compiler/plan/error.h"
#include "kernels/gpu/routing.h"

namespace contraflow {
namespace {

/// Limits of the kernels (kernels/gpu_attention.h, gpu_experts.h).
constexpr int kWidestHead = 128, kWidthStep = 8;

// Most numbers of one value, or of the weights of one product: GPU kernels count them with 32 bits.
constexpr double kMaxNumbers = std::numeric_limits<int32_t>::max();
// Memory of the largest GPU (H200).
constexpr double kGpuGigabytes = 141;
// A parameter, its bf16 copy, gradient and two moments.
constexpr double kGpuBytesOfParameter = 18;
constexpr double kGpuBytesOfNumber = 2;

/// Whether GPUs can hold it, with a stage, or a member's part of it, on each.
void CheckSize(const Model& model, int members, int stages) {
  const auto fail = [&](const char* key, const std::string& what) {
    throw Error("model \"" + model.name + "\": /" + key + ": " + what);
  };
  const double d = model.width, f = model.expert_width, experts = model.experts;
  const int owned = std::max(1, model.experts / members);
  const double layers = std::max(1, model.layers / stages);
  const auto check_numbers = [&](const char* key, double numbers, const std::string& remedy) {
    if (numbers <= kMaxNumbers) return;
    fail(key, "one of the values has " + std::to_string(static_cast<int64_t>(numbers / 1e6)) +
                  " million numbers on each GPU, kernels take at most 2147 million; " + remedy);
  };
  const auto check_memory = [&](const char* key, const std::string& what, double bytes,
                                const std::string& remedy) {
    if (bytes <= kGpuGigabytes * 1e9) return;
    fail(key, what + std::to_string(static_cast<int64_t>(bytes / 1e9)) +
                  " GB on each GPU, the largest have " +
                  std::to_string(static_cast<int64_t>(kGpuGigabytes)) + " GB; " + remedy);
  };
  const std::string smaller = "make widths or experts smaller, or `expert_parallel` larger";
  const double of_layer = 4 * d * d + 2 * d + d * experts + 3 * owned * d * f;
  check_numbers("width", owned * d * 2 * f, smaller);
  check_memory("width", "the parameters of a stage take ", layers * of_layer * kGpuBytesOfParameter,
               smaller + ", or take more stages with fewer layers each");

  const double rows = static_cast<double>(model.batch) * model.sequence;
  const std::string shorter = "make sequence, batch or widths smaller";
  check_numbers("sequence", rows * std::max({3 * d, experts, double{1} * model.vocabulary}),
                shorter);
  check_numbers("sequence", rows * model.top_k * d, shorter);
  const auto expert_rows = static_cast<double>(MostExpertRows(model, members, owned));
  const std::string shorter_or_capped = shorter + ", or give a capacity_factor";
  check_numbers("sequence", expert_rows * std::max(d, 2 * f), shorter_or_capped);
  check_memory("sequence", "one micro-batch keeps ",
               layers * (rows * 8 * d + expert_rows * (d + 3 * f)) * kGpuBytesOfNumber,
               shorter_or_capped + ", or take more stages with fewer layers each");
}

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
  for (const auto& [field, given] : {std::pair("balance_loss", model.balance_loss > 0),
                                     std::pair("renormalise_top_k", model.renormalise_top_k)}) {
    if (given) refuse(std::string(field) + " is for the CPU only; leave it out");
  }
}

}  // namespace

Model FitGpuModel(Model model, int stages, int layers, int members) {
  model = SettleModel(std::move(model), stages, layers, members);
  CheckSize(model, members, stages);
  CheckKernels(model);
  return model;
}

Model FitGpuModel(Model model, const Plan& plan) {
  const int alike = plan.stage_layers.empty() ? plan.layers : 0;
  return FitGpuModel(WithLayersOf(plan, std::move(model)), plan.stages, alike,
                     plan.expert_parallel);
}

MemoryCost GpuFootprintOf(const Model& model, int stages, int layers, int expert_parallel) {
  const Model fitted = FitGpuModel(model, stages, layers, expert_parallel);
  const LayerShape shape(fitted, expert_parallel, fitted.experts / expert_parallel);
  // With the copy that products see.
  return FootprintWith(fitted, stages, expert_parallel, BytesOfGpuValues(shape),
                       sizeof(float) + sizeof(gpu::Bf16));
}

}  // namespace contraflow
