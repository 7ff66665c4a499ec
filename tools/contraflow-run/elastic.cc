#include "tools/contraflow-run/elastic.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "compiler/plan/error.h"
#include "compiler/plan/spec.h"
#include "runtime/gpu/views.h"
#include "runtime/model/views.h"
#include "schedules/compile.h"
#include "schedules/registry.h"

namespace contraflow {
namespace {

/// What one of `after` parts has of a sum over `before` parts; a single entry is of every part
/// alike.
template <typename T>
double ShareOf(const std::vector<T>& parts, int before, int after) {
  const double sum = std::accumulate(parts.begin(), parts.end(), 0.0);
  return (parts.size() == 1 ? sum * before : sum) / after;
}

/// A chunk's costs where `after` equal stages do what `before` did. Wholes are rounded up, so that
/// they are never shorter than their parts.
StageCost MergeStages(const CostModel& costs, int before, int after) {
  const auto share = [&](Time StageCost::*field) {
    std::vector<Time> times;
    for (const StageCost& stage : costs.stages) times.push_back(stage.*field);
    return ShareOf(times, before, after);
  };
  StageCost merged;
  for (Time StageCost::*part :
       {&StageCost::f, &StageCost::b, &StageCost::w, &StageCost::reduce, &StageCost::step}) {
    merged.*part = static_cast<Time>(share(part));
  }
  merged.bw = static_cast<Time>(std::ceil(share(&StageCost::bw)));
  merged.fb = static_cast<Time>(std::ceil(share(&StageCost::fb)));
  const bool repeats = std::ranges::any_of(costs.stages, [](const auto& s) { return s.r >= 0; });
  if (repeats) merged.r = static_cast<Time>(share(&StageCost::r));
  return merged;
}

MemoryCost MergeMemory(MemoryCost memory, int before, int after) {
  const auto grow = [&](int64_t* bytes) {
    *bytes = static_cast<int64_t>(std::ceil(static_cast<double>(*bytes) * before / after));
  };
  if (!memory.activation_of.empty()) {
    memory.activation_bytes =
        *std::max_element(memory.activation_of.begin(), memory.activation_of.end());
    memory.w_stash_bytes = *std::max_element(memory.stash_of.begin(), memory.stash_of.end());
    memory.activation_of.clear();
    memory.stash_of.clear();
  }
  grow(&memory.activation_bytes);
  grow(&memory.w_stash_bytes);
  for (const StateBytes& state : kStateBytes) {
    for (auto* list : {&(memory.*state.of_stages), &(memory.*state.rest_of_stages)}) {
      if (!list->empty()) *list = {static_cast<int64_t>(std::ceil(ShareOf(*list, before, after)))};
    }
  }
  return memory;
}

/// The plan's costs for another number of stages with the same layers together.
CostModel MergeCosts(const Plan& plan, int stages, const Model& model, bool on_gpus) {
  CostModel costs = *plan.costs;
  costs.partition.clear();  // of other stages
  costs.partition_of.clear();
  if (costs.moe) {
    const int layers = plan.stages * costs.moe->layers_per_stage;
    costs.moe->layers_per_stage = layers / stages;
    for (const ComponentCost& component : kComponentCosts) {
      std::vector<Time>& times = (*costs.moe).*component.times;
      const auto count = static_cast<int>(times.size());
      times = {static_cast<Time>(ShareOf(times, 1, count == 1 ? 1 : count))};
    }
  }
  if (costs.derived) {
    costs.stages.clear();  // derived again
  } else {
    costs.stages = {MergeStages(*plan.costs, plan.stages, stages)};
  }
  if (!costs.memory) return costs;
  if (costs.memory->values.empty() || !costs.moe) {
    costs.memory = MergeMemory(*costs.memory, plan.stages, stages);
  } else {  // they were those of the model
    const auto footprint = on_gpus ? GpuFootprintOf : FootprintOf;
    costs.memory = footprint(model, stages, costs.moe->layers_per_stage, plan.expert_parallel);
  }
  return costs;
}

Spec SpecOf(const Plan& plan, int ranks) {
  Spec spec;
  spec.schedule = plan.schedule;
  spec.ranks = ranks;
  spec.microbatches = plan.microbatches;
  spec.data_parallel = plan.data_parallel;
  spec.expert_parallel = plan.expert_parallel;
  if (const RecomputedCells cells(plan); cells.any()) {
    spec.recompute.choice = Recompute::Choice::kFull;
    const std::vector<RecomputeExtent>& extents = cells.extents();
    const bool same = std::ranges::count(extents, extents.front()) == std::ssize(extents);
    // Stages of another number have other layers.
    if (same) spec.recompute.part = extents.front().part;
  }
  if (plan.provenance) {
    const Provenance& from = *plan.provenance;
    spec.search = {.placement = ParsePlacement(from.placement),
                   .budget = from.budget,
                   .seed = from.seed,
                   .noise = from.noise};
    spec.memory_limit = from.memory_limit;
  }
  return spec;
}

/// Throws Error that says why not.
SmallerJob JobOf(const Plan& plan, const Model& model, bool on_gpus, int ranks) {
  const Schedule& schedule = FindSchedule(plan.schedule);
  Spec spec = SpecOf(plan, ranks);
  spec.costs = UniformCosts(1, 1, 1);
  // As many stages a rank as now; where the schedule has no choice, its own.
  const int held = plan.stages / plan.ranks;
  const auto refuse = [&] {
    CheckSpec(spec);
    const std::string why = schedule.reject(spec);
    return why.empty() && schedule.stages(spec) != held * ranks ? "has other stages" : why;
  };
  if (std::string why = refuse(); !why.empty()) {
    spec.chunks = held;
    why = refuse();
    if (!why.empty()) throw Error(plan.schedule + " " + why);
  }
  const int stages = schedule.stages(spec);
  if (!plan.stage_layers.empty() || (plan.costs && !plan.costs->stage_moe.empty())) {
    throw Error("its stages have components of unlike layers");
  }
  if (plan.layers > 0 && model.layers % stages != 0) {
    throw Error(std::to_string(model.layers) + " layers are no multiple of " +
                std::to_string(stages) + " stages");
  }
  SmallerJob job;
  const int each = plan.layers > 0 ? model.layers / stages : 0;
  job.model = on_gpus ? FitGpuModel(model, stages, each, plan.expert_parallel)
                      : FitModel(model, stages, each, plan.expert_parallel);
  if (plan.costs) {
    const int layers = plan.costs->moe ? plan.stages * plan.costs->moe->layers_per_stage : 0;
    if (layers % stages != 0) throw Error("the layers of its costs do not divide");
    spec.costs = MergeCosts(plan, stages, model, on_gpus);
  }
  job.plan = Compile(spec, {.level = plan.level, .overlap = {}, .observer = {}, .control = {}});
  return job;
}

}  // namespace

SmallerJob ShrinkJob(const Plan& plan, const RunOptions& options) {
  const bool on_gpus = options.device == "cuda";
  Model model = ReadModel(options.model);
  if (options.capacity) model.capacity_factor = static_cast<float>(*options.capacity);
  // From here on its layers are those that it trains with now.
  model = on_gpus ? FitGpuModel(model, plan) : FitModel(model, plan);
  std::string reasons;
  for (int ranks = plan.ranks - 1; ranks >= 1; --ranks) {
    try {
      return JobOf(plan, model, on_gpus, ranks);
    } catch (const Error& error) {
      if (plan.ranks - ranks > 8) continue;
      reasons +=
          "\n  " + std::to_string(ranks) + (ranks == 1 ? " rank: " : " ranks: ") + error.what();
    }
  }
  throw Error("--elastic: no plan with fewer ranks trains the same model:" + reasons);
}

}  // namespace contraflow
