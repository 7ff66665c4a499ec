// Order of micro-batches. The longest path to an operation (positions.cc) is its head, the longest
// path from its end its tail, and for every set of operations of a rank makespan >= least head +
// durations + least tail; the largest is that of Jackson's preemptive schedule. If micro-batches
// differ, their work above the shortest is one more job, anywhere between the rank's first head and
// the end.
//
// Links. With a bandwidth the messages of a directed edge go one at a time, the k-th no earlier
// than its k-th producer ends, and its k-th consumer follows: an edge is one more lane.

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "compiler/bound/jackson.h"
#include "compiler/bound/positions.h"
#include "compiler/bound/work.h"

namespace contraflow {
namespace {

/// Jobs of one rank or link.
struct LaneJobs {
  std::vector<JobQueue> queues;
  Time head = std::numeric_limits<Time>::max();
  Time more = 0;  ///< work beyond that of the queues
};

void AddStage(const BoundInput& input, const Positions& order, size_t s, LaneJobs* lane) {
  const RouteWork& route = order.route();
  const CellWork& least = route.least[s];
  const Time saving = route.most[s].saving;
  const Time off_rest = std::min(least.weight, saving),
             off_b = std::min(least.b, saving - off_rest);
  const size_t at = order.At(s, 0);
  const auto add = [&](const std::vector<Time>& head, Time head_plus, const std::vector<Time>& left,
                       Time path, Time duration) {
    lane->queues.push_back(
        {head.data() + at, left.data() + at, head_plus, -path, duration, order.size()});
    lane->more -= duration * static_cast<Time>(order.size());
  };
  add(order.f_head, 0, order.f_left, least.f, least.f);
  add(order.b_head, 0, order.b_left, least.b, least.b - off_b);
  add(input.pairs ? order.b_head : order.w_head, 0, order.w_left, input.RestOfPosition(route, s),
      least.weight - off_rest);
  lane->head = std::min(lane->head, order.f_head[at]);
  for (size_t k = 0; k < order.size(); ++k) lane->more += route.At(s, k).work();
}

void AddMessages(const BoundInput& input, const Positions& order, size_t s,
                 std::map<std::pair<int, int>, LaneJobs>* links) {
  const RouteWork& route = order.route();
  const int upper = route.ranks[s - 1], lower = route.ranks[s];
  if (upper == lower) return;
  const size_t from = order.At(s - 1, 0), to = order.At(s, 0);
  (*links)[{upper, lower}].queues.push_back({order.f_head.data() + from, order.f_left.data() + to,
                                             route.least[s - 1].f, input.latency, input.occupancy,
                                             order.size()});
  (*links)[{lower, upper}].queues.push_back({order.b_head.data() + to, order.b_left.data() + from,
                                             route.least[s].b, input.latency, input.occupancy,
                                             order.size()});
}

void RaiseByLane(const LaneJobs& lane, Bound bound, Bound* best) {
  const QueueBound proof = ScheduleQueues(lane.queues);
  bound.value = proof.makespan;
  if (bound.value <= best->value) return;
  const auto [head, work, tail] = ReasonOf(lane.queues, proof);
  bound.head = head;
  bound.work = work;
  bound.tail = tail;
  KeepLarger(best, bound);
}

}  // namespace

void RaiseByOrder(const BoundInput& input, Bound* best) {
  std::vector<Positions> orders;
  orders.reserve(input.routes.size());
  for (const RouteWork& route : input.routes) orders.emplace_back(input, route);
  std::vector<LaneJobs> ranks(static_cast<size_t>(input.ranks));
  std::map<std::pair<int, int>, LaneJobs> links;
  for (const Positions& order : orders) {
    for (size_t s = 0; s < order.route().stages(); ++s) {
      AddStage(input, order, s, &ranks[static_cast<size_t>(order.route().ranks[s])]);
      if (s > 0 && input.exclusive) AddMessages(input, order, s, &links);
    }
  }
  for (int r = 0; r < input.ranks; ++r) {
    LaneJobs& lane = ranks[static_cast<size_t>(r)];
    if (lane.queues.empty()) continue;
    const Time none = 0;
    if (lane.more > 0) lane.queues.push_back({&lane.head, &none, 0, 0, lane.more, 1});
    RaiseByLane(lane, {.kind = BoundKind::kOrder, .rank = r}, best);
  }
  for (const auto& [edge, lane] : links) {
    RaiseByLane(lane, {.kind = BoundKind::kLink, .rank = edge.first, .peer = edge.second}, best);
  }
}

}  // namespace contraflow
