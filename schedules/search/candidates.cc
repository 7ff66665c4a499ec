#include "schedules/search/candidates.h"

#include <algorithm>
#include <utility>

#include "compiler/plan/error.h"
#include "schedules/published/placement.h"
#include "schedules/search/repartition.h"

namespace contraflow {
namespace {

constexpr Placement kSimplestFirst[] = {Placement::kLinear, Placement::kV, Placement::kInterleaved,
                                        Placement::kBidirectional};

/// Stages a rank holds where they are interleaved: as asked for, else as many as the costs have.
int InterleavedChunks(const Spec& spec) {
  if (spec.chunks > 0) return spec.chunks;
  return std::max(2, CostStages(spec) / spec.ranks);
}

/// A limit in activations counts those of the stages that the costs describe.
std::optional<int64_t> LimitFor(const Spec& spec, int stages) {
  const bool bytes = spec.costs.memory && spec.costs.memory->activation_bytes > 0;
  const int given = CostStages(spec);
  if (!spec.memory_limit || bytes) return spec.memory_limit;
  // Below what can be multiplied, there is room for everything at once.
  const int64_t limit = std::min(*spec.memory_limit, 2 * kMaxCells);
  return stages >= given ? limit * (stages / given) : limit / (given / stages);
}

std::string Reject(const Spec& spec, Placement placement) {
  const int given = CostStages(spec);
  if (given % spec.ranks != 0) {
    return "needs costs of P stages or a multiple of it, these are of " + std::to_string(given) +
           " and P is " + std::to_string(spec.ranks);
  }
  if (placement == Placement::kBidirectional && spec.microbatches < 2) {
    return "needs at least 2 micro-batches for two directions, has 1";
  }
  if (placement == Placement::kBidirectional && spec.ranks % 2 != 0 &&
      !spec.costs.microbatch_scale.empty()) {
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
           " chunks; use fewer `ranks` or `microbatches`";
  }
  std::string why_not = RejectRestage(spec.costs, given, stages);
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
  return placement != Placement::kInterleaved || InterleavedChunks(spec) > 1;
}

/// Those that are asked for and can be had, simplest first.
std::vector<Placement> PlacementsOf(const Spec& spec) {
  const bool any = spec.search.placement == Placement::kAny;
  std::vector<Placement> placements;
  for (const Placement placement : kSimplestFirst) {
    if (any ? !Differs(spec, placement) : placement != spec.search.placement) continue;
    if (Reject(spec, placement).empty()) placements.push_back(placement);
  }
  return placements;
}

Candidate Make(const Spec& spec, Placement placement) {
  Candidate candidate{placement, spec, {}};
  const int stages = StagesOf(spec, placement);
  candidate.spec.search.placement = placement;
  candidate.spec.costs = Restage(spec.costs, CostStages(spec), stages);
  candidate.spec.memory_limit = LimitFor(spec, stages);
  candidate.spec.chunks = stages / spec.ranks;
  switch (placement) {
    case Placement::kAny:
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
    case Placement::kBidirectional:
      candidate.frame = BidirectionalPlan(spec);
      break;
  }
  return candidate;
}

}  // namespace

int CostStages(const Spec& spec) {
  if (spec.costs.stages.size() > 1) return static_cast<int>(spec.costs.stages.size());
  return spec.ranks * std::max(spec.chunks, 1);
}

int StagesOf(const Spec& spec, Placement placement) {
  switch (placement) {
    case Placement::kAny:
      break;
    case Placement::kV:
      return 2 * spec.ranks;
    case Placement::kInterleaved:
      return InterleavedChunks(spec) * spec.ranks;
    case Placement::kLinear:
    case Placement::kBidirectional:
      return spec.ranks;
  }
  CF_ASSERT(placement != Placement::kAny);
  return 0;
}

std::string RejectPlacement(const Spec& spec) {
  if (spec.search.placement != Placement::kAny) return Reject(spec, spec.search.placement);
  // The linear placement is refused for what is wrong with all of them, or for layers too many.
  return PlacementsOf(spec).empty() ? Reject(spec, Placement::kLinear) : "";
}

std::vector<Candidate> CandidatesOf(const Spec& spec) {
  std::vector<Candidate> candidates;
  for (const Placement placement : PlacementsOf(spec)) candidates.push_back(Make(spec, placement));
  return candidates;
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
