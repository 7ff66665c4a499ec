// Lanes. A rank's components run on two lanes, one after the other on each. For every job of a lane
// its head is the time before its micro-batch can have come to it and its tail what must follow it
// on the micro-batch's way; the largest of (least head + durations + least tail) over all sets of
// jobs is the makespan of Jackson's preemptive schedule. Components may overlap in any other way.
// A recomputed part of a forward chain counts for nothing; a whole
// recomputed forward chain is run a second time, between the first and the backward chain.
//
// Windows of a rank whose components share two lanes, with a memory limit. Any components may
// overlap, but:
//
//   * Until the first gradient has come to a rank it can only run forwards, of no more chunks than
//     it may hold between F and B.
//   * When a lane has run the last of its forward components (of chunk x, say), everything that is
//     left for it belongs to chunks that the rank holds: x and others between F and B, with all of
//     their backward and weight parts, and those behind their B, with their weight parts. Until
//     the end of the step no less passes than x still needs, down to the last stage and all the way
//     back.
//
// What this work does not fill of the two windows the lane is idle. They do not meet where memory
// is for fewer chunks than there are, since then some forward waits for the end of a backward; else
// only the larger idle counts. On either lane:
//
//     makespan >= head + work + idle + idle.

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "compiler/bound/jackson.h"
#include "compiler/bound/work.h"
#include "compiler/plan/plan.h"

namespace contraflow {
namespace {

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
                   const std::function<bool(size_t)>& recomputed,
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
  const Time recompute = recomputed(last) ? c.forward_chain() : 0;
  const Time turn = down[last] + c.forward_chain() + recompute + way_back(last);
  const Time all = turn + c.backward_chain() + c.last_weight;
  for (size_t s = 0; s < down.size(); ++s) {
    const Time forward_end = down[s] + c.forward_chain();
    const Time up = turn - way_back(s);  // when its gradient comes to the stage
    const Time after = way_back(s) + c.last_weight;
    auto& [compute, all_to_all] = (*ranks)[static_cast<size_t>(route.ranks[s])];
    compute.Add(down[s], c.forward[kCompute], c.combine_f + all - forward_end);
    all_to_all.Add(down[s] + c.attn_f, c.forward[kAllToAll], all - forward_end);
    if (recomputed(s)) {
      const Time back = c.backward_chain() + after;
      compute.Add(forward_end, c.forward[kCompute], c.combine_f + back);
      all_to_all.Add(forward_end + c.attn_f, c.forward[kAllToAll], back);
    }
    compute.Add(up + c.combine_b, c.backward[kCompute], after);
    all_to_all.Add(up, c.backward[kAllToAll], c.attn_b + after);
    compute.Add(up + c.combine_b + c.mlp_b, c.weights, 0);
  }
  return all;
}

/// One lane of a rank.
struct LaneFigures {
  Time head = kNever;   ///< before it no component runs
  Time first = kNever;  ///< before it no backward component runs
  Time last = kNever;   ///< from the end of its last forward component to the end of the step
  Time longest_f = 0, longest_b = 0, longest_w = 0;  ///< of a chunk
  Time work = 0;
};

struct LaneWindows {
  std::array<LaneFigures, 2> lanes;
  int64_t count = 0;  ///< chunks
};

/// Adds the chunks of a micro-batch to the ranks of its route.
void Add(const Route& route, const Components& work, Time hop, std::vector<LaneWindows>* ranks) {
  const size_t stages = route.ranks.size();
  std::vector<Time> hops(stages, 0);  // of the way to each stage
  for (size_t s = 1; s < stages; ++s) {
    hops[s] = hops[s - 1] + (route.ranks[s - 1] == route.ranks[s] ? 0 : hop);
  }
  const Time turn = static_cast<Time>(stages) * work.forward_chain() + hops[stages - 1];
  const Time all = turn + hops[stages - 1] + static_cast<Time>(stages) * work.backward_chain() +
                   work.last_weight;
  for (size_t s = 0; s < stages; ++s) {
    const auto before = static_cast<Time>(s);
    const Time down = before * work.forward_chain() + hops[s];
    const Time end = down + work.forward_chain();
    const Time up = turn + static_cast<Time>(stages - 1 - s) * work.backward_chain() +
                    hops[stages - 1] - hops[s];
    LaneWindows& rank = (*ranks)[static_cast<size_t>(route.ranks[s])];
    ++rank.count;
    for (const size_t which : {kCompute, kAllToAll}) {
      LaneFigures& lane = rank.lanes[which];
      const bool compute = which == kCompute;
      const Time weights = compute ? work.weights : 0;
      lane.head = std::min(lane.head, down + (compute ? 0 : work.attn_f));
      lane.first = std::min(lane.first, up + (compute ? work.combine_b : 0));
      lane.last = std::min(lane.last, all - end + (compute ? work.combine_f : 0));
      lane.longest_f = std::max(lane.longest_f, work.forward[which]);
      lane.longest_b = std::max(lane.longest_b, work.backward[which]);
      lane.longest_w = std::max(lane.longest_w, weights);
      lane.work += work.forward[which] + work.backward[which] + weights;
    }
  }
}

Bound BoundOfLane(const LaneFigures& lane, int64_t count, const MemoryLimit& memory) {
  const int64_t slots = std::min(memory.slots(), count);
  const Time first = std::max<Time>(0, lane.first - lane.head - slots * lane.longest_f);
  const Time last =
      std::max<Time>(0, lane.last - MostHeld(memory, count, lane.longest_b, lane.longest_w));
  const Time idle = slots == count ? std::max(first, last) : first + last;
  return {.value = lane.head + lane.work + idle,
          .kind = BoundKind::kTwoWindows,
          .head = lane.head,
          .work = lane.work,
          .idle = idle};
}

}  // namespace

void RaiseByComponents(const Plan& plan, const CostModel& costs, Bound* best) {
  const Time hop = costs.comm.latency + costs.comm.occupancy;
  const RecomputedCells chunks(plan);
  std::vector<std::array<Jackson, 2>> ranks(static_cast<size_t>(plan.ranks));
  for (const Route& route : plan.routes) {
    for (const int m : route.microbatches) {
      const Components c = ComponentsOf(costs, plan.layers, m);
      const auto recomputed = [&](size_t s) {
        const int stage = static_cast<int>(s);
        return chunks.Has(stage, m) && chunks.part(stage) == RecomputePart::kFull;
      };
      const Time path = AddComponents(route, c, hop, recomputed, &ranks);
      KeepLarger(best, {.value = path, .kind = BoundKind::kCriticalPath, .work = path});
    }
  }
  for (int r = 0; r < plan.ranks; ++r) {
    for (Jackson& lane : ranks[static_cast<size_t>(r)]) {
      const Time value = lane.Makespan();
      if (value <= best->value) continue;
      const auto [head, work, tail] = lane.Binding();
      KeepLarger(best, {.value = value,
                        .kind = BoundKind::kLane,
                        .rank = r,
                        .head = head,
                        .work = work,
                        .tail = tail});
    }
  }
}

void RaiseByComponentWindows(const Plan& plan, const CostModel& costs, int64_t limit, Bound* best) {
  const MemoryLimit memory(costs, limit);
  const Time hop = costs.comm.latency + costs.comm.occupancy;
  std::vector<LaneWindows> ranks(static_cast<size_t>(plan.ranks));
  for (const Route& route : plan.routes) {
    for (const int m : route.microbatches) {
      Add(route, ComponentsOf(costs, plan.layers, m), hop, &ranks);
    }
  }
  for (int r = 0; r < plan.ranks; ++r) {
    const LaneWindows& rank = ranks[static_cast<size_t>(r)];
    if (rank.count == 0) continue;
    for (const LaneFigures& lane : rank.lanes) {
      Bound bound = BoundOfLane(lane, rank.count, memory);
      bound.rank = r;
      KeepLarger(best, bound);
    }
  }
}

}  // namespace contraflow
