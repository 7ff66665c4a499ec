#pragma once

// Declarations that the files of the bound share, and nobody else includes.

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "compiler/bound/bound.h"
#include "compiler/plan/memory_limit.h"

namespace contraflow {

/// Later than any time.
inline constexpr Time kNever = std::numeric_limits<Time>::max();
/// Lanes of a rank with components, as indices.
inline constexpr size_t kCompute = 0, kAllToAll = 1;

/// Work of a rank on a chunk; kRest is the part of a full backward that follows B.
enum class Pass : uint8_t { kForward, kBackward, kRest };

/// Least costs of the chunk of one stage and micro-batch for its rank. A full backward is B and
/// then the rest, the weight part: B gives its gradient after no less than b, and b + weight is the
/// cheaper of bw and b + w. The pair of a forward of chunk x and a full backward of chunk y takes,
/// by CostModel::Duration, no less than max(f of x, b of y, f of x + b + weight of y - saving of
/// y).
struct CellWork {
  Time f = 0, b = 0, weight = 0;
  Time saving = 0;       ///< 0 where a pair is no shorter than its parts
  Time recompute = 0;    ///< R between F and B; 0 where the chunk is not recomputed
  bool clipped = false;  ///< its forward may let a pair save more than `saving`

  Time work() const { return f + recompute + b + weight - saving; }
};

/// One micro-batch after the other through the stages of a route.
struct RouteWork {
  std::vector<int> ranks;        ///< by stage
  std::vector<Time> hop;         ///< into each stage from the one before it; 0 on the same rank
  size_t count = 0;              ///< micro-batches
  bool alike = true;             ///< they cost the same: `chunks` has one entry a stage
  std::vector<CellWork> chunks;  ///< by stage, and within it by micro-batch
  std::vector<CellWork> least;   ///< of each stage over the micro-batches, field by field
  std::vector<CellWork> most;
  /// Stages of which some chunk is recomputed, and so holds less than an activation between F and
  /// B, and whose ranks have more to do than F before their first B: what a memory limit says, and
  /// what windows say, is not about these.
  std::vector<bool> recomputed;
  /// Times around a route that is part of another: before the first F, between the last F and the
  /// first B, and after the last B of a micro-batch outside of it.
  Time head = 0, lag = 0, tail = 0;

  size_t stages() const { return ranks.size(); }
  const CellWork& At(size_t s, size_t k) const { return chunks[alike ? s : s * count + k]; }
};

/// The most backward work of `count` chunks that a rank can hold: the largest a backward +
/// (a + w) rest for a activations and w stashes.
Time MostHeld(const MemoryLimit& memory, int64_t count, Time backward, Time rest);

/// An instance as the bounds see it.
struct BoundInput {
  int ranks = 0;
  Time latency = 0, occupancy = 0;
  bool exclusive = false;  ///< one message at a time on each directed edge
  bool pairs = false;      ///< some pair is shorter than its parts
  std::vector<RouteWork> routes;
  std::optional<MemoryLimit> memory;   ///< with an amount, for any stage
  std::vector<MemoryLimit> memory_of;  ///< of each rank, by the stages it has; empty: no limit
  /// The shortest full backward of each rank. If there are pairs, every backward is followed on its
  /// rank by one that is in no pair, for a pair's forward has its backward still to come.
  std::vector<Time> least_backward;
  std::vector<bool> recomputes;  ///< ranks with a stage of which some chunk is recomputed

  Time hop() const { return latency + occupancy; }
  /// Least backward work still due after a stage's input gradient: the rest of its own backward or,
  /// had that been in a pair, a later backward.
  Time RestOnPath(const RouteWork& route, size_t s, const CellWork& chunk) const;
  /// The time from the end of the k-th B of a stage to the end of the k-th rest, at least.
  Time RestOfPosition(const RouteWork& route, size_t s) const {
    return pairs ? 0 : route.least[s].weight;
  }
};

/// Times of one stage and micro-batch that hold whatever the other micro-batches do.
struct ChunkTimes {
  Time head = 0;  ///< before its forward can start
  Time lag = 0;   ///< from the end of its forward to the start of its backward
  Time tail = 0;  ///< from the end of its input gradient to the end of the step
};

/// Times of every stage of micro-batch k.
std::vector<ChunkTimes> TimesOf(const BoundInput& input, const RouteWork& route, size_t k);

/// Least times of every stage, no longer than those of any micro-batch.
std::vector<ChunkTimes> LeastTimesOf(const BoundInput& input, const RouteWork& route);

/// Throws Error if no schedule fits the memory limit.
BoundInput MakeBoundInput(const Plan& plan, const CostModel& costs,
                          std::optional<int64_t> memory_limit);

/// A stage whose backward may be the first of its rank.
struct FirstBackwardIdle {
  Time wait = 0;  ///< from the rank's head to that of the stage
  Time lag = 0;   ///< from the end of its forward to the start of its backward
};

/// Least idle time of a rank before its first backward, if before that it runs no more than
/// `forwards` forwards of no more than `longest` each and has these stages. Derived where it is
/// computed.
Time IdleBeforeFirstBackward(const std::vector<FirstBackwardIdle>& openings, int64_t forwards,
                             Time longest);

/// Keeps the larger; of equal ones the first.
void KeepLarger(Bound* best, const Bound& bound);

/// Raise `best` if they prove more. With over `most_jobs` jobs of a kind and stage, micro-batches
/// with about the same work count as one.
void RaiseByChunks(const BoundInput& input, Bound* best, size_t most_jobs = 32);
void RaiseByOrder(const BoundInput& input, Bound* best);
void RaiseByWindows(const BoundInput& input, Bound* best);
void RaiseByRankWindows(const BoundInput& input, Bound* best);
void RaiseByArea(const BoundInput& input, Bound* best);
/// For plans that offload, with `input` for any memory.
void RaiseByStashes(const BoundInput& input, const CostModel& costs, int64_t limit, Bound* best);
void RaiseByHostLink(const Plan& plan, const CostModel& costs, Bound* best);
void RaiseByComponents(const Plan& plan, const CostModel& costs, Bound* best);
/// For plans that recompute nothing.
void RaiseByComponentWindows(const Plan& plan, const CostModel& costs, int64_t limit, Bound* best);

}  // namespace contraflow
