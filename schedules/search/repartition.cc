#include "schedules/search/repartition.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <vector>

#include "compiler/lower/interleave.h"
#include "compiler/plan/error.h"
#include "compiler/plan/layer_cost.h"
#include "compiler/plan/plan.h"

namespace contraflow {
namespace {

/// Part `part` of `parts`: the first ones take what does not divide. The larger of two amounts has
/// no smaller part anywhere.
int64_t Share(int64_t whole, int part, int parts) {
  return whole / parts + (part < whole % parts ? 1 : 0);
}

StageCost Part(const StageCost& cost, int part, int parts) {
  const auto share = [=](Time whole) { return Share(whole, part, parts); };
  StageCost result = {.f = share(cost.f), .b = share(cost.b), .w = share(cost.w)};
  // A sum stays a sum, so that rounding makes no pair shorter than its halves.
  result.bw = cost.bw == cost.b + cost.w ? result.b + result.w : share(cost.bw);
  result.fb = cost.fb == cost.f + cost.bw ? result.f + result.bw : share(cost.fb);
  result.reduce = share(cost.reduce);
  result.step = share(cost.step);
  if (cost.r >= 0) result.r = share(cost.r);
  return result;
}

StageCost Sum(const StageCost& a, const StageCost& b) {
  return {.f = a.f + b.f,
          .b = a.b + b.b,
          .w = a.w + b.w,
          .bw = a.bw + b.bw,
          .fb = a.fb + b.fb,
          .reduce = a.reduce + b.reduce,
          .step = a.step + b.step,
          .r = a.r < 0 && b.r < 0 ? -1 : a.recompute() + b.recompute()};
}

/// The entries of `to` stages for those of `from`; one entry is for every stage alike and stays
/// one where its parts are equal.
template <typename Entry, typename Cut, typename Join>
std::vector<Entry> Spread(std::vector<Entry> entries, int from, int to, Cut cut, Join join) {
  if (entries.empty()) return entries;
  const bool alike = entries.size() == 1;
  std::vector<Entry> result;
  if (to >= from) {
    const int parts = to / from;
    for (const Entry& entry : entries) {
      for (int part = 0; part < parts; ++part) result.push_back(cut(entry, part, parts));
    }
    if (!alike) return result;
    const bool equal = std::all_of(result.begin(), result.end(),
                                   [&](const Entry& entry) { return entry == result.front(); });
    if (equal) return {result.front()};
    std::vector<Entry> all;
    for (int s = 0; s < from; ++s) all.insert(all.end(), result.begin(), result.end());
    return all;
  }
  const auto size = static_cast<size_t>(from / to);
  if (alike) entries.assign(size, Entry(entries.front()));
  for (size_t s = 0; s < entries.size(); s += size) {
    result.push_back(entries[s]);
    for (size_t k = 1; k < size; ++k) result.back() = join(result.back(), entries[s + k]);
  }
  return result;
}

std::vector<int64_t> SpreadBytes(const std::vector<int64_t>& bytes, int from, int to) {
  return Spread(bytes, from, to, Share, [](int64_t a, int64_t b) { return a + b; });
}

void RepartitionMemory(int from, int to, MemoryCost* memory) {
  const auto each = [=](int64_t bytes) {
    const int64_t parts = to / from;
    return to >= from ? (bytes + parts - 1) / parts : bytes * (from / to);
  };
  memory->activation_bytes = each(memory->activation_bytes);
  memory->w_stash_bytes = each(memory->w_stash_bytes);
  const auto up = [](int64_t whole, int, int parts) { return (whole + parts - 1) / parts; };
  for (auto* list : {&memory->activation_of, &memory->stash_of}) {
    *list = Spread(*list, from, to, up, [](int64_t a, int64_t b) { return a + b; });
  }
  if (!memory->activation_of.empty()) {
    memory->activation_bytes = std::ranges::min(memory->activation_of);
    memory->w_stash_bytes = std::ranges::min(memory->stash_of);
    // One entry was of the only stage, whose parts are alike now.
    if (memory->activation_of.size() == 1) memory->activation_of.clear();
    if (memory->stash_of.size() == 1) memory->stash_of.clear();
  }
  // A part holds no more than its activation, its input included.
  memory->input_bytes = std::min(memory->input_bytes, memory->activation_bytes);
  for (const StateBytes& state : kStateBytes) {
    for (auto* list : {&(memory->*state.of_stages), &(memory->*state.rest_of_stages)}) {
      *list = SpreadBytes(*list, from, to);
    }
  }
}

/// Amounts of a stage among the layers of several: what they take and hold, not a share of it.
std::vector<LayerShare> Amounts(const CostModel& costs, int s) {
  std::vector<LayerShare> layers(costs.SharesOf(s).begin(), costs.SharesOf(s).end());
  const auto scale = [&](int64_t LayerShare::*share, int64_t all) {
    int64_t sum = 0, before = 0;
    for (const LayerShare& layer : layers) sum += layer.*share;
    const auto amount = [&](int64_t part) {
      return sum == 0 ? 0
                      : std::llround(static_cast<double>(all) *
                                     (static_cast<double>(part) / static_cast<double>(sum)));
    };
    for (LayerShare& layer : layers) {
      const int64_t from = amount(before);
      before += layer.*share;
      layer.*share = amount(before) - from;
    }
  };
  scale(&LayerShare::f, costs.stage(s).f);
  scale(&LayerShare::activation_bytes, costs.memory ? costs.memory->activation(s) : 0);
  return layers;
}

/// Layers of stages that are cut evenly, where they are alike and go into the parts, or merged;
/// else they are not known any more.
std::vector<std::vector<LayerShare>> RepartitionShares(const CostModel& costs, int from, int to) {
  std::vector<std::vector<LayerShare>> result;
  if (costs.shares.empty()) return result;
  const auto parts = static_cast<size_t>(std::max(1, to / from));
  for (const std::vector<LayerShare>& stage : costs.shares) {
    if (to < from) break;
    const bool alike =
        std::ranges::all_of(stage, [&](const LayerShare& x) { return x == stage.front(); });
    if (!alike || stage.size() % parts != 0) return {};
    const size_t copies = costs.shares.size() == 1 ? 1 : parts;
    result.insert(result.end(), copies, std::vector<LayerShare>(stage.size() / parts));
  }
  for (int s = 0; to < from && s < from; ++s) {
    if (s % (from / to) == 0) result.emplace_back();
    std::ranges::copy(Amounts(costs, s), std::back_inserter(result.back()));
  }
  JoinAlike(&result);
  return result;
}

/// True if a list of layers is the same in each of `parts` parts.
bool Repeats(const std::vector<Time>& layers, int parts) {
  if (layers.size() == 1) return true;
  const size_t size = layers.size() / static_cast<size_t>(parts);
  for (size_t l = size; l < layers.size(); ++l) {
    if (layers[l] != layers[l - size]) return false;
  }
  return true;
}

void RepartitionLayers(int from, int to, MoeCost* moe) {
  moe->layers_per_stage =
      to >= from ? moe->layers_per_stage / (to / from) : moe->layers_per_stage * (from / to);
  for (const ComponentCost& component : kComponentCosts) {
    std::vector<Time>& layers = moe->*component.times;
    if (layers.size() == 1) continue;
    const std::vector<Time> once = layers;
    while (layers.size() < static_cast<size_t>(moe->layers_per_stage)) {
      layers.insert(layers.end(), once.begin(), once.end());
    }
    layers.resize(static_cast<size_t>(moe->layers_per_stage));
  }
}

}  // namespace

std::string RejectRepartition(const CostModel& costs, int from, int to) {
  if (from == to) return "";
  if (!costs.stage_moe.empty()) {
    return "would need costs of " + std::to_string(to) +
           " stages, and these list the components of " + std::to_string(from) +
           "; give costs with \"layers\"";
  }
  if (to % from != 0 && from % to != 0) {
    return "would need costs of " + std::to_string(to) + " stages, these are of " +
           std::to_string(from) +
           ", which can be neither split nor merged into that many equal parts";
  }
  if (!costs.moe) return "";
  const int layers = costs.moe->layers_per_stage;
  if (to < from) {
    if (int64_t{layers} * (from / to) <= kMaxLayers) return "";
    return "would merge stages of " + std::to_string(layers) + " layers into one of more than " +
           std::to_string(kMaxLayers);
  }
  const int parts = to / from;
  if (layers % parts != 0) {
    return "would split each stage into " + std::to_string(parts) + ", and its " +
           std::to_string(layers) + (layers == 1 ? " layer does" : " layers do") + " not divide";
  }
  for (const ComponentCost& component : kComponentCosts) {
    if (!Repeats((*costs.moe).*component.times, parts)) {
      return "would split each stage into " + std::to_string(parts) +
             ", and its layers differ (\"" + component.key + "\")";
    }
  }
  return "";
}

CostModel Repartition(const CostModel& costs, int from, int to) {
  CF_ASSERT(RejectRepartition(costs, from, to).empty());
  if (from == to) return costs;
  CostModel result = costs;
  result.stages = Spread(costs.stages, from, to, Part, Sum);
  result.shares = RepartitionShares(costs, from, to);
  if (result.memory) RepartitionMemory(from, to, &*result.memory);
  result.comm.sizes.clear();
  // The message within a stage that is cut has the size of the smallest.
  for (int s = 1; s < to && !costs.comm.sizes.empty(); ++s) {
    const bool kept = int64_t{s} * from % to == 0;
    const auto before = static_cast<int>(int64_t{s} * from / to) - 1;
    result.comm.sizes.push_back(kept ? costs.comm.SizeBetween(before)
                                     : MessageSize{costs.comm.bytes, costs.comm.occupancy});
  }
  // A part of a stage may end within a layer.
  result.partition.clear();
  if (to > from) result.partition_of.clear();
  if (to < from) {
    result.partition = Spread(
        costs.partition, from, to, [](int layers, int, int) { return layers; },
        [](int a, int b) { return a + b; });
  }
  if (result.moe) {
    RepartitionLayers(from, to, &*result.moe);
    if (result.derived) DeriveChunkCosts(&result, *result.derived);
    // Stages that were cut unequally may be derived equal again.
    const auto first = [&](const StageCost& stage) { return stage == result.stages.front(); };
    if (costs.stages.size() == 1 &&
        std::all_of(result.stages.begin(), result.stages.end(), first)) {
      result.stages.resize(1);
    }
  }
  return result;
}

}  // namespace contraflow
