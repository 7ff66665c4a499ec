#pragma once

#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "compiler/lower/interleave.h"
#include "compiler/plan/plan.h"

namespace contraflow {

/// How the chunks of a rank share its compute and all-to-all lane.
struct Sharing {
  /// One chunk behind the other, each from the end of the one before on both lanes; it begins when
  /// all it needs is there, and what it makes leaves at its end. Weight parts run behind the
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
  ChunkShapes(const CostModel& costs, bool serial) : costs_(costs), serial_(serial) {}
  const ChunkShape& Of(const Instruction& chunk);

 private:
  MoeCost ScaledFor(int microbatch) const;

  const CostModel& costs_;
  const bool serial_;
  std::map<std::tuple<Chains, bool, double, double>, ChunkShape> shapes_;
};

/// Something that happened on a rank: a component, a message that left or is on its way, REDUCE or
/// STEP.
struct Happening {
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
  std::vector<Happening> log;
};

/// Lets all ranks run the chunks of a comm-level plan, in their order, component by component: at
/// every moment each idle lane takes the first component that is ready, earlier chunks first. A
/// rank begins no forward that would be its activation number `most_activations` + 1.
SharedRun ShareLanes(const Plan& plan, const CostModel& costs, ChunkShapes* shapes,
                     const Sharing& sharing, const std::vector<int>& most_activations, bool log);

}  // namespace contraflow
