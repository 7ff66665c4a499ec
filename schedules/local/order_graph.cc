#include "schedules/local/order_graph.h"

#include <algorithm>
#include <numeric>

#include "compiler/plan/error.h"
#include "schedules/search/noise_draw.h"

namespace contraflow {

OrderGraph::OrderGraph(const SearchProblem& problem, const Order& order, const NoiseDraw* draw)
    : problem_(problem) {
  hop_ = problem.costs.comm.latency + problem.costs.comm.occupancy;
  Build(order, draw);
  Link();
  Sort();
  for (const std::vector<int32_t>& list : lists_) {
    const Time end = list.empty() ? 0 : At(list.back()).head + At(list.back()).duration;
    ends_.push_back(end);
    rank_ends_ += end;
    makespan_ = std::max(makespan_, end);
  }
  for (size_t position = sorted_.size(); position-- > 0;) {
    Node& node = At(sorted_[position]);
    node.tail = TailOf(node);
  }
}

/// Names the chunks of each action.
void OrderGraph::Build(const Order& order, const NoiseDraw* draw) {
  StageCounts counts(problem_.stages.size());
  for (size_t r = 0; r < order.size(); ++r) {
    std::vector<int32_t>& list = lists_.emplace_back();
    std::vector<int64_t>& levels = levels_.emplace_back();
    int64_t level = 0;
    for (const Action& action : order[r]) {
      const int32_t back = BackStage(action);
      Role role = {.taken = problem_.Taken(action), .given = problem_.Given(action)};
      Node node;
      node.rank = static_cast<int32_t>(r);
      node.place = static_cast<int32_t>(list.size());
      if (HasForward(action.op)) {
        role.f_stage = action.stage;
        role.f = counts[action.stage].f;
      }
      if (HasBackward(action.op)) {
        role.b_stage = back;
        role.b = counts[back].b;
      }
      if (HasWeight(action.op)) {
        role.w_stage = back;
        role.w = counts[back].w;
      }
      counts.Pass(action);
      const int k = HasForward(action.op) ? role.f : HasBackward(action.op) ? role.b : role.w;
      node.duration = draw != nullptr ? draw->Duration(action, k, role.b)
                                      : problem_.Duration(action, k, role.b);
      levels.push_back(level);
      level += role.taken - role.given;
      list.push_back(static_cast<int32_t>(nodes_.size()));
      nodes_.push_back(node);
      roles_.push_back(role);
      actions_.push_back(action);
    }
  }
}

/// Finds what each action waits for.
void OrderGraph::Link() {
  const auto nodes = static_cast<int32_t>(nodes_.size());
  std::vector<int32_t> forward(static_cast<size_t>(problem_.chunks()), kNone), backward = forward;
  for (int32_t n = 0; n < nodes; ++n) {
    const Role& role = RoleOf(n);
    if (role.f_stage >= 0) forward[problem_.Chunk(role.f_stage, role.f)] = n;
    if (role.b_stage >= 0) backward[problem_.Chunk(role.b_stage, role.b)] = n;
  }
  for (const std::vector<int32_t>& list : lists_) {
    for (size_t i = 1; i < list.size(); ++i) {
      At(list[i - 1]).next = list[i];
      At(list[i]).previous = list[i - 1];
    }
  }
  const auto connect = [&](int32_t from, size_t out, int32_t to, size_t in) {
    CF_ASSERT(from != kNone);
    if (At(from).rank == At(to).rank) return;  // their list says who is first
    At(from).out[out] = to;
    At(to).in[in] = from;
  };
  for (int32_t n = 0; n < nodes; ++n) {
    const Role& role = RoleOf(n);
    const int before = role.f_stage >= 0 ? problem_.stage(role.f_stage).before : -1;
    const int after = role.b_stage >= 0 ? problem_.stage(role.b_stage).after : -1;
    if (before >= 0) connect(forward[problem_.Chunk(before, role.f)], 0, n, 0);
    if (after >= 0) connect(backward[problem_.Chunk(after, role.b)], 1, n, 1);
  }
}

/// Computes all heads and sorts by them: what runs at the same time is then close together, so that
/// a move reorders little.
void OrderGraph::Sort() {
  std::vector<int32_t> missing(nodes_.size(), 0), ready;
  for (size_t n = 0; n < nodes_.size(); ++n) {
    const Node& node = nodes_[n];
    missing[n] = (node.previous != kNone) + (node.in[0] != kNone) + (node.in[1] != kNone);
    if (missing[n] == 0) ready.push_back(static_cast<int32_t>(n));
  }
  for (size_t i = 0; i < ready.size(); ++i) {
    Node& node = At(ready[i]);
    node.position = static_cast<int32_t>(i);
    node.head = HeadOf(node);
    for (const int32_t after : {node.next, node.out[0], node.out[1]}) {
      if (after != kNone && --missing[static_cast<size_t>(after)] == 0) ready.push_back(after);
    }
  }
  CF_ASSERT(ready.size() == nodes_.size());
  sorted_ = std::move(ready);
  std::sort(sorted_.begin(), sorted_.end(), [this](int32_t a, int32_t b) {
    return std::pair(At(a).head, At(a).position) < std::pair(At(b).head, At(b).position);
  });
  for (size_t i = 0; i < sorted_.size(); ++i) At(sorted_[i]).position = static_cast<int32_t>(i);
  marked_.Reset(sorted_.size());
  seen_.assign(nodes_.size(), 0);
}

Order OrderGraph::ToOrder() const {
  Order order(lists_.size());
  for (size_t r = 0; r < lists_.size(); ++r) {
    order[r].reserve(lists_[r].size());
    for (const int32_t node : lists_[r]) order[r].push_back(actions_[static_cast<size_t>(node)]);
  }
  return order;
}

Time OrderGraph::Through(int rank, int place) const {
  const Node& node = At(ListOf(rank)[static_cast<size_t>(place)]);
  return node.head + node.duration + node.tail;
}

int OrderGraph::BlockStart(int rank, int place) const {
  const std::vector<int32_t>& list = ListOf(rank);
  auto at = static_cast<size_t>(place);
  while (at > 0 && At(list[at - 1]).head + At(list[at - 1]).duration == At(list[at]).head) --at;
  return static_cast<int>(at);
}

std::pair<int, int> OrderGraph::Sender(int rank, int place) const {
  const Node& node = At(ListOf(rank)[static_cast<size_t>(place)]);
  for (const int32_t in : node.in) {
    if (in == kNone || At(in).head + At(in).duration + hop_ != node.head) continue;
    return {At(in).rank, At(in).place};
  }
  return {-1, -1};
}

Time OrderGraph::Arrival(const Node& node) const {
  Time time = 0;
  for (const int32_t in : node.in) {
    if (in != kNone) time = std::max(time, At(in).head + At(in).duration + hop_);
  }
  return time;
}

Time OrderGraph::Demand(const Node& node) const {
  Time time = 0;
  for (const int32_t out : node.out) {
    if (out != kNone) time = std::max(time, hop_ + At(out).duration + At(out).tail);
  }
  return time;
}

Time OrderGraph::HeadOf(const Node& node) const {
  const Time time = Arrival(node);
  if (node.previous == kNone) return time;
  return std::max(time, At(node.previous).head + At(node.previous).duration);
}

Time OrderGraph::TailOf(const Node& node) const {
  const Time time = Demand(node);
  if (node.next == kNone) return time;
  return std::max(time, At(node.next).duration + At(node.next).tail);
}

/// Chunks of a stage run in order, and what a rank hands to itself it makes first.
bool OrderGraph::MustPrecede(int32_t first, int32_t second) const {
  const Role& a = RoleOf(first);
  const Role& b = RoleOf(second);
  if (a.f_stage >= 0) {
    if (b.f_stage == a.f_stage) return true;
    if (b.b_stage == a.f_stage && b.b == a.f) return true;
    if (b.f_stage == problem_.stage(a.f_stage).after && b.f_stage >= 0 && b.f == a.f) {
      return true;
    }
  }
  if (a.b_stage >= 0) {
    if (b.b_stage == a.b_stage) return true;
    if (b.w_stage == a.b_stage && b.w == a.b) return true;
    if (b.b_stage == problem_.stage(a.b_stage).before && b.b_stage >= 0 && b.b == a.b) {
      return true;
    }
  }
  return a.w_stage >= 0 && b.w_stage == a.w_stage;
}

OrderGraph::Move OrderGraph::Shorten(Move move) const {
  const std::vector<int32_t>& list = ListOf(move.rank);
  const int32_t moved = list[static_cast<size_t>(move.from)];
  int to = move.from;
  if (move.to > move.from) {
    while (to < move.to && !MustPrecede(moved, list[static_cast<size_t>(to) + 1])) ++to;
  } else {
    while (to > move.to && !MustPrecede(list[static_cast<size_t>(to) - 1], moved)) --to;
  }
  return {move.rank, move.from, to};
}

bool OrderGraph::Fits(const Move& move) const {
  const auto r = static_cast<size_t>(move.rank);
  const std::vector<int32_t>& list = lists_[r];
  const Role& moved = RoleOf(list[static_cast<size_t>(move.from)]);
  const int64_t gain = moved.taken - moved.given, room = problem_.Room(r);
  const auto at = [&](int place) -> const Role& {
    return RoleOf(list[static_cast<size_t>(place)]);
  };
  if (move.to > move.from) {
    // An action that is passed runs without the time that the moved one takes or gives.
    if (gain < 0) {
      for (int i = move.from + 1; i <= move.to; ++i) {
        if (levels_[r][static_cast<size_t>(i)] - gain + at(i).taken > room) return false;
      }
    }
    const Role& last = at(move.to);
    const int64_t level = levels_[r][static_cast<size_t>(move.to)] + last.taken - last.given - gain;
    return level + moved.taken <= room;
  }
  if (levels_[r][static_cast<size_t>(move.to)] + moved.taken > room) return false;
  if (gain <= 0) return true;
  for (int i = move.to; i < move.from; ++i) {
    if (levels_[r][static_cast<size_t>(i)] + gain + at(i).taken > room) return false;
  }
  return true;
}

Time OrderGraph::Estimate(const Move& move) const {
  const std::vector<int32_t>& list = ListOf(move.rank);
  const size_t low = move.low(), high = move.high();
  constexpr size_t kMost = 64;
  CF_ASSERT(high - low < kMost);
  Time heads[kMost];
  Time time = 0;
  if (low > 0) {
    const Node& previous = At(list[low - 1]);
    time = previous.head + previous.duration;
  }
  for (size_t place = low; place <= high; ++place) {
    const Node& moved = At(Moved(list, move, place));
    time = std::max(time, Arrival(moved));
    heads[place - low] = time;
    time += moved.duration;
  }
  Time through = 0;
  time = 0;
  if (high + 1 < list.size()) {
    const Node& next = At(list[high + 1]);
    time = next.duration + next.tail;
  }
  for (size_t place = high + 1; place-- > low;) {
    const Node& moved = At(Moved(list, move, place));
    time = std::max(time, Demand(moved)) + moved.duration;
    through = std::max(through, heads[place - low] + time);
  }
  return through;
}

}  // namespace contraflow
