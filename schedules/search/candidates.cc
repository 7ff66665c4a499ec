#include "schedules/search/candidates.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <utility>
#include <vector>

#include "compiler/bound/bound.h"
#include "compiler/lower/interleave.h"
#include "compiler/plan/error.h"
#include "compiler/plan/layer_cost.h"
#include "compiler/plan/memory_limit.h"
#include "compiler/plan/plan.h"
#include "compiler/simulate/memory.h"
#include "schedules/published/placement.h"
#include "schedules/published/rows.h"

namespace contraflow {
namespace {

constexpr Placement kSimplestFirst[] = {Placement::kLinear, Placement::kV, Placement::kInterleaved,
                                        Placement::kWave, Placement::kBidirectional};

/// Stages a rank holds where they are interleaved: as asked for, else as many as the costs have.
int InterleavedChunks(const Spec& spec) {
  if (spec.chunks > 0) return spec.chunks;
  return std::max(2, CostStages(spec) / spec.ranks);
}

/// Chunks of a wave, which with two would be a V.
int WaveChunks(const Spec& spec) {
  if (spec.chunks > 0) return spec.chunks;
  const int given = CostStages(spec) / spec.ranks;
  return given > 2 ? given : 4;
}

std::string Reject(const Spec& spec, Placement placement) {
  const int given = CostStages(spec);
  if (given % spec.ranks != 0) {
    return "needs costs of P stages or a multiple of it, these are of " + std::to_string(given) +
           " and P is " + std::to_string(spec.ranks);
  }
  if (placement == Placement::kWave) {
    if (std::string why_not = RejectWave(WaveChunks(spec)); !why_not.empty()) return why_not;
  }
  if (placement == Placement::kBidirectional && spec.microbatches < 2) {
    return "needs at least 2 micro-batches for two directions, has 1";
  }
  if (placement == Placement::kBidirectional && spec.ranks % 2 != 0 &&
      spec.costs.unlike_microbatches()) {
    return "needs an even number of ranks for micro-batches that differ (\"microbatch_scale\"), "
           "has " +
           std::to_string(spec.ranks) +
           ": on the middle one both directions add to the gradient of one stage, in ascending "
           "order of micro-batch, so which is whose is free only where all cost the same; take "
           "another `placement`";
  }
  const int stages = StagesOf(spec, placement);
  if (stages > kMaxStages || int64_t{stages} * spec.microbatches > kMaxCells) {
    return "would make " + std::to_string(stages) + " stages x " +
           std::to_string(spec.microbatches) + " micro-batches, more than the limit of " +
           std::to_string(kMaxStages) + " stages and " + std::to_string(kMaxCells) +
           " cells; use fewer `ranks` or `microbatches`";
  }
  std::string why_not = RejectRepartition(spec.costs, given, stages);
  if (!why_not.empty()) return why_not;
  const std::optional<int64_t> limit = LimitFor(spec, stages);
  if (limit && *limit < 1) {
    return "would merge stages, and `memory_limit` has no room for one activation of them all; "
           "raise it to " +
           std::to_string(given / stages);
  }
  return "";
}

/// A placement that no simpler one equals.
bool Differs(const Spec& spec, Placement placement) {
  if (placement == Placement::kLinear) return true;
  if (spec.ranks == 1) return false;
  if (placement == Placement::kWave) return InterleavedChunks(spec) > 2;
  return placement != Placement::kInterleaved || InterleavedChunks(spec) > 1;
}

/// Placements that are asked for and can be had, simplest first.
std::vector<Placement> PlacementsOf(const Spec& spec) {
  const Placement asked = spec.search.placement;
  std::vector<Placement> placements;
  for (const Placement placement : kSimplestFirst) {
    if (!Allows(asked, placement) || (IsChoice(asked) && !Differs(spec, placement))) continue;
    if (Reject(spec, placement).empty()) placements.push_back(placement);
  }
  return placements;
}

Candidate Make(const Spec& spec, Placement placement) {
  Candidate candidate{placement, spec, {}};
  const int stages = StagesOf(spec, placement);
  candidate.spec.search.placement = placement;
  candidate.spec.costs = Repartition(spec.costs, CostStages(spec), stages);
  candidate.spec.memory_limit = LimitFor(spec, stages);
  candidate.spec.chunks = stages / spec.ranks;
  switch (placement) {
    case Placement::kAny:
    case Placement::kSingle:
      CF_ASSERT(false && "a candidate has one placement");
      break;
    case Placement::kLinear:
      candidate.frame = SingleRoutePlan(spec, LinearPlacement(spec.ranks));
      break;
    case Placement::kV:
      candidate.frame = SingleRoutePlan(spec, VPlacement(spec.ranks));
      break;
    case Placement::kInterleaved: {
      std::vector<int> owners;
      for (int s = 0; s < stages; ++s) owners.push_back(s % spec.ranks);
      candidate.frame = SingleRoutePlan(spec, std::move(owners));
      break;
    }
    case Placement::kWave:
      candidate.frame = SingleRoutePlan(spec, WavePlacement(spec.ranks, stages / spec.ranks));
      break;
    case Placement::kBidirectional:
      candidate.frame = BidirectionalPlan(spec);
      break;
  }
  candidate.spec.costs = OnRanks(candidate.spec.costs, candidate.frame);
  candidate.LimitByDevices();
  return candidate;
}

}  // namespace

void Candidate::SetLimits(std::vector<int64_t> of_ranks) {
  limits = std::move(of_ranks);
  spec.memory_limit.reset();
  if (!limits.empty()) spec.memory_limit = std::ranges::max(limits);
}

void Candidate::LimitByDevices() { SetLimits(LimitsOfRanks(frame, spec)); }

void Candidate::Limit(std::optional<int64_t> most) {
  if (!most) return SetLimits({});
  std::vector<int64_t> lower = limits;
  lower.resize(static_cast<size_t>(frame.ranks), *most);
  for (int64_t& limit : lower) limit = std::min(limit, *most);
  SetLimits(std::move(lower));
}

Candidate Candidate::Tightest() const {
  Candidate tightest = *this;
  if (!limits.empty()) tightest.Limit(std::ranges::min(limits));
  return tightest;
}

Time Candidate::Bound() const {
  const int64_t most = spec.memory_limit.value_or(0);
  // All cells together hold less than 2^62 bytes.
  constexpr int64_t kMostBytes = int64_t{1} << 61;
  const int64_t fine =
      kMostBytes / std::max<int64_t>(1, int64_t{frame.stages} * frame.microbatches);
  const bool alike = std::ranges::all_of(limits, [most](int64_t limit) { return limit == most; });
  if (alike || most > fine) return ProveBound(frame, spec.costs, spec.memory_limit).value;
  // A rank with half the room is one with all of it, and chunks twice as large. In fractions of a
  // byte, so that rounding down hardly loosens it.
  const int64_t all = std::max(most, std::min(fine, int64_t{1} << 44));
  CostModel costs = spec.costs;
  costs.host.reset();
  MemoryCost& memory = *costs.memory;
  memory.activation_of.clear();
  memory.stash_of.clear();
  for (int s = 0; s < frame.stages; ++s) {
    int64_t room = 1;
    for (const Route& route : frame.routes) {
      room = std::max(room, limits[static_cast<size_t>(route.ranks[static_cast<size_t>(s)])]);
    }
    constexpr double kJustBelow = 1 - 1e-12;
    const double times = static_cast<double>(all) / static_cast<double>(room) * kJustBelow;
    const auto scaled = [&](int64_t bytes) {
      return static_cast<int64_t>(
          std::min(static_cast<double>(bytes) * times, static_cast<double>(all)));
    };
    memory.activation_of.push_back(std::max<int64_t>(1, scaled(spec.costs.memory->activation(s))));
    memory.stash_of.push_back(scaled(spec.costs.memory->stash(s)));
  }
  memory.activation_bytes = std::ranges::min(memory.activation_of);
  memory.w_stash_bytes = std::ranges::min(memory.stash_of);
  return ProveBound(frame, costs, all).value;
}

bool Candidate::FitsSerially(bool recomputed) const {
  if (limits.empty()) return true;
  const std::vector<int64_t> peaks = SerialPeaks(frame, spec.costs, recomputed);
  return std::ranges::equal(peaks, limits, std::less_equal<>());
}

int CostStages(const Spec& spec) {
  if (spec.costs.stages.size() > 1) return static_cast<int>(spec.costs.stages.size());
  return spec.ranks * std::max(spec.chunks, 1);
}

std::optional<int64_t> LimitFor(const Spec& spec, int stages) {
  if (!spec.memory_limit || CountsBytes(spec.costs)) return spec.memory_limit;
  if (spec.schedule != kAuto.name) return spec.memory_limit;
  return ActivationsOf(*spec.memory_limit, CostStages(spec), stages);
}

int StagesOf(const Spec& spec, Placement placement) {
  switch (placement) {
    case Placement::kAny:
    case Placement::kSingle:
      break;
    case Placement::kV:
      return 2 * spec.ranks;
    case Placement::kInterleaved:
      return InterleavedChunks(spec) * spec.ranks;
    case Placement::kWave:
      return WaveChunks(spec) * spec.ranks;
    case Placement::kLinear:
    case Placement::kBidirectional:
      return spec.ranks;
  }
  CF_ASSERT(!IsChoice(placement));
  return 0;
}

std::string RejectPlacement(const Spec& spec) {
  if (!IsChoice(spec.search.placement)) return Reject(spec, spec.search.placement);
  // The linear placement is refused for what is wrong with all of them, or for layers too many.
  return PlacementsOf(spec).empty() ? Reject(spec, Placement::kLinear) : "";
}

std::vector<Candidate> CandidatesOf(const Spec& spec) {
  std::vector<Candidate> candidates;
  for (const Placement placement : PlacementsOf(spec)) candidates.push_back(Make(spec, placement));
  return candidates;
}

void RequireBytes(const Spec& spec, const CostModel& costs) {
  if (DevicesOf(spec).empty() || MemoryLimit(costs).bytes()) return;
  throw Error(std::string(spec.device_memory ? "`device_memory`" : "\"memory_bytes\" of a rank") +
              ": the costs do not say what activations take; give \"activation_bytes\"");
}

std::vector<int64_t> LimitsOfRanks(const Plan& frame, const Spec& spec) {
  RequireBytes(spec, spec.costs);
  const std::vector<int64_t> devices = DevicesOf(spec);
  std::vector<int64_t> limits;
  if (spec.memory_limit) limits.assign(static_cast<size_t>(frame.ranks), *spec.memory_limit);
  if (devices.empty()) return limits;
  const std::vector<int64_t> rooms = RoomForActivations(frame, spec.costs, devices);
  limits.resize(rooms.size(), INT64_MAX);
  for (size_t r = 0; r < rooms.size(); ++r) {
    limits[r] = std::max<int64_t>(1, std::min(limits[r], rooms[r]));
  }
  return limits;
}

Provenance ProvenanceOf(const Candidate& candidate, const std::string& from, Time makespan,
                        Time bound) {
  return {.placement = std::string(Name(candidate.placement)),
          .from = from.substr(0, kMaxFrom),
          .cost_stages = {},
          .memory_limit = candidate.spec.memory_limit,
          .makespan = makespan,
          .bound = bound};
}

std::string RejectWave(int chunks) {
  if (chunks >= 3) return "";
  return "needs at least 3 `chunks` for `placement` wave, has " + std::to_string(chunks) +
         "; with 2 it is `placement` v";
}

int64_t LimitNeeded(const Spec& spec, const Plan& frame, int64_t held) {
  const int given = CostStages(spec), stages = frame.stages;
  if (stages < given) return held * (given / stages);
  const int64_t parts = stages / given;
  return (held + parts - 1) / parts;
}

int MostChunks(const Spec& spec) {
  int most = 0;
  for (const Placement placement : PlacementsOf(spec)) {
    most = std::max(most, StagesOf(spec, placement) / spec.ranks);
  }
  return most;
}

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
