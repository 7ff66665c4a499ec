#pragma once

#include <string>
#include <vector>

#include "compiler/lower/interleave.h"

namespace contraflow {

// The same question as Interleave answers, answered in other ways. They share no code with it, or
// with each other.

/// One component of a chunk.
struct LaneJob {
  Op op;
  int layer;
  Time duration;
  bool all_to_all;         ///< its lane
  std::vector<int> after;  ///< jobs that must have ended
};

/// The components of these chains, forward chain first, then backward chain and weight parts.
std::vector<LaneJob> JobsOf(const MoeCost& forward, const MoeCost& backward, Chains chains);

/// Least makespan of all pairs of lane orders, one by one; for one layer.
Time ExhaustiveMakespan(const std::vector<LaneJob>& jobs);

/// Least makespan by running time forward from event to event: whenever a lane is idle it takes any
/// job that is ready, or waits for the other lane. Costs up to 65535, up to 4 layers.
Time EventMakespan(const std::vector<LaneJob>& jobs);

/// Makespan of these lane orders (indices into jobs), or -1 if they wait for each other in a
/// circle.
Time MakespanOf(const std::vector<LaneJob>& jobs, const std::vector<int>& compute,
                const std::vector<int>& all_to_all);

/// DeepSeek's order on both lanes, whatever the costs.
Time DeepSeekMakespan(const std::vector<LaneJob>& jobs, int layers);

/// "" if the spans are those of a run of all jobs: each once, lanes never doubly used, nothing
/// before what it waits for, the makespan the last end, and the issue order that of both lanes.
std::string FlawOfRun(const std::vector<LaneJob>& jobs, const Interleaving& run);

}  // namespace contraflow
