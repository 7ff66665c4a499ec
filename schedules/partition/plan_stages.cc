// Costs by layer for plans that exist, and for plans of components.

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "compiler/lower/interleave.h"
#include "compiler/plan/error.h"
#include "compiler/plan/layer_cost.h"
#include "schedules/partition/stages.h"
#include "schedules/search/repartition.h"

namespace contraflow {
namespace {

std::string Layers(int64_t count) {
  return std::to_string(count) + (count == 1 ? " layer" : " layers");
}

/// f, b and w of a layer without all-to-alls, whose components run one after the other.
StageCost InOneGo(const LayerCost& layer) {
  if (!layer.moe) return layer.cost;
  StageCost cost;
  cost.f = layer.moe->Of(Op::ATTN_F, 0) + layer.moe->Of(Op::MLP_F, 0);
  cost.b = layer.moe->Of(Op::MLP_B, 0) + layer.moe->Of(Op::ATTN_B, 0);
  cost.w = layer.moe->Of(Op::MLP_W, 0) + layer.moe->Of(Op::ATTN_W, 0);
  return cost;
}

CostModel AllForPlan(const CostModel& model, const Plan& plan, Overlap overlap) {
  const bool unlike = plan.costs && !plan.costs->stage_moe.empty();
  if (plan.layers > 0 && plan.stage_layers.empty() && !unlike) {
    CostModel made = AlikeStages(model, plan.stages, overlap);
    if (made.moe->layers_per_stage == plan.layers) return made;
    throw Error("the plan has components of " + Layers(plan.layers) +
                " a stage, and the costs make it " + std::to_string(made.moe->layers_per_stage) +
                "; give the costs of the model that the plan was compiled for");
  }
  const Partition planned = plan.costs ? plan.costs->partition : Partition();
  int64_t sum = 0;
  for (const int size : planned) sum += size;
  // It may have been compiled for contraflow-run, which computes the ends with layers.
  const bool folded = plan.layers > 0 && plan.AllMoe() && sum != model.LayerCount();
  const CostModel costs = folded ? FoldEnds(model) : model;
  LayerStages layers(costs, overlap);
  if (!planned.empty() && sum != layers.layers()) {
    throw Error("the plan was made for " + Layers(sum) + ", and the costs have " +
                std::to_string(layers.layers()) +
                "; give the costs of the model that the plan was compiled for");
  }
  if (planned.empty() && layers.layers() < plan.stages) {
    throw Error("the plan has " + std::to_string(plan.stages) + " stages, and the costs have " +
                Layers(layers.layers()) + "; give costs with at least one for each stage");
  }
  const Partition partition =
      planned.empty() ? EvenPartition(layers.layers(), plan.stages) : planned;
  CostModel made = layers.Make(partition);
  if (plan.layers > 0 || KnowParts(costs)) AddComponents(layers, partition, overlap, &made);
  return made;
}

}  // namespace

CostModel StagesForPlan(const CostModel& model, const Plan& plan, Overlap overlap) {
  CostModel made = AllForPlan(model, plan, overlap);
  LeaveOutUnused(plan, plan.layers > 0, &made);
  return made;
}

CostModel CutForPlan(const CostModel& costs, const Plan& plan) {
  const auto listed = static_cast<int>(costs.stages.size());
  const std::optional<int> cut = plan.provenance ? plan.provenance->cost_stages : std::nullopt;
  if (listed == 1 || listed != cut.value_or(std::min(listed, plan.stages))) return costs;
  if (!RejectRepartition(costs, listed, plan.stages).empty()) return costs;
  return Repartition(costs, listed, plan.stages);
}

CostModel FoldEnds(const CostModel& costs) {
  const auto first = std::find_if(costs.layers.begin(), costs.layers.end(), IsMoe);
  const auto last = std::find_if(costs.layers.rbegin(), costs.layers.rend(), IsMoe).base();
  if (first == costs.layers.end() || !std::all_of(first, last, IsMoe)) {
    throw Error(
        "contraflow-run has layers with \"moe\" alone, and others only before and after them; "
        "compile without `model`, or give costs with such layers");
  }
  CostModel made = costs;
  made.layers.assign(first, last);
  for (LayerCost& layer : made.layers) layer.tied.clear();
  // The first and the last one by themselves.
  const auto split = [&](size_t at, bool front) {
    if (made.layers[at].repeat == 1) return;
    LayerCost one = made.layers[at];
    one.repeat = 1;
    --made.layers[at].repeat;
    made.layers.insert(made.layers.begin() + static_cast<std::ptrdiff_t>(front ? at : at + 1), one);
  };
  split(0, true);
  split(made.layers.size() - 1, false);
  for (auto layer = costs.layers.begin(); layer != costs.layers.end(); ++layer) {
    if (layer >= first && layer < last) continue;
    LayerCost& into = layer < first ? made.layers.front() : made.layers.back();
    const StageCost cost = InOneGo(*layer);
    const std::tuple<std::vector<Time> MoeCost::*, Time> parts[] = {
        {&MoeCost::attn_f, cost.f}, {&MoeCost::attn_b, cost.b}, {&MoeCost::attn_w, cost.w}};
    for (const auto& [times, time] : parts) ((*into.moe).*times).front() += layer->repeat * time;
    for (const StateBytes& state : kStateBytes) {
      std::optional<int64_t>& bytes = into.*state.of_layer;
      if ((*layer).*state.of_layer) {
        bytes = bytes.value_or(0) + layer->repeat * *((*layer).*state.of_layer);
      }
    }
    if (into.rest_bytes) *into.rest_bytes += layer->repeat * layer->rest_bytes.value_or(0);
    into.activation_bytes += layer->repeat * layer->activation_bytes;
    into.w_stash_bytes += layer->repeat * layer->w_stash_bytes;
    into.cost.reduce += layer->repeat * layer->cost.reduce;
    into.cost.step += layer->repeat * layer->cost.step;
  }
  return made;
}

CostModel AlikeStages(const CostModel& costs, int stages, Overlap overlap) {
  const auto first = std::find_if(costs.layers.begin(), costs.layers.end(), IsMoe);
  const auto last = std::find_if(costs.layers.rbegin(), costs.layers.rend(), IsMoe).base();
  const bool alike =
      std::all_of(first, last, [&](const LayerCost& layer) { return layer.moe == first->moe; });
  if (first == costs.layers.end() || !alike) {
    throw Error(
        "a plan of components needs layers with \"moe\", all alike, and others only before and "
        "after them; compile to level comm, or give costs with \"moe\" alone");
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
  StageCost ends;  // of the layers before and after
  for (auto layer = costs.layers.begin(); layer != costs.layers.end(); ++layer) {
    if (layer >= first && layer < last) continue;
    (layer < first ? partition.front() : partition.back()) += layer->repeat;
    const StageCost cost = InOneGo(*layer);
    ends.f += layer->repeat * cost.f / stages;
    ends.b += layer->repeat * cost.b / stages;
    ends.w += layer->repeat * cost.w / stages;
  }
  CostModel made = LayerStages(costs, overlap).Make(partition);
  made.partition.clear();
  made.partition_of.clear();
  made.shares.clear();  // as the components have their layers
  // The largest stage has no more than all of them.
  StageCost most;
  for (const StageCost& stage : made.stages) {
    most.reduce = std::max(most.reduce, stage.reduce);
    most.step = std::max(most.step, stage.step);
  }
  made.stages = {most};
  MoeCost& moe = made.moe.emplace(*first->moe);
  moe.layers_per_stage = each;
  if (made.memory && made.memory->values.empty() && !moe.values.empty()) {
    made.memory->values.assign(moe.values[0].begin(), moe.values[0].end());
  }
  moe.values.clear();
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
