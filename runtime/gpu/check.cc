#include "runtime/gpu/check.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "compiler/plan/error.h"
#include "kernels/host/bf16.h"
#include "runtime/host/check.h"

namespace contraflow {
namespace {

/// |a - b| / |b| in the Euclidean norm, of all that was added.
class RelativeError {
 public:
  void Add(std::span<const float> a, std::span<const float> b) {
    CF_ASSERT(a.size() == b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      const auto x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
      difference_ += (x - y) * (x - y);
      norm_ += y * y;
    }
  }
  /// Infinite if something is not finite, or b is zero and a is not.
  double value() const {
    if (difference_ == 0 && norm_ == 0) return 0;
    const double error = std::sqrt(difference_ / norm_);
    return std::isfinite(error) ? error : std::numeric_limits<double>::infinity();
  }

 private:
  double difference_ = 0, norm_ = 0;
};

double ErrorOf(std::span<const float> a, std::span<const float> b) {
  RelativeError error;
  error.Add(a, b);
  return error.value();
}

std::string Short(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.2e", value);
  return text;
}

/// A copy of a stage, of which the blocks count that no other has.
struct HeldStage {
  int stage;
  bool dense;  ///< with the blocks that every member of an expert group has
  Stage* held;
};

/// The whole model: of each stage the copy on its first holder, of every member.
std::vector<HeldStage> ModelOf(const Plan& plan, Run& run) {
  std::vector<HeldStage> parts;
  const std::vector<std::vector<int>> holders = HoldersOfStage(plan);
  for (int s = 0; s < plan.stages; ++s) {
    for (int e = 0; e < plan.expert_parallel; ++e) {
      const Device device = {0, e, holders[static_cast<size_t>(s)].front()};
      parts.push_back({s, e == 0, &run.At(device).StageAt(s)});
    }
  }
  return parts;
}

/// The blocks of a part, each with the same one of the whole model on the host.
std::vector<std::pair<ParameterBlock, ParameterBlock>> BlocksOf(const HeldStage& part,
                                                                Stage* host) {
  std::vector<std::pair<ParameterBlock, ParameterBlock>> blocks;
  for (const ParameterBlock& block : part.held->blocks()) {
    if (!part.dense && block.offset < part.held->dense_gradients().size()) continue;
    const auto there = std::ranges::find(host->blocks(), block.name, &ParameterBlock::name);
    CF_ASSERT(there != host->blocks().end() && there->size == block.size);
    blocks.emplace_back(block, *there);
  }
  return blocks;
}

/// Compares what the GPU computed with what the host did.
class HostComparer {
 public:
  HostComparer(const Plan& plan, int step, double bound, GpuComparison* comparison)
      : plan_(plan),
        at_("step " + std::to_string(step) + ": "),
        bound_(bound),
        found_(comparison) {}

  void Losses(const std::vector<float>& gpu, const std::vector<float>& host) {
    for (size_t i = 0; i < gpu.size(); ++i) {
      Meet(NameOfLoss(plan_, i), ErrorOf({&gpu[i], 1}, {&host[i], 1}), bound_);
    }
  }

  void Gradients(const HeldStage& part, Stage& host) {
    for (const auto& [here, there] : BlocksOf(part, &host)) {
      const auto of_gpu = part.held->gradients().subspan(here.offset, here.size),
                 of_host = host.gradients().subspan(there.offset, there.size);
      Meet("gradient of stage " + std::to_string(part.stage) + ", block \"" + here.name + "\"",
           ErrorOf(of_gpu, of_host), kBlockSlack * bound_);
      whole_.Add(of_gpu, of_host);
    }
  }

  /// Gradient of all stages that were compared.
  void WholeGradient() {
    found_->gradient = whole_.value();
    Demand("the whole gradient", found_->gradient, bound_);
  }

  void Choices(double strayed) {
    Demand("the probability of a chosen expert", strayed, kChoiceSlack * bound_);
  }

 private:
  /// Small blocks have less to even out their rounding.
  static constexpr double kBlockSlack = 3;
  /// One logit, not the norm of many, decides what is nearly a tie.
  static constexpr double kChoiceSlack = 5;

  void Meet(const std::string& where, double error, double bound) {
    if (found_->where.empty() || error > found_->largest) {
      found_->largest = error;
      found_->where = where;
    }
    Demand(where, error, bound);
  }
  void Demand(const std::string& where, double error, double bound) {
    if (error < bound) return;
    Differ(where + " is off the host's by " + Short(error) + ", relative; less than " +
           Short(bound) + " was expected");
  }
  void Differ(const std::string& what) {
    if (found_->difference.empty()) found_->difference = at_ + what;
  }

  const Plan& plan_;
  const std::string at_;
  const double bound_;
  GpuComparison* const found_;
  RelativeError whole_;
};

/// Copies the weights that matrix products of the GPU multiply by: its gains stay in fp32, the
/// other weights do not.
void CopyWeights(const HeldStage& part, Stage* host) {
  for (const auto& [here, there] : BlocksOf(part, host)) {
    const bool gain = here.name.ends_with("norm");
    std::ranges::transform(part.held->parameters().subspan(here.offset, here.size),
                           host->parameters().subspan(there.offset).begin(),
                           [&](float x) { return gain ? x : gpu::ToFloat(gpu::ToBf16(x)); });
  }
}

}  // namespace

double ChooseAs(const LayerShape& shape, const int32_t* choice, const LayerViews<float>& v) {
  double strayed = 0;
  for (int pair = 0; pair < shape.tokens * shape.top_k; ++pair) {
    const int32_t expert = choice[pair];
    CF_ASSERT(expert >= 0 && expert < shape.experts);
    const int token = pair / shape.top_k;
    const float chosen = v.router[static_cast<ptrdiff_t>(token) * shape.experts + expert];
    const double preferred = static_cast<double>(v.weight[pair]);
    strayed = std::max(strayed, std::abs(static_cast<double>(chosen) - preferred) / preferred);
    v.expert[pair] = expert;
    v.weight[pair] = chosen;
  }
  return strayed;
}

GpuComparison CompareGpuStep(const Plan& plan, int step, const StepResult& result, Run& run,
                             GpuSerialRun& reference, ReferenceRun* host, double bound) {
  if (host != nullptr) {
    // Weights grow apart, step by step, by their rounding: the host begins where the GPU does.
    for (const HeldStage& part : ModelOf(plan, reference)) CopyWeights(part, &host->stage());
  }
  const StepResult expected = reference.Step(step);
  const std::vector<HeldStage> model = ModelOf(plan, reference);
  std::vector<Stage*> stages;
  for (const HeldStage& part : model) stages.push_back(part.held);
  Comparison same =
      CompareStep(plan, step, result, run, {expected.losses, expected.dropped, stages});
  GpuComparison comparison{same.values, std::move(same.difference), 0, 0, ""};
  if (host == nullptr) return comparison;
  const LayerShape shape(host->model(), 1, host->model().experts);
  double strayed = 0;
  host->OnRouted([&](int layer, size_t place, const LayerViews<float>& v) {
    strayed = std::max(strayed, ChooseAs(shape, reference.ChoiceAt(layer, place), v));
  });
  const double depth = std::sqrt(std::max(1.0, host->model().layers / 2.0));
  HostComparer comparer(plan, step, bound * depth, &comparison);
  comparer.Losses(expected.losses, host->Step(step));
  host->OnRouted({});
  for (const HeldStage& part : model) comparer.Gradients(part, host->stage());
  comparer.WholeGradient();
  comparer.Choices(strayed);
  return comparison;
}

}  // namespace contraflow
