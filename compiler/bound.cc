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
#include <array>
#include <limits>
#include <vector>

#include "compiler/jackson.h"

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

Time ChunkBound(const Plan& plan, const CostModel& costs) {
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

constexpr size_t kCompute = 0, kAllToAll = 1;

/// The components of a chunk of one micro-batch; all stages are alike.
struct Components {
  std::array<Time, 2> forward{}, backward{};  ///< by lane
  Time weights = 0;
  Time attn_f, combine_f;         ///< the ends of the forward chain
  Time combine_b, mlp_b, attn_b;  ///< the ends of the backward chain
  Time last_weight;               ///< ATTN_W of the first layer

  Time forward_chain() const { return forward[kCompute] + forward[kAllToAll]; }
  Time backward_chain() const { return backward[kCompute] + backward[kAllToAll]; }
};

Components ComponentsOf(const CostModel& costs, int layers, int m) {
  const auto cost = [&](Op op, int layer) { return costs.Duration(Component(op, 0, layer, m)); };
  Components c;
  for (int layer = 0; layer < layers; ++layer) {
    c.forward[kCompute] += cost(Op::ATTN_F, layer) + cost(Op::MLP_F, layer);
    c.forward[kAllToAll] += cost(Op::DISPATCH_F, layer) + cost(Op::COMBINE_F, layer);
    c.backward[kCompute] += cost(Op::ATTN_B, layer) + cost(Op::MLP_B, layer);
    c.backward[kAllToAll] += cost(Op::DISPATCH_B, layer) + cost(Op::COMBINE_B, layer);
    c.weights += cost(Op::ATTN_W, layer) + cost(Op::MLP_W, layer);
  }
  c.attn_f = cost(Op::ATTN_F, 0);
  c.combine_f = cost(Op::COMBINE_F, layers - 1);
  c.combine_b = cost(Op::COMBINE_B, layers - 1);
  c.mlp_b = cost(Op::MLP_B, layers - 1);
  c.attn_b = cost(Op::ATTN_B, 0);
  c.last_weight = cost(Op::ATTN_W, 0);
  return c;
}

/// Adds a micro-batch's jobs to the ranks of its route and returns its critical path.
Time AddComponents(const Route& route, const Components& c, Time hop,
                   std::vector<std::array<Jackson, 2>>* ranks) {
  std::vector<Time> down(route.ranks.size());  // when the micro-batch comes to each stage
  for (size_t s = 1; s < down.size(); ++s) {
    down[s] = down[s - 1] + c.forward_chain() + (route.ranks[s - 1] == route.ranks[s] ? 0 : hop);
  }
  // The way back mirrors the way there: each stage's backward chain instead of its forward chain.
  const auto way_back = [&](size_t s) {
    return down[s] + static_cast<Time>(s) * (c.backward_chain() - c.forward_chain());
  };
  const size_t last = down.size() - 1;
  const Time turn = down[last] + c.forward_chain() + way_back(last);
  const Time all = turn + c.backward_chain() + c.last_weight;
  for (size_t s = 0; s < down.size(); ++s) {
    const Time forward_end = down[s] + c.forward_chain();
    const Time up = turn - way_back(s);  // when its gradient comes to the stage
    const Time after = way_back(s) + c.last_weight;
    auto& [compute, all_to_all] = (*ranks)[static_cast<size_t>(route.ranks[s])];
    compute.Add(down[s], c.forward[kCompute], c.combine_f + all - forward_end);
    all_to_all.Add(down[s] + c.attn_f, c.forward[kAllToAll], all - forward_end);
    compute.Add(up + c.combine_b, c.backward[kCompute], after);
    all_to_all.Add(up, c.backward[kAllToAll], c.attn_b + after);
    compute.Add(up + c.combine_b + c.mlp_b, c.weights, 0);
  }
  return all;
}

Time ComponentBound(const Plan& plan, const CostModel& costs) {
  const Time hop = costs.comm.latency + costs.comm.occupancy;
  std::vector<std::array<Jackson, 2>> ranks(static_cast<size_t>(plan.ranks));
  Time bound = 0;
  for (const Route& route : plan.routes) {
    for (const int m : route.microbatches) {
      const Components c = ComponentsOf(costs, plan.layers, m);
      bound = std::max(bound, AddComponents(route, c, hop, &ranks));
    }
  }
  for (auto& rank : ranks) {
    for (Jackson& lane : rank) bound = std::max(bound, lane.Makespan());
  }
  return bound;
}

}  // namespace

Time LowerBound(const Plan& plan, const CostModel& costs) {
  CheckCosts(costs, plan.stages, plan.microbatches, plan.layers);
  return plan.layers > 0 ? ComponentBound(plan, costs) : ChunkBound(plan, costs);
}

}  // namespace contraflow
