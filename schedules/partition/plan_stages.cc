// Costs by layer for plans that exist, and for plans of components.

#include <algorithm>
#include <string>
#include <utility>

#include "compiler/lower/interleave.h"
#include "compiler/plan/error.h"
#include "schedules/partition/stages.h"

namespace contraflow {
namespace {

std::string Layers(int64_t count) {
  return std::to_string(count) + (count == 1 ? " layer" : " layers");
}

}  // namespace

CostModel StagesForPlan(const CostModel& costs, const Plan& plan, Overlap overlap) {
  if (plan.layers > 0) {
    CostModel made = AlikeStages(costs, plan.stages, overlap);
    if (made.moe->layers_per_stage == plan.layers) return made;
    throw Error("the plan has components of " + Layers(plan.layers) +
                " a stage, and the costs make it " + std::to_string(made.moe->layers_per_stage) +
                "; give the costs of the model that the plan was compiled for");
  }
  LayerStages layers(costs, overlap);
  const Partition planned = plan.costs ? plan.costs->partition : Partition();
  int64_t sum = 0;
  for (const int size : planned) sum += size;
  if (!planned.empty() && sum != layers.layers()) {
    throw Error("the plan was made for " + Layers(sum) + ", and the costs have " +
                std::to_string(layers.layers()) +
                "; give the costs of the model that the plan was compiled for");
  }
  if (planned.empty() && layers.layers() < plan.stages) {
    throw Error("the plan has " + std::to_string(plan.stages) + " stages, and the costs have " +
                Layers(layers.layers()) + "; give costs with at least one for each stage");
  }
  return layers.Make(planned.empty() ? EvenPartition(layers.layers(), plan.stages) : planned);
}

CostModel AlikeStages(const CostModel& costs, int stages, Overlap overlap) {
  const auto has = [](const LayerCost& layer) { return layer.moe.has_value(); };
  const auto first = std::find_if(costs.layers.begin(), costs.layers.end(), has);
  const auto last = std::find_if(costs.layers.rbegin(), costs.layers.rend(), has).base();
  const bool alike =
      std::all_of(first, last, [&](const LayerCost& layer) { return layer.moe == first->moe; });
  if (first == costs.layers.end() || !alike) {
    throw Error(
        "a plan of components needs layers with \"moe\", all alike, and others only before and "
        "behind them; compile to level comm, or give costs with \"moe\" alone");
  }
  if (std::any_of(costs.ranks.begin(), costs.ranks.end(),
                  [](const RankCost& rank) { return rank.speed != 1; })) {
    throw Error(
        "a plan of components needs ranks alike, and the costs give some another \"speed\"; "
        "compile "
        "to level comm, or leave \"ranks\" out");
  }
  int64_t count = 0;
  for (auto layer = first; layer != last; ++layer) count += layer->repeat;
  if (count % stages != 0) {
    throw Error("a plan of components needs as many layers in each of the " +
                std::to_string(stages) + " stages, and the costs have " + Layers(count) +
                " with \"moe\"; compile to level comm, or for another number of stages");
  }
  const auto each = static_cast<int>(count / stages);
  Partition partition(static_cast<size_t>(stages), each);
  StageCost ends;  // of the layers before and behind
  for (auto layer = costs.layers.begin(); layer != costs.layers.end(); ++layer) {
    if (layer >= first && layer < last) continue;
    (layer < first ? partition.front() : partition.back()) += layer->repeat;
    ends.f += layer->repeat * layer->cost.f / stages;
    ends.b += layer->repeat * layer->cost.b / stages;
    ends.w += layer->repeat * layer->cost.w / stages;
  }
  CostModel made = LayerStages(costs, overlap).Make(partition);
  made.partition.clear();
  made.partition_of.clear();
  // Of the stages there is no more than what all of them have.
  StageCost most;
  for (const StageCost& stage : made.stages) {
    most.reduce = std::max(most.reduce, stage.reduce);
    most.step = std::max(most.step, stage.step);
  }
  made.stages = {most};
  MoeCost& moe = made.moe.emplace(*first->moe);
  moe.layers_per_stage = each;
  const std::pair<std::vector<Time> MoeCost::*, Time> shares[] = {
      {&MoeCost::attn_f, ends.f}, {&MoeCost::attn_b, ends.b}, {&MoeCost::attn_w, ends.w}};
  for (const auto& [times, share] : shares) {
    if (share == 0) continue;
    (moe.*times).resize(static_cast<size_t>(each), (moe.*times).front());
    (moe.*times).back() += share;
  }
  DeriveChunkCosts(&made, overlap);
  return made;
}

}  // namespace contraflow
