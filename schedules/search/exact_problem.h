#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "compiler/plan/plan.h"
#include "compiler/plan/rank_memory.h"

namespace contraflow {

/// Work done of a chunk. One that is not recomputed is ready as soon as its forward has run.
enum class ChunkState : uint8_t { kNothing, kForward, kReady, kBackward, kAll };

/// One stage of one micro-batch, as the exact search sees it. Places of other chunks: -1: none.
struct ExactChunk {
  int stage = 0, microbatch = 0, rank = 0;
  int before = -1, after = -1;  ///< the chunk of the stage before, of the stage after it
  int twin = -1;  ///< the same of the micro-batch before it, if micro-batches cost the same
  int edge_before = -1, edge_after = -1;  ///< that messages queue on
  Time hop_before = 0, hop_after = 0;
  Time f = 0, b = 0, w = 0, bw = 0;
  Time r = 0;     ///< where it is recomputed
  Time rest = 0;  ///< time that the cheaper of BW and B, W adds to B
  bool recomputed = false;
  CellBytes memory = {};
  /// The least time from the end of one to the end of the step.
  Time forward_tail = 0, again_tail = 0, backward_tail = 0;
};

/// Something that a rank has to do, for a bound on what is left.
struct ExactJob {
  ChunkState until = ChunkState::kNothing;  ///< it is left to do as long as no more is done
  int chunk = 0;
  Time duration = 0;  ///< the least that it adds to the work of the rank
  Time tail = 0;
};

/// A frame with few chunks: all schedules of it can be looked at.
struct ExactProblem {
  static constexpr size_t kMostChunks = 42, kMostRanks = 16, kMostEdges = 64;

  /// `recomputed`: stages whose chunks are, by number. None if there are too many chunks, ranks or
  /// edges. The costs must fit the frame (CheckCosts).
  static std::optional<ExactProblem> Of(const Plan& frame, const CostModel& costs,
                                        const std::vector<int64_t>& rooms,
                                        const std::vector<int>& recomputed);

  std::vector<ExactChunk> chunks;
  std::vector<std::vector<ExactJob>> jobs;  ///< of each rank, those with long tails first
  std::vector<std::vector<Time>> pair;      ///< FB of a forward and a backward; empty without pairs
  std::vector<int64_t> rooms;               ///< of each rank; empty: anything fits
  Time latency = 0;                         ///< of a message
  size_t edges = 0;
  size_t ranks = 0;

  const ExactChunk& chunk(int c) const { return chunks[static_cast<size_t>(c)]; }
};

/// Chunks that have been started, and when the next ones can start.
struct ExactState {
  Time now = 0;  ///< nothing starts before it any more
  Time end = 0;  ///< of all that has been started
  std::array<ChunkState, ExactProblem::kMostChunks> done = {};
  /// Times of a chunk, when its input is there, and when its B, or then its W, can run.
  std::array<Time, ExactProblem::kMostChunks> forward_at = {}, next_at = {};
  std::array<Time, ExactProblem::kMostRanks> free = {};
  std::array<int64_t, ExactProblem::kMostRanks> held = {};
  std::array<Time, ExactProblem::kMostEdges> edge_free = {};

  ChunkState of(int c) const { return done[static_cast<size_t>(c)]; }
};

/// One way to go on.
struct ExactChoice {
  Op op = Op::F;
  int chunk = 0;
  int back = 0;  ///< the chunk of the backward; of a forward alone the same
  int rank = 0;
  Time start = 0, duration = 0;
  Time least = 0;  ///< LeastEnd of what it leads to
};

/// All operations that can be started, each as early as it can.
void FindChoices(const ExactProblem& problem, const ExactState& state,
                 std::vector<ExactChoice>* choices);

void Start(const ExactProblem& problem, const ExactChoice& choice, ExactState* state);

/// Least end of any way to go on; ends early at `enough`.
Time LeastEnd(const ExactProblem& problem, const ExactState& state, Time enough);

}  // namespace contraflow
