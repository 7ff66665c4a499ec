// The copies of one rank in one direction run one after the other.
//
//     to the host    none begins before the first forward of them has ended; after the last one
//                    its copy back and its backward follow
//     back           before the first one its forward and its copy to the host; after the last one
//                    its backward follows
//
// Either way: least head + all copies of the direction + least tail. Head and tail are those of the
// chain of one micro-batch through the stages, which every schedule has.

#include <algorithm>
#include <initializer_list>
#include <vector>

#include "compiler/bound/work.h"
#include "compiler/plan/plan.h"

namespace contraflow {
namespace {

/// The copies of one rank in one direction, so far.
struct LinkWork {
  Time copies = 0;
  Time head = kNever, tail = kNever, shortest = kNever;  // the least of any
};

/// From the start of the first to the end of the last of these components of a chunk, or of the
/// chunk, at least.
Time ChainOf(const CostModel& costs, int s, int m, int layers, Op whole,
             std::initializer_list<Op> components) {
  if (layers == 0) return costs.Duration(CellOp(whole, s, m));
  Time chain = 0;
  for (int layer = 0; layer < layers; ++layer) {
    for (const Op op : components) chain += costs.Duration(Component(op, s, layer, m));
  }
  return chain;
}

}  // namespace

void RaiseByHostLink(const Plan& plan, const CostModel& costs, Bound* best) {
  const OffloadedCells offloaded(plan);
  std::vector<LinkWork> ranks(static_cast<size_t>(plan.ranks));
  for (const Route& route : plan.routes) {
    for (const int m : route.microbatches) {
      // Up to the end of each forward; from the start of each backward on.
      Time forward = 0, backward = 0;
      for (int s = 0; s < plan.stages; ++s) {
        const int rank = route.ranks[static_cast<size_t>(s)];
        const bool hop = s > 0 && route.ranks[static_cast<size_t>(s) - 1] != rank;
        const Time message = hop ? costs.comm.latency + costs.comm.occupancy : 0;
        forward += message + ChainOf(costs, s, m, plan.LayersOf(s), Op::F,
                                     {Op::ATTN_F, Op::DISPATCH_F, Op::MLP_F, Op::COMBINE_F});
        backward += message + ChainOf(costs, s, m, plan.LayersOf(s), Op::B,
                                      {Op::COMBINE_B, Op::MLP_B, Op::DISPATCH_B, Op::ATTN_B});
        if (!offloaded.Has(s, m)) continue;
        LinkWork& link = ranks[static_cast<size_t>(rank)];
        const Time copy = costs.Duration(CellOp(Op::OFFLOAD, s, m));
        link.head = std::min(link.head, forward);
        link.tail = std::min(link.tail, backward);
        link.shortest = std::min(link.shortest, copy);
        link.copies += copy;
      }
    }
  }
  for (size_t r = 0; r < ranks.size(); ++r) {
    const LinkWork& link = ranks[r];
    if (link.head == kNever) continue;
    const Time tail = link.shortest + link.tail;
    KeepLarger(best, {.value = link.head + link.copies + tail,
                      .kind = BoundKind::kHostLink,
                      .rank = static_cast<int>(r),
                      .head = link.head,
                      .work = link.copies,
                      .tail = tail});
  }
}

}  // namespace contraflow
