#include "schedules/partition/stages.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "compiler/lower/interleave.h"
#include "compiler/plan/error.h"
#include "compiler/plan/layer_cost.h"
#include "compiler/plan/plan.h"

namespace contraflow {
namespace {

/// Bytes of one kind that a stage may have, as costs and plans take them.
constexpr int64_t kMostBytes = int64_t{1} << 40;

/// Layers that are interleaved together. In longer rows overlap over the ends of such is little.
constexpr int kMostTogether = 24;

void Add(const StageCost& cost, StageCost* sum) {
  // A layer that says what it takes again makes the others say it, too.
  if (sum->r >= 0 || cost.r >= 0) sum->r = sum->recompute() + cost.recompute();
  sum->f += cost.f;
  sum->b += cost.b;
  sum->w += cost.w;
  sum->bw += cost.bw;
  sum->fb += cost.fb;
  sum->reduce += cost.reduce;
  sum->step += cost.step;
}

/// The components of these layers in a row; a layer without is a plain one.
MoeCost RowOf(const std::vector<const LayerCost*>& layers) {
  MoeCost moe;
  moe.layers_per_stage = static_cast<int>(layers.size());
  bool values = false;
  for (const LayerCost* layer : layers) {
    const bool says = layer->moe && !layer->moe->values.empty();
    moe.values.push_back(says ? layer->moe->values[0] : ValueBytes());
    values = values || says;
    moe.kinds.push_back(layer->moe ? layer->moe->KindOf(0) : LayerKind::kPlain);
    for (const ComponentCost& component : kComponentCosts) {
      Time time = 0;
      if (layer->moe) {
        time = layer->moe->Of(component.op, 0);
      } else if (component.op == Op::ATTN_F) {
        time = layer->cost.f;
      } else if (component.op == Op::ATTN_B) {
        time = layer->cost.b;
      } else if (component.op == Op::ATTN_W) {
        time = layer->cost.w;
      }
      (moe.*component.times).push_back(time);
    }
  }
  JoinAlike(&moe.values);
  if (!values) moe.values.clear();
  return moe;
}

Time LeastWork(const LayerCost& layer) {
  const StageCost& cost = layer.cost;
  if (!layer.moe) return std::min({cost.f + cost.bw, cost.f + cost.b + cost.w, cost.fb});
  Time work = 0;
  for (const ComponentCost& component : kComponentCosts) {
    if (WorkOf(component.op) != Work::kAllToAll) work += layer.moe->Of(component.op, 0);
  }
  return work;
}

StageCost Interleaved(const MoeCost& moe, Overlap overlap) {
  CostModel costs;
  costs.moe = moe;
  DeriveChunkCosts(&costs, overlap, true);
  return costs.stages.front();
}

}  // namespace

LayerStages::LayerStages(const CostModel& costs, Overlap overlap)
    : costs_(costs), overlap_(overlap), sums_(1) {
  CF_ASSERT(!costs.layers.empty());
  for (size_t kind = 0; kind < costs.layers.size(); ++kind) {
    const LayerCost& layer = costs.layers[kind];
    const auto alike = std::ranges::find_if(costs_.layers, [&](const LayerCost& other) {
      return other.cost == layer.cost && other.moe == layer.moe;
    });
    for (int k = 0; k < layer.repeat; ++k) {
      kinds_.push_back(static_cast<int>(kind));
      alike_.push_back(static_cast<int>(alike - costs_.layers.begin()));
    }
  }
  for (int i = 0; i < layers(); ++i) {
    const StageCost& cost = CostOf(i, i + 1);
    Sums sum = sums_.back();
    sum.f += cost.f;
    sum.b += cost.b;
    sum.work += cost.f + std::min(cost.bw, cost.b + cost.w);
    sum.least += LeastWork(Layer(i));
    sums_.push_back(sum);
  }
}

const StageCost& LayerStages::CostOf(int first, int last) {
  const std::vector<int> kinds(alike_.begin() + first, alike_.begin() + last);
  const auto [at, added] = known_.try_emplace(kinds);
  if (!added) return at->second;
  const int rows = (last - first + kMostTogether - 1) / kMostTogether;
  if (rows == 1) return at->second = Overlapped(kinds);
  StageCost sum;
  for (int row = 0; row < rows; ++row) {
    const auto begin = [&](int k) { return first + (last - first) * k / rows; };
    Add(CostOf(begin(row), begin(row + 1)), &sum);
  }
  return at->second = sum;
}

StageCost LayerStages::Overlapped(const std::vector<int>& kinds) const {
  std::vector<const LayerCost*> layers;
  for (const int kind : kinds) layers.push_back(&costs_.layers[static_cast<size_t>(kind)]);
  StageCost sum;
  for (const LayerCost* layer : layers) {
    StageCost cost = layer->cost;
    if (layer->moe) {
      cost = Interleaved(*layer->moe, overlap_);
      cost.reduce = layer->cost.reduce;
      cost.step = layer->cost.step;
    }
    Add(cost, &sum);
  }
  const bool components =
      std::any_of(layers.begin(), layers.end(), [](const auto* layer) { return layer->moe; });
  if (!components || layers.size() == 1) return sum;
  const StageCost whole = Interleaved(RowOf(layers), overlap_);
  // Layers that overlap more than their components say keep that.
  sum.bw = std::min(sum.bw, whole.bw);
  sum.fb = std::min(sum.fb, whole.fb);
  return sum;
}

const LayerCost* LayerStages::SharedElsewhere(const LayerCost& layer, int first, int last) const {
  if (layer.tied.empty()) return nullptr;
  for (int i = first; i < last; ++i) {
    if (Layer(i).name == layer.tied) return nullptr;
  }
  for (const LayerCost& other : costs_.layers) {
    if (other.name == layer.tied) return &other;
  }
  return nullptr;
}

CostModel LayerStages::Segment(int first, int last) {
  CostModel made = Of({{first, last}});
  made.partition = {last - first};
  return made;
}

CostModel LayerStages::Make(const Partition& partition) {
  CF_ASSERT(std::accumulate(partition.begin(), partition.end(), 0) == layers());
  std::vector<std::pair<int, int>> segments;
  int first = 0;
  for (const int size : partition) {
    segments.emplace_back(first, first + size);
    first += size;
  }
  CostModel made = Of(segments);
  made.partition = partition;
  for (const LayerCost& layer : costs_.layers) {
    made.partition_of.push_back({layer.name, layer.repeat});
  }
  made.ranks = costs_.ranks;
  return made;
}

std::vector<MoeCost> LayerStages::ComponentsOf(const Partition& partition) const {
  std::vector<MoeCost> stages;
  int at = 0;
  for (const int size : partition) {
    std::vector<const LayerCost*> layers;
    for (const int end = at + size; at < end; ++at) layers.push_back(&Layer(at));
    stages.push_back(RowOf(layers));
  }
  return stages;
}

CostModel LayerStages::Of(const std::vector<std::pair<int, int>>& segments) {
  CostModel made;
  made.unit = costs_.unit;
  made.source = costs_.source;
  made.parallel = costs_.parallel;
  made.gpu = costs_.gpu;
  made.tokens = costs_.tokens;
  made.ring = costs_.ring;
  made.comm = costs_.comm;
  made.host = costs_.host;
  made.microbatch_scale = costs_.microbatch_scale;
  MemoryCost memory;
  std::vector<int64_t> messages;
  bool holds = false;
  for (const auto& [first, last] : segments) {
    made.stages.push_back(CostOf(first, last));
    int64_t activation = 0, stash = 0;
    std::vector<LayerShare>& shares = made.shares.emplace_back();
    for (const StateBytes& state : kStateBytes) {
      (memory.*state.of_stages).push_back(0);
      (memory.*state.rest_of_stages).push_back(0);
    }
    for (int i = first; i < last; ++i) {
      const LayerCost& layer = Layer(i);
      shares.push_back({CostOf(i, i + 1).f, layer.activation_bytes});
      activation += layer.activation_bytes;
      stash += layer.w_stash_bytes;
      const LayerCost* const shared = SharedElsewhere(layer, first, last);
      for (const LayerCost* const holder : {&layer, shared}) {
        if (holder == nullptr) continue;
        for (const StateBytes& state : kStateBytes) {
          (memory.*state.of_stages).back() += (holder->*state.of_layer).value_or(0);
          (memory.*state.rest_of_stages).back() += RestOf(*holder, state);
        }
      }
    }
    memory.activation_of.push_back(std::max<int64_t>(activation, 1));
    memory.stash_of.push_back(stash);
    holds = holds || activation > 0;
    if (last < layers()) messages.push_back(Layer(last - 1).output_bytes);
  }
  JoinAlike(&made.shares);
  if (messages.empty() && made.comm.bytes == 0) {
    // A stage of all layers sends nothing, but R needs the bytes of its input.
    messages = {std::ranges::max(costs_.layers, {}, &LayerCost::output_bytes).output_bytes};
  }
  if (!messages.empty() && std::ranges::max(messages) > 0) {
    const int64_t other = made.comm.bytes > 0 ? made.comm.bytes : std::ranges::max(messages);
    std::ranges::replace(messages, 0, other);
    made.comm.SetBytes(messages, made.unit);
  }
  for (const StateBytes& state : kStateBytes) {
    const auto says = [&](const LayerCost& layer) { return (layer.*state.of_layer).has_value(); };
    const auto knows = [](const LayerCost& layer) { return layer.rest_bytes.has_value(); };
    const bool said = std::ranges::any_of(costs_.layers, says);
    if (!said) (memory.*state.of_stages).clear();
    if (!said || std::ranges::none_of(costs_.layers, knows)) (memory.*state.rest_of_stages).clear();
  }
  if (!holds) {
    memory.activation_of.clear();
    memory.stash_of.clear();
  } else {
    memory.activation_bytes =
        *std::min_element(memory.activation_of.begin(), memory.activation_of.end());
    memory.w_stash_bytes = *std::min_element(memory.stash_of.begin(), memory.stash_of.end());
  }
  if (costs_.memory) {
    memory.zero = costs_.memory->zero;
    memory.workspace_bytes = costs_.memory->workspace_bytes;
    memory.values = costs_.memory->values;
  }
  const bool empty = !holds && !costs_.memory && memory.parameter_bytes.empty() &&
                     memory.gradient_bytes.empty() && memory.optimizer_bytes.empty();
  if (!empty) made.memory = std::move(memory);
  return made;
}

void CheckBytes(const CostModel& made) {
  if (!made.memory) return;
  const MemoryCost& memory = *made.memory;
  const std::vector<int64_t> alike = {memory.activation_bytes};
  const std::pair<const std::vector<int64_t>&, const char*> kinds[] = {
      {memory.activation_of.empty() ? alike : memory.activation_of, "activations of a micro-batch"},
      {memory.parameter_bytes, "parameters"},
      {memory.gradient_bytes, "gradients"},
      {memory.optimizer_bytes, "optimizer state"}};
  for (const auto& [list, what] : kinds) {
    for (size_t s = 0; s < list.size(); ++s) {
      if (list[s] <= kMostBytes) continue;
      throw Error("the layers of stage " + std::to_string(s) + " have " + std::to_string(list[s]) +
                  " bytes of " + what + ", and a stage has at most " + std::to_string(kMostBytes) +
                  "; use more `ranks`, or costs of a model split over more devices");
    }
  }
}

bool HasAllToAlls(const std::vector<LayerCost>& layers) {
  return std::ranges::any_of(layers, [](const LayerCost& layer) {
    return layer.moe && layer.moe->Of(Op::DISPATCH_F, 0) > 0;
  });
}

bool IsMoe(const LayerCost& layer) { return layer.moe && layer.moe->KindOf(0) == LayerKind::kMoe; }

bool HasComponents(const std::vector<LayerCost>& layers) {
  return std::ranges::any_of(layers, [](const LayerCost& layer) { return layer.moe.has_value(); });
}

bool KnowParts(const CostModel& costs) {
  if (!HasComponents(costs.layers)) return false;
  if (costs.memory && !costs.memory->values.empty()) return true;
  return std::ranges::all_of(costs.layers, [](const LayerCost& layer) {
    return !layer.moe || !layer.moe->values.empty();
  });
}

void AddComponents(const LayerStages& layers, const Partition& partition, Overlap overlap,
                   CostModel* made) {
  made->stage_moe = layers.ComponentsOf(partition);
  made->derived = overlap;
}

void LeaveOutUnused(const Plan& plan, bool components, CostModel* made) {
  const RecomputedCells recomputed(plan);
  if (!recomputed.in_layers()) made->shares.clear();
  if (recomputed.in_parts()) return;
  for (MoeCost& moe : made->stage_moe) moe.values.clear();
  if (components || made->stage_moe.empty()) return;
  made->stage_moe.clear();
  made->derived.reset();
}

Partition EvenPartition(int layers, int stages) {
  Partition partition(static_cast<size_t>(stages), layers / stages);
  for (int s = 0; s < layers % stages; ++s) ++partition[static_cast<size_t>(s)];
  return partition;
}

std::string RejectPartition(const CostModel& costs, const PartitionChoice& choice, int stages) {
  const int layers = costs.LayerCount();
  if (layers < stages) {
    return "makes " + std::to_string(stages) + " stages, and the model has " +
           std::to_string(layers) + (layers == 1 ? " layer" : " layers") +
           "; use fewer `ranks` or `chunks`";
  }
  if (choice.kind != PartitionChoice::Kind::kList) return "";
  if (choice.layers.size() != static_cast<size_t>(stages)) {
    return "makes " + std::to_string(stages) + " stages, `partition` is of " +
           std::to_string(choice.layers.size()) + "; give one number of layers for each stage";
  }
  const int64_t sum = std::accumulate(choice.layers.begin(), choice.layers.end(), int64_t{0});
  if (sum == layers) return "";
  return "has a `partition` of " + std::to_string(sum) + " layers, and the model has " +
         std::to_string(layers);
}

}  // namespace contraflow
