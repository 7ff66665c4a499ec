#include "tests/support/exact_instance.h"

#include <algorithm>
#include <array>
#include <vector>

#include "schedules/published/placement.h"
#include "tests/support/support.h"

namespace contraflow {

std::string ExactInstance::Describe() const {
  std::string text = placement + ", " + memory + ", " + kind + ": P=" + std::to_string(plan.ranks) +
                     " M=" + std::to_string(plan.microbatches);
  if (limit) text += " limit=" + std::to_string(*limit);
  text += " latency=" + std::to_string(costs.comm.latency) +
          " occupancy=" + std::to_string(costs.comm.occupancy);
  if (costs.memory) {
    text += " activation=" + std::to_string(costs.memory->activation_bytes) +
            " stash=" + std::to_string(costs.memory->w_stash_bytes);
  }
  for (const StageCost& s : costs.stages) {
    text += " (f " + std::to_string(s.f) + " b " + std::to_string(s.b) + " w " +
            std::to_string(s.w) + " bw " + std::to_string(s.bw) + " fb " + std::to_string(s.fb) +
            ")";
  }
  for (const double scale : costs.microbatch_scale) text += " x" + std::to_string(scale);
  return text;
}

ExactInstance ExactInstances::Next() {
  ExactInstance instance;
  DrawPlacement(&instance);
  DrawCosts(&instance);
  DrawMemory(&instance);
  return instance;
}

int ExactInstances::Of(int low, int high) {
  return low + static_cast<int>(random_() % static_cast<uint64_t>(high - low + 1));
}

void ExactInstances::DrawPlacement(ExactInstance* instance) {
  constexpr std::array kNames = {"linear", "V", "bidirectional", "interleaved"};
  constexpr std::array kMostRanks = {4, 3, 4, 2};
  const auto placement = static_cast<size_t>(Of(0, 3));
  instance->placement = kNames[placement];
  const int ranks = Of(2, kMostRanks[placement]);
  const int microbatches = Of(2, placement == 2 || (placement == 3 && ranks > 1) ? 4 : 5);
  const Spec spec = MakeSpec("drawn", ranks, microbatches, {});
  if (placement == 2) {
    instance->plan = BidirectionalPlan(spec);
    return;
  }
  std::vector<int> route = placement == 1 ? VPlacement(ranks) : LinearPlacement(ranks);
  if (placement == 3) {
    const std::vector<int> once = route;
    route.insert(route.end(), once.begin(), once.end());
  }
  instance->plan = SingleRoutePlan(spec, route);
}

StageCost ExactInstances::DrawStage(const std::string& kind) {
  StageCost cost;
  const bool unit = Of(0, 2) == 0;
  cost.f = unit ? 10 : Of(4, 16);
  cost.b = unit ? 10 : Of(4, 16);
  cost.w = unit ? 10 : Of(0, 12);
  cost.bw = cost.b + cost.w;
  if (kind == "full backwards") {
    cost.bw -= Of(0, static_cast<int>(std::min(cost.b, cost.w)));
  }
  cost.fb = cost.f + cost.bw;
  if (kind == "pairs") {
    const Time least = std::max({cost.f, cost.b, cost.w});
    cost.fb = least + Of(0, static_cast<int>(cost.fb - least));
  }
  return cost;
}

void ExactInstances::DrawCosts(ExactInstance* instance) {
  constexpr std::array kKinds = {"even",   "even",           "even",  "uneven",
                                 "uneven", "full backwards", "pairs", "micro-batches"};
  instance->kind = kKinds[static_cast<size_t>(Of(0, 7))];
  CostModel& costs = instance->costs;
  const bool alike = instance->kind == "even" || (instance->kind == "pairs" && Of(0, 1) == 0);
  for (int s = 0; s < (alike ? 1 : instance->plan.stages); ++s) {
    costs.stages.push_back(DrawStage(instance->kind));
  }
  if (instance->kind == "micro-batches" || (instance->kind == "pairs" && Of(0, 2) == 0)) {
    for (int m = 0; m < instance->plan.microbatches; ++m) {
      costs.microbatch_scale.push_back(Of(5, 20) / 10.0);
    }
  }
  if (Of(0, 1) == 0) costs.comm.latency = Of(1, 6);
  if (Of(0, 4) == 0) {
    costs.comm.bytes = 1;
    costs.comm.bandwidth = 1;
    costs.comm.occupancy = Of(0, 2) == 0 ? Of(13, 40) : Of(1, 12);
    if (Of(0, 1) == 0) SetSizes(&random_, instance->plan.stages, &costs.comm);
  }
}

void ExactInstances::DrawMemory(ExactInstance* instance) {
  const Plan& plan = instance->plan;
  const bool both = plan.routes.size() > 1;
  // Amount that 1F1B's first rank holds; one more where two routes meet, as in DualPipe.
  const int whole = plan.stages + (both ? 1 : 0);
  int activation = 1;
  if (Of(0, 2) == 0) {
    activation = Of(3, 10);
    instance->costs.memory = MemoryCost{};
    instance->costs.memory->activation_bytes = activation;
    instance->costs.memory->w_stash_bytes = Of(0, activation);
  }
  instance->memory = "any memory";
  const int kind = Of(0, 4);
  if (kind == 0) return;
  const int least = both ? 2 : plan.stages / plan.ranks;
  const int slots = kind < 3 ? Of(least, std::max(least, whole - 1)) : Of(whole, whole * 3 / 2);
  instance->memory = slots < whole ? "below 1x" : "from 1x on";
  instance->limit = slots * activation + Of(0, activation - 1);
}

}  // namespace contraflow
