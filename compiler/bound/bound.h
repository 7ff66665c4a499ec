#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "compiler/plan/plan.h"

namespace contraflow {

/// Arguments for a lower bound; each is derived where it is computed.
enum class BoundKind : uint8_t {
  kNothing,       ///< a plan without micro-batches
  kCriticalPath,  ///< one micro-batch through all stages and back (chunk.cc)
  kBusyRank,      ///< the work of a rank, what precedes it and what follows it (chunk.cc)
  kOrder,         ///< the same, for micro-batches one after the other (order.cc)
  kTwoWindows,    ///< a rank's waits for its first and its last backward (window.cc,
                  ///< component.cc)
  kPairs,         ///< the windows of a rank in which no pair can run (window.cc)
  kMemoryArea,    ///< memory x time (area.cc)
  kLink,          ///< messages of one directed edge, one at a time (order.cc)
  kLane,          ///< the components of one lane of a rank (component.cc)
  kHostLink,      ///< the copies of a rank to the host or back, one at a time (host_link.cc)
  kStashes,       ///< stashes that may wait for W when the last B of a rank runs (stash.cc)
};

/// "critical path", "busy rank", "order of micro-batches", ...
std::string_view Name(BoundKind kind);

/// A proven lower bound and what it rests on: value = head + work + idle + tail.
struct Bound {
  Time value = 0;
  BoundKind kind = BoundKind::kNothing;
  int rank = -1;  ///< that the figures are of; of a link the sender; -1: no certain one
  int peer = -1;  ///< of a link the receiver
  Time head = 0;  ///< before the first of the work can begin
  Time work = 0;  ///< one after the other; of kMemoryArea the area divided by the limit
  Time idle = 0;  ///< while it cannot all be done, no less than this
  Time tail = 0;  ///< work that must follow the last of it
};

/// The best of all bounds on the makespan of every schedule with this placement (routes), these
/// costs and at most `memory_limit` on each rank, as Spec has it, that recomputes those chunks that
/// the plan's programs recompute and offloads those that they offload (nothing else of the programs
/// matters, and there may be none; where some are offloaded, the limit counts for what waits for W
/// alone, as BoundOfOffloaded has it): built from
/// F, B, W, BW, FB and R or, where the plan has layers, from components that may overlap in any way
/// (where some are recomputed, without notice of memory). Time and memory linear in chunks. Throws
/// Error if the costs do not fit the plan, or if no schedule at all fits the memory limit because a
/// rank must hold one micro-batch on all of its stages at once.
Bound ProveBound(const Plan& plan, const CostModel& costs,
                 std::optional<int64_t> memory_limit = std::nullopt);

/// Like ProveBound, for every schedule of these routes that may recompute and offload any cells,
/// built from F, B, W, BW, FB, R, OFFLOAD and RELOAD. A limit that not even one activation fits
/// says nothing.
Bound BoundOfOffloaded(const Plan& frame, const CostModel& costs,
                       std::optional<int64_t> memory_limit);

/// Least times of each micro-batch outside of one stage: before its F can begin, from the
/// end of that to when its B can, and from the end of that to the end of the step.
struct StageSurroundings {
  Time head = 0, lag = 0, tail = 0;
};

/// Like ProveBound, from one rank with one stage, for any stages around it: `costs` are of that
/// stage, without overlap between micro-batches of other routes. Throws Error if one activation
/// does not fit the limit.
Bound ProveStageBound(const CostModel& costs, int microbatches, const StageSurroundings& around,
                      std::optional<int64_t> memory_limit);

/// One of the stages of a rank, and the micro-batches of a route that come to it.
struct RankStage {
  StageCost cost;
  int microbatches = 0;
  StageSurroundings around;
};

/// Like ProveStageBound, for a rank with several stages and any memory.
Time ProveRankBound(std::span<const RankStage> stages);

/// The value of ProveBound for any memory.
Time LowerBound(const Plan& plan, const CostModel& costs);

}  // namespace contraflow
