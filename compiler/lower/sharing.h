#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "compiler/lower/interleave.h"
#include "compiler/plan/plan.h"

namespace contraflow {

/// How the chunks of a rank share its compute and all-to-all lane.
struct LanePolicy {
  /// One chunk after the other, each from the end of the one before on both lanes; it begins when
  /// all it needs is there, and what it makes leaves at its end. Weight parts run after the
  /// backward chain, but for F&B pairs.
  bool serial = false;
  int window = 1;  ///< chunks that may be under way at once; a next one begins in the tail of these
  /// Components of a chunk as their data allows, backward chain first; else as Interleave orders
  /// them.
  bool free_order = false;
  /// How long a component of a later chunk may keep one of an earlier chunk waiting.
  Time patience = 0;
};

/// One component of a chunk, and what it costs there.
struct ChunkPart {
  Op op;
  int16_t layer;
  int lane;  ///< 0: compute, 1: all-to-all
  Time duration;
};

/// The components of a chunk or F&B pair: what its instruction becomes.
struct ChunkShape {
  /// A part by its place: chain 0 forward, 1 backward, 2 weights.
  struct Pick {
    int chain;
    size_t index;
  };
  std::vector<ChunkPart> chains[3];
  std::vector<size_t> release;  ///< of each weight part: how much of the backward chain it follows
  std::vector<Pick> order[2];   ///< issue order of the compute and of the all-to-all lane
};

/// The shapes of all chunks of a plan, each made once.
class ChunkShapes {
 public:
  ChunkShapes(const CostModel& costs, bool serial);
  const ChunkShape& Of(const Instruction& chunk);

 private:
  MoeCost ScaledFor(int stage, int microbatch) const;

  const CostModel& costs_;
  const bool serial_;
  std::vector<int> first_alike_;  // of each stage the first like it; empty: all are alike
  std::map<std::tuple<Chains, bool, RecomputeExtent, double, double, int, int>, ChunkShape> shapes_;
};

/// Something that happened on a rank: a component, a message that left or is on its way, REDUCE or
/// STEP.
struct Event {
  int rank;
  int chunk;  ///< of a component: which chunk of the rank's order it is part of; else -1
  Instruction instruction;
};

/// A run of all ranks with shared lanes.
struct SharedRun {
  Time makespan = 0;
  std::vector<int> peak_activations;  ///< of each rank
  /// If asked for: all that happened, in one order of the whole pipeline in which nothing comes
  /// before what it needs. Both ends of a message stand where it leaves.
  std::vector<Event> log;
};

/// Lets all ranks run the chunks of a comm-level plan, in their order, component by component: at
/// every moment each idle lane takes the first component that is ready, earlier chunks first. A
/// rank begins no forward that would be its activation number `most_activations` + 1.
SharedRun ShareLanes(const Plan& plan, const CostModel& costs, ChunkShapes* shapes,
                     const LanePolicy& policy, const std::vector<int>& most_activations, bool log);

// State of a run: for the two files that carry it out.

inline constexpr Time kUnknown = std::numeric_limits<Time>::max() / 4;

/// A chunk under way.
struct LaneBlock {
  const Instruction* chunk = nullptr;
  const ChunkShape* shape = nullptr;
  size_t done[3] = {0, 0, 0};  ///< parts begun of each chain; of the weights their number
  size_t taken[2] = {0, 0};    ///< of shape->order
  Time ready[2] = {0, 0};      ///< when the last part begun of either chain has ended
  std::vector<bool> weighed;   ///< weight parts begun
  /// Positions at which LaneState tells about its forward and backward chunk; 0 if it has none.
  size_t at[2] = {0, 0};
  size_t copy = 0;  ///< of the stage that its weights belong to
  int ordinal = 0;  ///< how many chunks with weights of that copy came before
  size_t left = 0;  ///< parts not begun
  bool begun = false;

  const ChunkPart& Next(int chain) const { return shape->chains[chain][done[chain]]; }
  bool Has(int chain) const { return done[chain] < shape->chains[chain].size(); }
};

/// State of a rank.
struct LaneRank {
  std::vector<LaneBlock> blocks;
  size_t first = 0;  ///< the first block that is not wholly begun
  Time free[2] = {0, 0};
  int activations = 0, peak = 0;
  size_t backward_left = 0;  ///< backward chains not ended yet
  std::vector<int> steps;    ///< stages whose STEP may run
};

/// One copy of a stage.
struct LaneCopy {
  int rank, stage;
  size_t weights_left = 0;      ///< weight parts not ended yet
  std::vector<int> weighed[2];  ///< MLP_W and ATTN_W begun, by layer
  int chunks = 0;
};

/// The whole pipeline at one moment of a run.
struct LaneState {
  int microbatches = 0;
  Time now = 0;
  std::vector<LaneRank> ranks;
  std::vector<LaneCopy> copies;
  /// When what a forward or backward chain begins with is there, and when either has ended, by
  /// At(stage, micro-batch); kUnknown while nobody knows. A recomputed forward has a chain of its
  /// own, which begins after the first and which the backward chain waits for; `recompute_end` is
  /// 0 where there is none.
  std::vector<Time> forward, backward, forward_end, backward_end, recompute_end;

  LaneRank& rank(int r) { return ranks[static_cast<size_t>(r)]; }
  const LaneRank& rank(int r) const { return ranks[static_cast<size_t>(r)]; }
  size_t At(int stage, int m) const {
    return static_cast<size_t>(stage) * static_cast<size_t>(microbatches) + static_cast<size_t>(m);
  }
};

/// A part that could begin now.
struct LaneChoice {
  static constexpr size_t kNobody = static_cast<size_t>(-1);

  size_t block = kNobody;
  int chain = 0;
  size_t weight = 0;  ///< which weight part, of chain 2
};

/// Returns the part that an idle lane of a rank should begin now; nobody's if none should.
LaneChoice ChoosePart(const LaneState& state, const LanePolicy& policy, int most_activations, int r,
                      int lane);

}  // namespace contraflow
