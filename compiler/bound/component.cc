// Lanes. A rank's components run on two lanes, one after the other on each. For every job of a lane
// its head is the time before its micro-batch can have come to it and its tail what must follow it
// on the micro-batch's way; the largest of (least head + durations + least tail) over all sets of
// jobs is the makespan of Jackson's preemptive schedule. Components may overlap in any other way.
// A recomputed forward chain is run a second time, between the first and the backward chain.

#include <algorithm>
#include <array>
#include <functional>
#include <vector>

#include "compiler/bound/jackson.h"
#include "compiler/bound/work.h"
#include "compiler/plan/recomputed.h"

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
  const Time again = recomputed(last) ? c.forward_chain() : 0;
  const Time turn = down[last] + c.forward_chain() + again + way_back(last);
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

}  // namespace

void RaiseByComponents(const Plan& plan, const CostModel& costs, Bound* best) {
  const Time hop = costs.comm.latency + costs.comm.occupancy;
  const RecomputedCells chunks(plan);
  std::vector<std::array<Jackson, 2>> ranks(static_cast<size_t>(plan.ranks));
  for (const Route& route : plan.routes) {
    for (const int m : route.microbatches) {
      const Components c = ComponentsOf(costs, plan.layers, m);
      const auto recomputed = [&](size_t s) { return chunks.Has(static_cast<int>(s), m); };
      const Time path = AddComponents(route, c, hop, recomputed, &ranks);
      Raise(best, {.value = path, .kind = BoundKind::kCriticalPath, .work = path});
    }
  }
  for (int r = 0; r < plan.ranks; ++r) {
    for (Jackson& lane : ranks[static_cast<size_t>(r)]) {
      const Time value = lane.Makespan();
      if (value <= best->value) continue;
      const auto [head, work, tail] = lane.Binding();
      Raise(best, {.value = value,
                   .kind = BoundKind::kLane,
                   .rank = r,
                   .head = head,
                   .work = work,
                   .tail = tail});
    }
  }
}

}  // namespace contraflow
