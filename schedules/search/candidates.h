#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compiler/plan/cost.h"
#include "compiler/plan/memory_limit.h"
#include "compiler/plan/plan.h"
#include "compiler/plan/spec.h"

namespace contraflow {

/// Stages that the costs of a spec describe: as many as they list or, where one entry is for all,
/// P, and `chunks` * P with Spec::chunks.
int CostStages(const Spec& spec);

/// Returns Spec::memory_limit for a plan of the spec with `stages` stages. Without bytes the limit
/// of `auto` counts activations of Spec::limit_stages, that of a published schedule those of its
/// own stages.
std::optional<int64_t> LimitFor(const Spec& spec, int stages);

/// Gives `spec`, for plans with `stages` stages, the limit of the spec asked for (LimitFor).
void SetLimitFor(const Spec& asked, int stages, Spec* spec);

/// One placement to search: the model of the spec in as many stages as the placement has.
struct Candidate {
  Placement placement = Placement::kLinear;
  Spec spec;   ///< chunks and costs are those of the placement's stages; limit of the roomiest rank
  Plan frame;  ///< routes and no programs
  /// Most that each rank may hold, in what limits count. Empty: anything.
  std::vector<int64_t> limits = {};

  /// Sets the limit of each rank: that of the spec, and the room that its device leaves.
  void LimitByDevices();
  /// Sets the limit of each rank; none: anything.
  void SetLimits(std::vector<int64_t> of_ranks);
  /// Sets a limit for all ranks that leaves none more room than it has; unset: anything.
  void Limit(std::optional<int64_t> most);
  /// The same with the room of the fullest rank for all.
  Candidate Tightest() const;
  /// True if no rank of a run (Simulation) holds more than its limit.
  template <typename Run>
  bool Fits(const Run& run) const {
    const MemoryLimit limit(spec.costs);
    for (size_t r = 0; r < limits.size(); ++r) {
      if (limit.Peak(run.ranks[r]) > limits[r]) return false;
    }
    return true;
  }
  /// A lower bound on the makespan of every order that fits.
  Time Bound() const;
  /// True if some order of it fits: one micro-batch at a time, with every chunk recomputed or none.
  bool FitsSerially(bool recomputed) const;
};

/// Stages of a candidate for the placement, which is no choice.
int StagesOf(const Spec& spec, Placement placement);

/// Why this many stages a rank are no wave, or "".
std::string RejectWave(int chunks);

/// Why there is no candidate for this spec and its placement, or "".
std::string RejectPlacement(const Spec& spec);

/// The candidates for the spec's placement, simplest first; at least one where RejectPlacement is
/// "".
std::vector<Candidate> CandidatesOf(const Spec& spec);

/// Throws Error where devices have memory (DevicesOf) and the costs do not say what activations
/// take.
void RequireBytes(const Spec& spec, const CostModel& costs);

/// Returns the most that each rank may hold of a plan with these routes: the memory limit of the
/// spec and the room that its device leaves for activations, no less than 1. Empty where there is
/// neither. Throws Error if the costs do not say what activations take.
std::vector<int64_t> LimitsOfRanks(const Plan& frame, const Spec& spec);
/// The same with the costs of the stages and the memory limit of a plan.
std::vector<int64_t> LimitsOfRanks(const Plan& frame, const CostModel& costs, const Spec& spec,
                                   std::optional<int64_t> limit);

/// Maximum length of the text on the origin of an order; longer ones are cut.
inline constexpr size_t kMaxFrom = 160;

/// Origin of a plan of the candidate; budget, seed and noise are filled in with the result.
Provenance ProvenanceOf(const Candidate& candidate, const std::string& from, Time makespan,
                        Time bound);

/// The least limit in activations of the stages that the costs of a spec describe with which the
/// candidate of these routes may hold `held` of its own on a rank.
int64_t LimitNeeded(const Spec& spec, const Plan& frame, int64_t held);

/// Stages a rank holds in the candidate that has most of them.
int MostChunks(const Spec& spec);

}  // namespace contraflow
