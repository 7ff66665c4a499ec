#include "runtime/gpu_check.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "compiler/error.h"
#include "runtime/check.h"

namespace contraflow {
namespace {

/// |a - b| / |b| in the Euclidean norm; infinite if something is not finite, or b is zero and a is
/// not.
double RelativeError(std::span<const float> a, std::span<const float> b) {
  CF_ASSERT(a.size() == b.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const auto x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
    difference += (x - y) * (x - y);
    norm += y * y;
  }
  if (difference == 0 && norm == 0) return 0;
  const double error = std::sqrt(difference / norm);
  return std::isfinite(error) ? error : std::numeric_limits<double>::infinity();
}

/// Keeps the largest error and where it is.
class Largest {
 public:
  explicit Largest(GpuComparison* comparison) : comparison_(comparison) {}

  void Meet(double error, const std::string& where) {
    if (!comparison_->where.empty() && !(error > comparison_->largest)) return;
    comparison_->largest = error;
    comparison_->where = where;
  }

 private:
  GpuComparison* const comparison_;
};

void CompareWithHost(const Plan& plan, const std::vector<float>& losses,
                     const std::vector<float>& host_losses, GpuReference& reference,
                     ReferenceRun& host, GpuComparison* comparison) {
  Largest largest(comparison);
  for (size_t i = 0; i < losses.size(); ++i) {
    const auto micros = static_cast<size_t>(plan.microbatches);
    const auto device = static_cast<int>(i / micros);
    largest.Meet(RelativeError({&losses[i], 1}, {&host_losses[i], 1}),
                 "loss of replica " + std::to_string(device / plan.expert_parallel) + " member " +
                     std::to_string(device % plan.expert_parallel) + ", micro-batch " +
                     std::to_string(i % micros));
  }
  for (int s = 0; s < plan.stages; ++s) {
    Stage& gpu = reference.StageAt(s);
    Stage& wanted = host.StageAt(s);
    for (const ParameterBlock& block : gpu.blocks()) {
      const auto part = [&block](std::span<float> all) {
        return all.subspan(block.offset, block.size);
      };
      largest.Meet(RelativeError(part(gpu.gradients()), part(wanted.gradients())),
                   "gradient of stage " + std::to_string(s) + ", block \"" + block.name + "\"");
    }
  }
}

std::string Short(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.2e", value);
  return text;
}

}  // namespace

GpuComparison CompareGpuStep(const Plan& plan, int step, const StepResult& result, Run& run,
                             GpuReference& reference, ReferenceRun* host, double bound) {
  if (host != nullptr) {
    // Weights grow apart, step by step, by their rounding: the host begins where the GPU does.
    for (int s = 0; s < plan.stages; ++s) {
      const std::span<float> weights = reference.StageAt(s).parameters();
      const std::span<float> to = host->StageAt(s).parameters();
      CF_ASSERT(weights.size() == to.size());
      std::copy(weights.begin(), weights.end(), to.begin());
    }
  }
  const std::vector<float> losses = reference.Step(step);
  Comparison same = CompareStep(
      plan, step, result, run,
      {losses, reference.dropped(), [&](int s) -> Stage& { return reference.StageAt(s); }});
  GpuComparison comparison{same.values, std::move(same.difference), 0, ""};
  if (host == nullptr) return comparison;
  const std::vector<float> host_losses = host->Step(step);
  CompareWithHost(plan, losses, host_losses, reference, *host, &comparison);
  if (comparison.difference.empty() && !(comparison.largest < bound)) {
    comparison.difference = "step " + std::to_string(step) + ": " + comparison.where +
                            " is off the host's by " + Short(comparison.largest) +
                            ", relative; less than " + Short(bound) + " was expected";
  }
  return comparison;
}

}  // namespace contraflow
