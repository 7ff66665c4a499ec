#include "schedules/local/sampled_times.h"

#include <algorithm>
#include <limits>

#include "schedules/search/noise_draw.h"

namespace contraflow {
namespace {

constexpr int32_t kNone = -1;

}  // namespace

SampledTimes::SampledTimes(const SearchProblem& problem, const OrderGraph& graph, double sigma,
                           uint64_t seed, size_t draws)
    : graph_(graph), lanes_((draws + kWide - 1) / kWide * kWide) {
  // No draw takes sixteen times as long as there is no noise.
  int shift = 0;
  while (graph.makespan() >> shift > std::numeric_limits<int32_t>::max() / 16) ++shift;
  hop_ = static_cast<int32_t>(graph.hop_ >> shift);
  const size_t nodes = graph.nodes_.size();
  durations_.resize(nodes * lanes_);
  for (size_t lane = 0; lane < lanes_; ++lane) {
    const NoiseDraw draw(problem, sigma, seed + lane);
    for (size_t n = 0; n < nodes; ++n) {
      const Action& action = graph.actions_[n];
      const OrderGraph::Role& role = graph.roles_[n];
      const int k = HasForward(action.op) ? role.f : HasBackward(action.op) ? role.b : role.w;
      durations_[n * lanes_ + lane] =
          static_cast<int32_t>(draw.Duration(action, k, role.b) >> shift);
    }
  }
  heads_.assign(nodes * lanes_, 0);
  tails_.assign(nodes * lanes_, 0);
  for (const int32_t node : graph.sorted_) HeadOf(node, Row(&heads_, node));
  for (size_t i = nodes; i-- > 0;) TailOf(graph.sorted_[i], Row(&tails_, graph.sorted_[i]));
  makespans_.assign(lanes_, 0);
  SumUp();
  marked_.Reset(nodes);
  scratch_.resize(64 * lanes_);
}

void SampledTimes::Pass(const std::vector<int32_t>& rows, int32_t node, int32_t* time) const {
  if (node == kNone) {
    std::fill_n(time, lanes_, 0);
    return;
  }
  const int32_t* row = Row(rows, node);
  const int32_t* duration = Row(durations_, node);
  for (size_t wide = 0; wide < lanes_; wide += kWide) {
    for (size_t i = wide; i < wide + kWide; ++i) time[i] = row[i] + duration[i];
  }
}

void SampledTimes::Hop(const std::vector<int32_t>& rows, const int32_t (&nodes)[2],
                       int32_t* time) const {
  for (const int32_t node : nodes) {
    if (node == kNone) continue;
    const int32_t* row = Row(rows, node);
    const int32_t* duration = Row(durations_, node);
    for (size_t wide = 0; wide < lanes_; wide += kWide) {
      for (size_t i = wide; i < wide + kWide; ++i) {
        time[i] = std::max(time[i], row[i] + duration[i] + hop_);
      }
    }
  }
}

void SampledTimes::HeadOf(int32_t node, int32_t* time) const {
  Pass(heads_, graph_.At(node).previous, time);
  Hop(heads_, graph_.At(node).in, time);
}

void SampledTimes::TailOf(int32_t node, int32_t* time) const {
  Pass(tails_, graph_.At(node).next, time);
  Hop(tails_, graph_.At(node).out, time);
}

/// The makespans from the last ends of all ranks.
void SampledTimes::SumUp() {
  std::fill(makespans_.begin(), makespans_.end(), 0);
  for (const std::vector<int32_t>& list : graph_.lists_) {
    if (list.empty()) continue;
    const int32_t* head = Row(heads_, list.back());
    const int32_t* duration = Row(durations_, list.back());
    for (size_t i = 0; i < lanes_; ++i) {
      makespans_[i] = std::max(makespans_[i], head[i] + duration[i]);
    }
  }
  sum_ = 0;
  for (const int32_t makespan : makespans_) sum_ += makespan;
}

int64_t SampledTimes::Worse(const OrderGraph::Move& move) const {
  const std::vector<int32_t>& list = graph_.ListOf(move.rank);
  const size_t low = move.low(), high = move.high(), count = high - low + 1;
  if (scratch_.size() < (count + 2) * lanes_) scratch_.resize((count + 2) * lanes_);
  work_ += static_cast<int64_t>(count);
  int32_t* const through = scratch_.data();
  int32_t* const time = through + lanes_;
  int32_t* const heads = time + lanes_;
  Pass(heads_, low > 0 ? list[low - 1] : kNone, time);
  for (size_t place = low; place <= high; ++place) {
    const int32_t moved = OrderGraph::Moved(list, move, place);
    Hop(heads_, graph_.At(moved).in, time);
    std::copy_n(time, lanes_, heads + (place - low) * lanes_);
    const int32_t* duration = Row(durations_, moved);
    for (size_t i = 0; i < lanes_; ++i) time[i] += duration[i];
  }
  Pass(tails_, high + 1 < list.size() ? list[high + 1] : kNone, time);
  std::copy(makespans_.begin(), makespans_.end(), through);
  for (size_t place = high + 1; place-- > low;) {
    const int32_t moved = OrderGraph::Moved(list, move, place);
    Hop(tails_, graph_.At(moved).out, time);
    const int32_t* duration = Row(durations_, moved);
    const int32_t* head = heads + (place - low) * lanes_;
    for (size_t i = 0; i < lanes_; ++i) {
      time[i] += duration[i];
      through[i] = std::max(through[i], head[i] + time[i]);
    }
  }
  int64_t worse = 0;
  for (size_t i = 0; i < lanes_; ++i) worse += through[i] - makespans_[i];
  return worse;
}

void SampledTimes::Mark(int32_t node) {
  if (node != kNone) marked_.Mark(graph_.At(node).position);
}

void SampledTimes::Apply(const OrderGraph::Move& move) {
  move_ = move;
  old_nodes_.clear();
  old_heads_.clear();
  old_makespans_ = makespans_;
  old_sum_ = sum_;
  const std::vector<int32_t>& list = graph_.ListOf(move.rank);
  const size_t low = move.low(), high = move.high();
  marked_.StartAt(graph_.At(list[low]).position);
  for (size_t i = low; i <= high + 1 && i < list.size(); ++i) Mark(list[i]);
  int32_t* const time = scratch_.data();
  bool ends_changed = false;
  while (!marked_.empty()) {
    ++work_;
    const int32_t n = graph_.sorted_[marked_.TakeFirst()];
    const OrderGraph::Node& node = graph_.At(n);
    // The end of a list may be an action whose own times are as before.
    ends_changed = ends_changed || node.next == kNone;
    HeadOf(n, time);
    int32_t* const head = Row(&heads_, n);
    if (std::equal(time, time + lanes_, head)) continue;
    old_nodes_.push_back(n);
    old_heads_.insert(old_heads_.end(), head, head + lanes_);
    std::copy_n(time, lanes_, head);
    Mark(node.next);
    Mark(node.out[0]);
    Mark(node.out[1]);
  }
  if (ends_changed) SumUp();
}

void SampledTimes::Commit() {
  const std::vector<int32_t>& list = graph_.ListOf(move_.rank);
  const size_t low = move_.low(), high = move_.high();
  marked_.StartAt(graph_.At(list[high]).position);
  for (size_t i = low > 0 ? low - 1 : 0; i <= high; ++i) Mark(list[i]);
  int32_t* const time = scratch_.data();
  while (!marked_.empty()) {
    ++work_;
    const int32_t n = graph_.sorted_[marked_.TakeLast()];
    const OrderGraph::Node& node = graph_.At(n);
    TailOf(n, time);
    int32_t* const tail = Row(&tails_, n);
    if (std::equal(time, time + lanes_, tail)) continue;
    std::copy_n(time, lanes_, tail);
    Mark(node.previous);
    Mark(node.in[0]);
    Mark(node.in[1]);
  }
}

void SampledTimes::Rollback() {
  for (size_t i = 0; i < old_nodes_.size(); ++i) {
    std::copy_n(old_heads_.data() + i * lanes_, lanes_, Row(&heads_, old_nodes_[i]));
  }
  makespans_.swap(old_makespans_);
  sum_ = old_sum_;
}

bool SampledTimes::Waits(int32_t node, int32_t in, size_t draw) const {
  return in != kNone &&
         Lane(heads_, in, draw) + Lane(durations_, in, draw) + hop_ == Lane(heads_, node, draw);
}

void SampledTimes::Path(size_t draw, std::vector<std::pair<int, int>>* path) const {
  path->clear();
  int32_t n = kNone;
  for (const std::vector<int32_t>& list : graph_.lists_) {
    if (list.empty()) continue;
    const int32_t last = list.back();
    if (Lane(heads_, last, draw) + Lane(durations_, last, draw) == makespans_[draw]) n = last;
  }
  while (n != kNone) {
    const OrderGraph::Node& node = graph_.At(n);
    path->emplace_back(node.rank, node.place);
    const int32_t previous = node.previous;
    const bool follows =
        previous != kNone &&
        Lane(heads_, previous, draw) + Lane(durations_, previous, draw) == Lane(heads_, n, draw);
    n = follows                      ? previous
        : Waits(n, node.in[0], draw) ? node.in[0]
        : Waits(n, node.in[1], draw) ? node.in[1]
                                     : kNone;
  }
}

int SampledTimes::BlockStart(size_t draw, int rank, int place) const {
  const std::vector<int32_t>& list = graph_.ListOf(rank);
  auto at = static_cast<size_t>(place);
  while (at > 0 && Lane(heads_, list[at - 1], draw) + Lane(durations_, list[at - 1], draw) ==
                       Lane(heads_, list[at], draw)) {
    --at;
  }
  return static_cast<int>(at);
}

std::pair<int, int> SampledTimes::Sender(size_t draw, int rank, int place) const {
  const int32_t n = graph_.ListOf(rank)[static_cast<size_t>(place)];
  for (const int32_t in : graph_.At(n).in) {
    if (Waits(n, in, draw)) return {graph_.At(in).rank, graph_.At(in).place};
  }
  return {-1, -1};
}

}  // namespace contraflow
