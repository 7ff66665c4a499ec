#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compiler/plan/plan.h"
#include "compiler/plan/timeline.h"

namespace contraflow {

/// Stages of a rank whose shared parameters are whole at a time: one at work, one on its way.
inline constexpr size_t kGatheredStages = 2;

/// Bytes of one rank (of one device, where a rank is a group of them) before anything runs.
struct MemoryFigures {
  /// Bytes of all copies of stages that the rank holds; none if the costs do not say. Replicas that
  /// share them (MemoryCost::zero) hold a part each.
  std::optional<int64_t> parameters, gradients, optimizer;
  /// Bytes of whole stages that are put together from the parts at a time: kGatheredStages of them.
  int64_t gathered = 0;
  int64_t workspace = 0;  ///< MemoryCost::workspace_bytes
  /// Below level buffer: one message to and from each neighbour at a time. At it they have an
  /// arena.
  int64_t messages = 0;
  /// Bytes by Arena. At level buffer those that the runtime allocates; below it those held at the
  /// peak: of the activations of all chunks the part kept up to B, and the stash kept up to W.
  std::array<int64_t, kArenaCount> arenas{};
  int64_t peak = 0;     ///< sum of `arenas`
  int peak_index = -1;  ///< the instruction during which most is held; -1: nothing ever is

  /// Bytes that are there before any activation.
  int64_t fixed() const {
    return parameters.value_or(0) + gathered + gradients.value_or(0) + optimizer.value_or(0) +
           workspace + messages;
  }
  int64_t total() const { return fixed() + peak; }
};

/// The figures of every rank, by the memory costs. Below level buffer the accounting is that of
/// Spec::memory_limit: activation_bytes from the start of F, less the stash at the end of B, the
/// stash up to the end of W (all zero where the costs have no activation_bytes). The plan must be
/// sound.
std::vector<MemoryFigures> MemoryOf(const Plan& plan, const CostModel& costs);

/// Like MemoryOf, without any activation. The plan may be a frame, which has routes and no
/// programs.
std::vector<MemoryFigures> FixedMemoryOf(const Plan& frame, const CostModel& costs);

/// Room for activations on each rank of these routes, of devices with this many bytes, one each:
/// the fixed bytes of the rank taken off. Less than 1 where there is no room.
std::vector<int64_t> RoomForActivations(const Plan& frame, const CostModel& costs,
                                        std::vector<int64_t> devices);

/// Activations that a rank holds from a moment on.
struct Held {
  Time at = 0;
  int activations = 0;  ///< as RankFigures::peak_activations counts them
  int64_t bytes = 0;    ///< by the memory costs; 0 where there are none
};

/// How that of rank r changes in a run of a plan, ascending by time; the plan must be sound.
std::vector<Held> HeldOverTime(const Plan& plan, const CostModel& costs,
                               const RecomputedCells& recomputed, const Timeline& timeline, int r);

/// Change of the amount that a rank holds, at the start or the end of an instruction.
struct MemoryChange {
  Time time = 0;
  int index = 0;
  bool end = false;     ///< an instruction frees memory at its end
  int activations = 0;  ///< 0 at level buffer
  int64_t bytes = 0;
  int64_t stash = 0;  ///< of those what is held up to W; 0 at level buffer
};

/// All changes of each rank in the order of time, given when its instructions run: of activations
/// as MemoryOf accounts for them or, at level buffer, of the slots in use.
std::vector<std::vector<MemoryChange>> MemoryChanges(const Plan& plan, const CostModel& costs,
                                                     const Timeline& timeline);

/// The figures that are known, for people: "activations 4,096, stashes 0; beside them
/// parameters 1,024".
std::string Breakdown(const MemoryFigures& figures);

}  // namespace contraflow
