// Every figure here is a proof, so each states why no schedule can be faster.
//
// Head + busy. A rank cannot begin before a micro-batch has come through all stages upstream of one
// of its own (head), and then has all its work to do, one instruction after the other (busy), so T
// >= head + busy. Each chunk costs f and the cheaper of bw and b + w, unless an FB joins a forward
// of chunk x with a full backward of chunk y. By CostModel::Duration that saves at most
// min(saving(x), saving(y)) <= saving(x) / 2 + saving(y) / 2 with saving = f + bw - fb. A chunk is
// in at most two pairs, once with its forward and once with its backward, so all pairs together
// save at most the sum of saving over the chunks of the rank. The rank's first instruction is a
// forward alone (no backward is possible yet) and its last backward is alone too (an FB leaves
// another one to do): half a saving each is never made, and together they are at least the smallest
// saving of a chunk.
//
// Critical path. A micro-batch goes down and up all stages, over every hop twice, and ends with the
// weight gradient of stage 0. F lasts at least f and an input gradient at least min(b, bw), alone
// or in a pair.

#include "compiler/bound.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "compiler/error.h"

namespace contraflow {
namespace {

constexpr Time kNever = std::numeric_limits<Time>::max();

struct RankWork {
  Time head = kNever;
  Time busy = 0;
  Time least_saving = kNever;

  Time Bound() const { return head == kNever ? 0 : head + busy + least_saving; }
};

/// What the chunk of one stage and micro-batch costs its rank, at least.
struct ChunkWork {
  Time f, b, w, bw, saving;
};

ChunkWork WorkOfChunk(const CostModel& costs, int stage, int m) {
  const auto duration = [&](Op op) { return costs.Duration(Chunk(op, stage, m)); };
  const Time f = duration(Op::F), bw = duration(Op::BW);
  const Time pair = costs.Duration(Pair(stage, m, stage, m));
  return {f, duration(Op::B), duration(Op::W), bw, f + bw - pair};
}

/// Adds a micro-batch's work to the ranks of its route and returns its critical path.
Time AddMicrobatch(const Route& route, int m, const CostModel& costs,
                   std::vector<RankWork>* ranks) {
  const Time hop = costs.comm.latency + costs.comm.occupancy;
  Time down = 0, up = 0, last_weight = 0;
  for (size_t s = 0; s < route.ranks.size(); ++s) {
    if (s > 0 && route.ranks[s - 1] != route.ranks[s]) {
      down += hop;
      up += hop;
    }
    const ChunkWork work = WorkOfChunk(costs, static_cast<int>(s), m);
    RankWork& rank = (*ranks)[static_cast<size_t>(route.ranks[s])];
    rank.head = std::min(rank.head, down);
    rank.busy += work.f + std::min(work.bw, work.b + work.w) - work.saving;
    rank.least_saving = std::min(rank.least_saving, work.saving);
    down += work.f;
    up += std::min(work.b, work.bw);
    if (s == 0) last_weight = std::min(work.b + work.w, work.bw) - std::min(work.b, work.bw);
  }
  return down + up + last_weight;
}

}  // namespace

Time LowerBound(const Plan& plan, const CostModel& costs) {
  CheckCosts(costs, plan.stages, plan.microbatches);
  std::vector<RankWork> ranks(static_cast<size_t>(plan.ranks));
  Time bound = 0;
  for (const Route& route : plan.routes) {
    for (const int m : route.microbatches) {
      bound = std::max(bound, AddMicrobatch(route, m, costs, &ranks));
    }
  }
  for (const RankWork& rank : ranks) bound = std::max(bound, rank.Bound());
  return bound;
}

}  // namespace contraflow
