#include "runtime/reference_run.h"

#include <algorithm>

#include "compiler/error.h"

namespace contraflow {

ReferenceRun::ReferenceRun(const Plan& plan, const Model& model, const Text& text, uint64_t seed)
    : plan_(plan),
      model_(model),
      text_(text),
      seed_(seed),
      route_of_(RouteOfMicrobatch(plan)),
      holders_(HoldersOfStage(plan)),
      sums_(static_cast<size_t>(plan.stages)) {
  for (int s = 0; s < plan.stages; ++s) {
    stages_.emplace_back(model, s, plan.stages, seed);
    const size_t copies =
        holders_[static_cast<size_t>(s)].size() * static_cast<size_t>(plan.data_parallel);
    sums_[static_cast<size_t>(s)].resize(copies);
    for (std::vector<float>& sum : sums_[static_cast<size_t>(s)]) {
      sum.resize(stages_.back().gradients().size());
    }
  }
}

std::vector<float> ReferenceRun::Step(int step) {
  for (auto& copies : sums_) {
    for (std::vector<float>& sum : copies) std::fill(sum.begin(), sum.end(), 0.0f);
  }
  std::vector<float> losses;
  for (int d = 0; d < plan_.data_parallel; ++d) {
    for (int m = 0; m < plan_.microbatches; ++m) losses.push_back(TrainOn(step, d, m));
  }
  for (size_t s = 0; s < stages_.size(); ++s) {
    const std::span<float> total = stages_[s].gradients();
    std::copy(sums_[s][0].begin(), sums_[s][0].end(), total.begin());
    for (size_t copy = 1; copy < sums_[s].size(); ++copy) {
      for (size_t i = 0; i < total.size(); ++i) total[i] += sums_[s][copy][i];
    }
    stages_[s].OptimizerStep(step);
  }
  return losses;
}

float ReferenceRun::TrainOn(int step, int replica, int microbatch) {
  const MicroBatch micro = DrawMicroBatch(text_, model_, seed_, step, replica, microbatch);
  const float loss_scale =
      1.0f / (static_cast<float>(plan_.microbatches) * static_cast<float>(plan_.data_parallel));
  std::vector<StashPtr> stashes(stages_.size());
  std::vector<float> value;
  float loss = 0;
  for (size_t s = 0; s < stages_.size(); ++s) {
    value = stages_[s].Forward(micro, std::move(value), &stashes[s], &loss);
  }
  value.clear();
  for (size_t s = stages_.size(); s-- > 0;) {
    value = stages_[s].BackwardInput(std::move(value), loss_scale, stashes[s].get());
  }
  for (size_t s = 0; s < stages_.size(); ++s) {
    // Sums in the stage itself, as a rank does: adding up finished gradients rounds differently.
    std::vector<float>& sum = SumOfCopy(static_cast<int>(s), replica, microbatch);
    const std::span<float> gradients = stages_[s].gradients();
    std::copy(sum.begin(), sum.end(), gradients.begin());
    stages_[s].BackwardWeight(std::move(stashes[s]));
    std::copy(gradients.begin(), gradients.end(), sum.begin());
  }
  return loss;
}

std::vector<float>& ReferenceRun::SumOfCopy(int stage, int replica, int microbatch) {
  const auto s = static_cast<size_t>(stage);
  const auto route = static_cast<size_t>(route_of_[static_cast<size_t>(microbatch)]);
  const std::vector<int>& holders = holders_[s];
  const auto holder = std::find(holders.begin(), holders.end(), plan_.routes[route].ranks[s]);
  CF_ASSERT(holder != holders.end());
  return sums_[s][static_cast<size_t>(replica) * holders.size() +
                  static_cast<size_t>(holder - holders.begin())];
}

}  // namespace contraflow
