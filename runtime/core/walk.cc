#include "runtime/core/walk.h"

#include <algorithm>

namespace contraflow {
namespace {

/// The micro-batches of a stage in the order in which a program adds them to its weight gradients.
std::vector<int> WeightOrder(const Program& program, int stage) {
  std::vector<int> order;
  for (const Instruction& i : program) {
    // Of the components one speaks for all.
    if (BackStage(i) == stage && (HasWeight(i.op) || (i.op == Op::ATTN_W && i.layer == 0))) {
      order.push_back(BackMicrobatch(i));
    }
  }
  return order;
}

Plan PlaceOnly(const Plan& like, int layers) {
  Plan plan;
  plan.level = Level::kComponent;
  plan.ranks = like.ranks;
  plan.stages = like.stages;
  plan.microbatches = like.microbatches;
  plan.routes = like.routes;
  plan.layers = layers;
  return plan;
}

}  // namespace

float LossScale(const Plan& plan) {
  return 1.0f / (static_cast<float>(plan.microbatches) * static_cast<float>(plan.data_parallel) *
                 static_cast<float>(plan.expert_parallel));
}

size_t MicrobatchesOfStep(const Plan& plan) {
  return MicrobatchPlace(plan, plan.data_parallel, 0, 0);
}

size_t MicrobatchPlace(const Plan& plan, int replica, int member, int microbatch) {
  const int64_t device = int64_t{replica} * plan.expert_parallel + member;
  return static_cast<size_t>(device * plan.microbatches + microbatch);
}

std::vector<int> StagesOf(const Plan& plan, int rank) {
  std::vector<int> stages;
  const std::vector<std::vector<int>> holders = HoldersOfStage(plan);
  for (size_t s = 0; s < holders.size(); ++s) {
    const bool holds = std::find(holders[s].begin(), holders[s].end(), rank) != holders[s].end();
    if (holds) stages.push_back(static_cast<int>(s));
  }
  return stages;
}

ComponentWalk::Even::Even(const Plan& like, int layers)
    : plan(PlaceOnly(like, layers)), accesses(plan) {}

ComponentWalk::ComponentWalk(const Plan& plan, const Model& model) {
  for (int s = 0; s < plan.stages; ++s) {
    const LayerRange range = LayersOfStage(model, s, plan.stages);
    layers_.push_back(range.last - range.first);
    std::unique_ptr<const Even>& even = even_[layers_.back()];
    if (!even) even = std::make_unique<const Even>(plan, layers_.back());
  }
}

void ComponentWalk::AccessesOf(const Instruction& i, std::vector<Access>* accesses) const {
  even_.at(LayersOf(i.stage))->accesses.Of(i, accesses);
  for (Access& access : *accesses) {
    // The last layer of the stage before, which may have more layers than this one.
    if (access.stage < i.stage) access.layer = static_cast<int16_t>(LayersOf(access.stage) - 1);
  }
}

SerialOrder::SerialOrder(const Plan& plan)
    : replicas_(static_cast<size_t>(plan.data_parallel)),
      members_(static_cast<size_t>(plan.expert_parallel)),
      holders_(HoldersOfStage(plan)),
      route_of_(RouteOfMicrobatch(plan)) {
  // By stage and copy: what is still to be added, the next one last.
  std::vector<std::vector<std::vector<int>>> left;
  for (int s = 0; s < plan.stages; ++s) {
    const std::vector<int>& holders = holders_[static_cast<size_t>(s)];
    std::vector<std::vector<int>>& orders = left.emplace_back();
    for (const int rank : holders) {
      std::vector<int>& order = orders.emplace_back(WeightOrder(plan.program(rank), s));
      std::reverse(order.begin(), order.end());
    }
    std::vector<size_t>& copies = copy_of_.emplace_back();
    for (const Route& route : plan.routes) {
      const auto holder =
          std::find(holders.begin(), holders.end(), route.ranks[static_cast<size_t>(s)]);
      copies.push_back(static_cast<size_t>(holder - holders.begin()));
    }
  }
  const auto due = [&](int s, int m) {
    const std::vector<int>& order = left[static_cast<size_t>(s)][CopyOf(s, m)];
    return !order.empty() && order.back() == m;
  };
  std::vector<int> stages_left(static_cast<size_t>(plan.microbatches), plan.stages);
  std::vector<bool> begun(stages_left.size());
  const auto choose = [&] {
    // The first whose turn it is at all stages that wait for it, or else at any of them.
    int some = -1;
    for (int m = 0; m < plan.microbatches; ++m) {
      int turns = 0;
      for (int s = 0; s < plan.stages; ++s) turns += due(s, m);
      const int wanted = stages_left[static_cast<size_t>(m)];
      if (turns > 0 && turns == wanted) return m;
      if (turns > 0 && some < 0) some = m;
    }
    return some;
  };
  for (int m = choose(); m >= 0; m = choose()) {
    const auto at = static_cast<size_t>(m);
    Pass& pass = passes_.emplace_back(Pass{m, begun[at], {}});
    begun[at] = true;
    for (int s = 0; s < plan.stages; ++s) {
      if (!due(s, m)) continue;
      left[static_cast<size_t>(s)][CopyOf(s, m)].pop_back();
      pass.stages.push_back(s);
      --stages_left[at];
    }
  }
}

size_t SerialOrder::DenseSumOf(int stage, int replica, int member, int microbatch) const {
  const size_t device = static_cast<size_t>(replica) * members_ + static_cast<size_t>(member);
  return device * CopiesOf(stage) + CopyOf(stage, microbatch);
}

size_t SerialOrder::ExpertSumOf(int stage, int replica, int microbatch) const {
  return static_cast<size_t>(replica) * CopiesOf(stage) + CopyOf(stage, microbatch);
}

size_t SerialOrder::CopyOf(int stage, int microbatch) const {
  const auto route = static_cast<size_t>(route_of_[static_cast<size_t>(microbatch)]);
  return copy_of_[static_cast<size_t>(stage)][route];
}

}  // namespace contraflow
