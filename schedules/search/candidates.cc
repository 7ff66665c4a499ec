#include "schedules/search/candidates.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "compiler/bound/bound.h"
#include "compiler/plan/error.h"
#include "compiler/plan/memory_limit.h"
#include "compiler/plan/plan.h"
#include "compiler/simulate/memory.h"
#include "schedules/published/placement.h"
#include "schedules/published/rows.h"
#include "schedules/search/portfolio.h"
#include "schedules/search/repartition.h"

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
    const bool merged = given > stages;
    return std::string(merged ? "would merge stages, and " : "cannot run: ") +
           "`memory_limit` has no room for one activation of " + (merged ? "them all" : "a stage") +
           "; raise it to " + std::to_string(std::max(1, given / stages));
  }
  return "";
}

/// A placement that no simpler one equals.
bool Differs(const Spec& spec, Placement placement) {
  if (placement == Placement::kLinear) return true;
  // Alone, several stages on a rank serve to run or copy less at a time.
  if (spec.ranks == 1 && !HoldsLess(spec)) return false;
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
  SetLimitFor(spec, stages, &candidate.spec);
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
  const int counted = spec.limit_stages > 0 ? spec.limit_stages : CostStages(spec);
  return ActivationsOf(*spec.memory_limit, counted, stages);
}

void SetLimitFor(const Spec& asked, int stages, Spec* spec) {
  spec->memory_limit = LimitFor(asked, stages);
  spec->limit_stages = 0;
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
  return LimitsOfRanks(frame, spec.costs, spec, spec.memory_limit);
}

std::vector<int64_t> LimitsOfRanks(const Plan& frame, const CostModel& costs, const Spec& spec,
                                   std::optional<int64_t> limit) {
  RequireBytes(spec, costs);
  const std::vector<int64_t> devices = DevicesOf(spec);
  std::vector<int64_t> limits;
  if (limit) limits.assign(static_cast<size_t>(frame.ranks), *limit);
  if (devices.empty()) return limits;
  const std::vector<int64_t> rooms = RoomForActivations(frame, costs, devices);
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

}  // namespace contraflow
