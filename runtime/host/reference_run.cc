#include "runtime/host/reference_run.h"

#include <algorithm>
#include <span>

#include "compiler/plan/error.h"
#include "runtime/core/component_walk.h"

namespace contraflow {
namespace {

using Sums = std::vector<std::vector<float>>;

void AddUp(const Sums& copies, std::span<float> total) {
  std::copy(copies[0].begin(), copies[0].end(), total.begin());
  for (size_t copy = 1; copy < copies.size(); ++copy) {
    for (size_t i = 0; i < total.size(); ++i) total[i] += copies[copy][i];
  }
}

}  // namespace

ReferenceRun::ReferenceRun(const Plan& plan, const Model& model, const Text& text, uint64_t seed)
    : plan_(plan),
      model_(FitModel(model, plan.stages, plan.layers, plan.expert_parallel)),
      text_(text),
      seed_(seed),
      route_of_(RouteOfMicrobatch(plan)),
      holders_(HoldersOfStage(plan)) {
  for (int s = 0; s < plan.stages; ++s) {
    stages_.emplace_back(model_, s, plan.stages, plan.expert_parallel, seed);
    const size_t copies =
        holders_[static_cast<size_t>(s)].size() * static_cast<size_t>(plan.data_parallel);
    const size_t members = static_cast<size_t>(plan.expert_parallel);
    Stage& stage = stages_.back().stage();
    dense_.emplace_back(copies * members, std::vector<float>(stage.dense_gradients().size()));
    experts_.emplace_back(copies, std::vector<float>(stage.expert_gradients().size()));
  }
}

std::vector<float> ReferenceRun::Step(int step) {
  for (auto* sums : {&dense_, &experts_}) {
    for (Sums& copies : *sums) {
      for (std::vector<float>& sum : copies) std::fill(sum.begin(), sum.end(), 0.0f);
    }
  }
  dropped_ = 0;
  strayed_ = 0;
  std::vector<float> losses(static_cast<size_t>(plan_.data_parallel) *
                            static_cast<size_t>(plan_.expert_parallel) *
                            static_cast<size_t>(plan_.microbatches));
  for (int d = 0; d < plan_.data_parallel; ++d) {
    for (int m = 0; m < plan_.microbatches; ++m) TrainOn(step, d, m, &losses);
  }
  for (size_t s = 0; s < stages_.size(); ++s) {
    Stage& stage = stages_[s].stage();
    AddUp(dense_[s], stage.dense_gradients());
    AddUp(experts_[s], stage.expert_gradients());
    stage.OptimizerStep(step);
  }
  return losses;
}

void ReferenceRun::TrainOn(int step, int replica, int microbatch, std::vector<float>* losses) {
  const int members = plan_.expert_parallel;
  std::vector<MicroBatch> micros;
  for (int e = 0; e < members; ++e) {
    micros.push_back(DrawMicroBatch(text_, model_, seed_, step, replica * members + e, microbatch));
  }
  std::vector<WholeStash<float>> stashes(stages_.size());
  std::vector<float> value, loss;
  for (size_t s = 0; s < stages_.size(); ++s) {
    WholeStage<float>::Choices choices;
    if (choices_) {
      choices = [&](int layer, size_t member) {
        return choices_(static_cast<int>(s), layer, replica, static_cast<int>(member), microbatch);
      };
    }
    value = stages_[s].Forward(micros, value, &stashes[s], &loss, choices);
    dropped_ += WholeStage<float>::Dropped(stashes[s]);
    strayed_ = std::max(strayed_, WholeStage<float>::Strayed(stashes[s]));
  }
  for (int e = 0; e < members; ++e) {
    (*losses)[static_cast<size_t>((replica * members + e) * plan_.microbatches + microbatch)] =
        loss[static_cast<size_t>(e)];
  }
  value.clear();
  for (size_t s = stages_.size(); s-- > 0;) {
    value = stages_[s].BackwardInput(value, LossScale(plan_), &stashes[s]);
  }
  for (size_t s = 0; s < stages_.size(); ++s) {
    // Into the sums themselves, as a rank does: adding up finished gradients rounds differently.
    const size_t holders = holders_[s].size();
    const size_t holder = HolderOf(static_cast<int>(s), microbatch);
    std::vector<float*> dense;
    for (int e = 0; e < members; ++e) {
      const auto device = static_cast<size_t>(replica * members + e);
      dense.push_back(dense_[s][device * holders + holder].data());
    }
    std::vector<float>& experts = experts_[s][static_cast<size_t>(replica) * holders + holder];
    stages_[s].BackwardWeight(dense, experts.data(), &stashes[s]);
  }
  if (moved_) moved_();
}

/// Which of the copies of a stage works on this micro-batch.
size_t ReferenceRun::HolderOf(int stage, int microbatch) const {
  const auto s = static_cast<size_t>(stage);
  const auto route = static_cast<size_t>(route_of_[static_cast<size_t>(microbatch)]);
  const std::vector<int>& holders = holders_[s];
  const auto holder = std::find(holders.begin(), holders.end(), plan_.routes[route].ranks[s]);
  CF_ASSERT(holder != holders.end());
  return static_cast<size_t>(holder - holders.begin());
}

}  // namespace contraflow
