// Order of micro-batches. Number the forwards of one stage in the order in which its rank runs
// them, whatever their micro-batches, and likewise its backwards and its rests. What holds between
// one micro-batch's forwards of two stages holds between the k-th of the one and the k-th of the
// other: of k micro-batches that have come through a stage, k have come through the one before it.
// With the shortest f, b and rest of every stage,
//
//     F of s + 1, k   starts no earlier than   F of s, k   + f + hop       (likewise B upwards)
//     B of the last, k                         F of the last, k + f
//     W of s, k                                B of s, k   + b
//     F of s, k + 1                            F of s, k   + f             (likewise B, W)
//     B of s, k                                F of s, k   + f + R         where recomputed
//
// A memory limit adds more (bound_rules.cc).
//
// The longest path to an operation is its head, the longest path from its end its tail, and for
// every set of operations of a rank makespan >= least head + durations + least tail; the largest is
// that of Jackson's preemptive schedule. Where micro-batches differ, what their work is more than
// the shortest is one job more, anywhere between the rank's first head and the end. Pairs as in
// bound_chunk.cc, and no path counts a rest that could be part of one.
//
// Links. With a bandwidth the messages of a directed edge go one at a time, the k-th no earlier
// than its k-th producer ends, and its k-th consumer follows: an edge is one more lane.

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "compiler/bound_queue.h"
#include "compiler/bound_rules.h"
#include "compiler/bound_stretch.h"
#include "compiler/bound_work.h"

namespace contraflow {
namespace {

/// Looking at more of the latest than this would no longer be linear in chunks; the bound is none
/// the less valid without.
constexpr size_t kMostTogether = 64;

/// Longest paths of one route: `head` to the start of an operation, `left` from its start to the
/// end of the step; by stage, and within it by position.
class Order {
 public:
  Order(const BoundInput& input, const RouteWork& route)
      : input_(input),
        route_(route),
        size_(route.count),
        rules_(RulesOf(input, route)),
        remainder_(RemainderOf(input, route)),
        to_(3 * route.stages()),
        from_(to_) {
    for (const Stretch& stretch : StretchesOf(input, route)) {
      to_[Of(stretch.to, stretch.to_stage)].push_back({stretch, -stretch.each});
      from_[Of(stretch.from, stretch.from_stage)].push_back({stretch, -stretch.each});
    }
    const size_t all = route.stages() * size_;
    for (auto* times : {&f_head, &b_head, &w_head, &f_left, &b_left, &w_left}) {
      times->assign(all, 0);
    }
    FindHeads();
    FindTails();
  }

  std::vector<Time> f_head, b_head, w_head, f_left, b_left, w_left;

  const RouteWork& route() const { return route_; }
  size_t size() const { return size_; }
  size_t At(size_t s, size_t k) const { return s * size_ + k; }
  Time RestOf(size_t s) const { return input_.RestOfPosition(route_, s); }

 private:
  /// The largest of `times` (each with its stage's `plus`) at numbers below k, but for the `spared`
  /// largest: of a few ascending lists, from their ends. 0 where there are none.
  template <typename Plus>
  Time Latest(const std::vector<size_t>& stages, const std::vector<Time>& times, Plus plus,
              size_t k, size_t spared) const {
    if (spared > kMostTogether || spared >= k * stages.size()) return 0;
    std::vector<size_t>& next = latest_;  // how many of each list are left
    next.assign(stages.size(), k);
    for (;; --spared) {
      size_t best = stages.size();
      Time largest = -1;
      for (size_t i = 0; i < stages.size(); ++i) {
        if (next[i] == 0) continue;
        const Time time = times[At(stages[i], next[i] - 1)] + plus(stages[i]);
        if (time <= largest) continue;
        largest = time;
        best = i;
      }
      if (spared == 0) return largest;
      --next[best];
    }
  }

  /// When enough of what precedes F of s, k together has ended.
  Time HeadTogether(size_t s, size_t k) const {
    const Together& together = rules_.together[s];
    if (together.stages.empty()) return 0;
    const auto b = [this](size_t stage) { return route_.least[stage].b; };
    const auto rest = [this](size_t stage) { return RestOf(stage); };
    return std::max(Latest(together.stages, b_head, b, k, together.backwards),
                    Latest(together.stages, w_head, rest, k, together.rests));
  }

  /// What follows the end of B of s, k by the forwards that come after it together.
  Time LeftTogether(size_t s, size_t k) const {
    const Together& together = rules_.together[s];
    const size_t spared = together.backwards, stages = together.stages.size();
    if (stages == 0 || spared > kMostTogether || spared >= (size_ - k - 1) * stages) return 0;
    std::vector<size_t>& next = latest_;  // of each list, whose latest are the last
    next.assign(stages, k + 1);
    for (size_t left = spared;; --left) {
      size_t best = stages;
      Time largest = -1;
      for (size_t i = 0; i < stages; ++i) {
        if (next[i] == size_) continue;
        const Time time = f_left[At(together.stages[i], next[i])];
        if (time <= largest) continue;
        largest = time;
        best = i;
      }
      if (left == 0) return largest;
      ++next[best];
    }
  }

  std::vector<Time>& HeadsOf(Pass from) {
    if (from == Pass::kForward) return f_head;
    return from == Pass::kBackward ? b_head : w_head;
  }

  /// By operation, `stages` apart.
  size_t Of(Pass pass, size_t s) const { return static_cast<size_t>(pass) * route_.stages() + s; }

  /// The head of an operation by what its rank has to do before it; for k = 0, 1, ..
  Time Pull(Pass pass, size_t s, size_t k) {
    Time head = 0;
    for (auto& [stretch, longest] : to_[Of(pass, s)]) {
      const Time start = HeadsOf(stretch.from)[At(stretch.from_stage, k)];
      longest = std::max(start + stretch.once, longest + stretch.each);
      head = std::max(head, longest);
    }
    return head;
  }

  /// What is left from its start on, likewise; for k = .., 1, 0.
  Time Push(Pass pass, size_t s, size_t k) {
    Time left = 0;
    for (auto& [stretch, longest] : from_[Of(pass, s)]) {
      const Time start = LeftOf(stretch.to)[At(stretch.to_stage, k)];
      longest = std::max(start + stretch.once, longest + stretch.each);
      left = std::max(left, longest);
    }
    return left;
  }

  void FindHeads() {
    const size_t stages = route_.stages();
    for (size_t k = 0; k < size_; ++k) {
      const auto behind = [&](const std::vector<Time>& head, size_t s, Time duration) {
        return k == 0 ? 0 : head[At(s, k - 1)] + duration;
      };
      for (size_t s = 0; s < stages; ++s) {
        Time head = behind(f_head, s, route_.least[s].f);
        if (s > 0) {
          head = std::max(head, f_head[At(s - 1, k)] + route_.least[s - 1].f + route_.hop[s]);
        }
        for (const Precedence& p : rules_.before[s]) {
          if (k < p.shift) continue;
          head = std::max(head, HeadsOf(p.from)[At(p.from_stage, k - p.shift)] + p.delay);
        }
        const Time work = Pull(Pass::kForward, s, k);
        f_head[At(s, k)] = std::max({head, HeadTogether(s, k), work});
      }
      for (size_t s = stages; s-- > 0;) {
        const ChunkWork& least = route_.least[s];
        const Time ready = s + 1 == stages
                               ? f_head[At(s, k)] + least.f
                               : b_head[At(s + 1, k)] + route_.least[s + 1].b + route_.hop[s + 1];
        b_head[At(s, k)] =
            std::max({ready, behind(b_head, s, least.b), f_head[At(s, k)] + least.f + least.again,
                      Pull(Pass::kBackward, s, k)});
        w_head[At(s, k)] = std::max(
            {b_head[At(s, k)] + least.b, behind(w_head, s, RestOf(s)), Pull(Pass::kRest, s, k)});
      }
    }
  }

  void FindTails() {
    const size_t stages = route_.stages();
    for (size_t k = size_; k-- > 0;) {
      // What a later position asks of this one is final when this one is visited: shifts are >= 1.
      const auto ahead = [&](const std::vector<Time>& left, size_t s) {
        return k + 1 == size_ ? 0 : left[At(s, k + 1)];
      };
      for (const Precedence& p : rules_.precedences) {
        if (k + p.shift >= size_) continue;
        const Time left = p.delay + f_left[At(p.to_stage, k + p.shift)];
        Time& own = LeftOf(p.from)[At(p.from_stage, k)];
        own = std::max(own, left);
      }
      for (size_t s = 0; s < stages; ++s) {
        const ChunkWork& least = route_.least[s];
        Time& w = w_left[At(s, k)];
        w = std::max(w, RestOf(s) + ahead(w_left, s));
        Time& b = b_left[At(s, k)];
        Time after = std::max({input_.RestOnPath(route_, s, least), w, ahead(b_left, s)});
        if (s > 0) after = std::max(after, route_.hop[s] + b_left[At(s - 1, k)]);
        after = std::max(after, LeftTogether(s, k));
        const Time all = remainder_.backward[s] * static_cast<Time>(size_ - k);
        b = std::max({b, least.b + after, all, Push(Pass::kBackward, s, k)});
      }
      for (size_t s = stages; s-- > 0;) {
        Time& f = f_left[At(s, k)];
        const Time next =
            s + 1 == stages ? b_left[At(s, k)] : route_.hop[s + 1] + f_left[At(s + 1, k)];
        const Time own = route_.least[s].again + b_left[At(s, k)];
        const Time all = remainder_.forward[s] * static_cast<Time>(size_ - k);
        f = std::max({f, route_.least[s].f + std::max({next, own, ahead(f_left, s)}), all,
                      Push(Pass::kForward, s, k)});
      }
    }
  }

  std::vector<Time>& LeftOf(Pass from) {
    if (from == Pass::kForward) return f_left;
    return from == Pass::kBackward ? b_left : w_left;
  }

  const BoundInput& input_;
  const RouteWork& route_;
  const size_t size_;
  const MemoryRules rules_;
  const Remainder remainder_;
  struct Reach {
    Stretch stretch;
    Time longest;  ///< with the positions so far
  };
  std::vector<std::vector<Reach>> to_, from_;  // stretches by their ends
  mutable std::vector<size_t> latest_;         // of Latest and LeftTogether, to allocate once
};

/// What one rank or link has to do.
struct LaneJobs {
  std::vector<JobQueue> queues;
  Time head = std::numeric_limits<Time>::max();
  Time more = 0;  ///< work beyond that of the queues
};

void AddStage(const BoundInput& input, const Order& order, size_t s, LaneJobs* lane) {
  const RouteWork& route = order.route();
  const ChunkWork& least = route.least[s];
  const Time saving = route.most[s].saving;
  const Time off_rest = std::min(least.rest, saving), off_b = std::min(least.b, saving - off_rest);
  const size_t at = order.At(s, 0);
  const auto add = [&](const std::vector<Time>& head, Time head_plus, const std::vector<Time>& left,
                       Time path, Time duration) {
    lane->queues.push_back(
        {head.data() + at, left.data() + at, head_plus, -path, duration, order.size()});
    lane->more -= duration * static_cast<Time>(order.size());
  };
  add(order.f_head, 0, order.f_left, least.f, least.f);
  add(order.b_head, 0, order.b_left, least.b, least.b - off_b);
  add(input.pairs ? order.b_head : order.w_head, 0, order.w_left, order.RestOf(s),
      least.rest - off_rest);
  lane->head = std::min(lane->head, order.f_head[at]);
  for (size_t k = 0; k < order.size(); ++k) lane->more += route.At(s, k).work();
}

void AddMessages(const BoundInput& input, const Order& order, size_t s,
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
  Raise(best, bound);
}

}  // namespace

void RaiseByOrder(const BoundInput& input, Bound* best) {
  std::vector<Order> orders;
  orders.reserve(input.routes.size());
  for (const RouteWork& route : input.routes) orders.emplace_back(input, route);
  std::vector<LaneJobs> ranks(static_cast<size_t>(input.ranks));
  std::map<std::pair<int, int>, LaneJobs> links;
  for (const Order& order : orders) {
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
