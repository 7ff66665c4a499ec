#include "schedules/search/repartition.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "compiler/lower/interleave.h"
#include "compiler/plan/error.h"
#include "compiler/plan/plan.h"

namespace contraflow {
namespace {

/// Part `part` of `parts`: the first ones take what does not divide. Of two amounts the larger has
/// nowhere the smaller part.
int64_t Share(int64_t whole, int part, int parts) {
  return whole / parts + (part < whole % parts ? 1 : 0);
}

StageCost Part(const StageCost& cost, int part, int parts) {
  const auto share = [=](Time whole) { return Share(whole, part, parts); };
  StageCost result = {.f = share(cost.f), .b = share(cost.b), .w = share(cost.w)};
  // What is a sum stays one, so that rounding makes no pair shorter than its halves.
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
  memory->parameter_bytes = SpreadBytes(memory->parameter_bytes, from, to);
  memory->gradient_bytes = SpreadBytes(memory->gradient_bytes, from, to);
  memory->optimizer_bytes = SpreadBytes(memory->optimizer_bytes, from, to);
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
  if (to % from != 0 && from % to != 0) {
    return "would need costs of " + std::to_string(to) + " stages, these are of " +
           std::to_string(from) + ", which neither cut nor merge into as many equal parts";
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
    return "would cut each stage in " + std::to_string(parts) + ", and its " +
           std::to_string(layers) + (layers == 1 ? " layer does" : " layers do") + " not divide";
  }
  for (const ComponentCost& component : kComponentCosts) {
    if (!Repeats((*costs.moe).*component.times, parts)) {
      return "would cut each stage in " + std::to_string(parts) + ", and its layers differ (\"" +
             component.key + "\")";
    }
  }
  return "";
}

CostModel Repartition(const CostModel& costs, int from, int to) {
  CF_ASSERT(RejectRepartition(costs, from, to).empty());
  if (from == to) return costs;
  CostModel result = costs;
  result.stages = Spread(costs.stages, from, to, Part, Sum);
  if (result.memory) RepartitionMemory(from, to, &*result.memory);
  if (result.moe) {
    RepartitionLayers(from, to, &*result.moe);
    if (result.derived) DeriveChunkCosts(&result, *result.derived);
    // What was cut unequally may be derived equal again.
    const auto first = [&](const StageCost& stage) { return stage == result.stages.front(); };
    if (costs.stages.size() == 1 &&
        std::all_of(result.stages.begin(), result.stages.end(), first)) {
      result.stages.resize(1);
    }
  }
  return result;
}

}  // namespace contraflow
