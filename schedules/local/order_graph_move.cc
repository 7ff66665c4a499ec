// Moves of actions and what follows from them.

#include <algorithm>

#include "compiler/plan/error.h"
#include "schedules/local/order_graph.h"

namespace contraflow {

bool OrderGraph::Apply(const Move& move) {
  move_ = move;
  old_heads_.clear();
  old_positions_.clear();
  old_ends_.clear();
  old_makespan_ = makespan_;
  old_rank_ends_ = rank_ends_;
  const std::vector<int32_t>& list = ListOf(move.rank);
  const int32_t moved = list[static_cast<size_t>(move.from)];
  const int32_t passed = list[static_cast<size_t>(move.to)];
  Relocate(move);
  // The one new edge against the order of the sort joins the moved action and the last it passed.
  const bool forward = move.to > move.from;
  if (!Reorder(forward ? passed : moved, forward ? moved : passed)) {
    Rollback();
    return false;
  }
  PropagateHeads();
  return true;
}

void OrderGraph::Commit() { PropagateTails(); }

void OrderGraph::Rollback() {
  for (const auto& [node, head] : old_heads_) At(node).head = head;
  for (const auto& [node, position] : old_positions_) SetPosition(node, position);
  for (const auto& [rank, end] : old_ends_) ends_[static_cast<size_t>(rank)] = end;
  makespan_ = old_makespan_;
  rank_ends_ = old_rank_ends_;
  Relocate({move_.rank, move_.to, move_.from});
}

/// Changes the list, its links and its memory levels.
void OrderGraph::Relocate(const Move& move) {
  std::vector<int32_t>& list = ListOf(move.rank);
  std::vector<int64_t>& levels = levels_[static_cast<size_t>(move.rank)];
  const auto begin = list.begin();
  if (move.to > move.from) {
    std::rotate(begin + move.from, begin + move.from + 1, begin + move.to + 1);
  } else {
    std::rotate(begin + move.to, begin + move.from, begin + move.from + 1);
  }
  const size_t low = move.low(), high = move.high();
  int64_t level = levels[low];
  for (size_t i = low; i <= high; ++i) {
    const int32_t node = list[i];
    levels[i] = level;
    level += RoleOf(node).taken - RoleOf(node).given;
    At(node).place = static_cast<int32_t>(i);
    At(node).previous = i > 0 ? list[i - 1] : kNone;
    At(node).next = i + 1 < list.size() ? list[i + 1] : kNone;
  }
  if (low > 0) At(list[low - 1]).next = list[low];
  if (high + 1 < list.size()) At(list[high + 1]).previous = list[high];
}

/// Makes the sort agree with a new edge from `before` to `after`. False if that closes a cycle.
bool OrderGraph::Reorder(int32_t before, int32_t after) {
  const int32_t low = At(after).position, high = At(before).position;
  if (low > high) return true;
  ++stamp_;
  ahead_.assign(1, after);
  seen_[static_cast<size_t>(after)] = stamp_;
  for (size_t i = 0; i < ahead_.size(); ++i) {
    const Node& node = At(ahead_[i]);
    for (const int32_t n : {node.next, node.out[0], node.out[1]}) {
      if (n == before) return false;
      if (n == kNone || At(n).position > high || seen_[static_cast<size_t>(n)] == stamp_) continue;
      seen_[static_cast<size_t>(n)] = stamp_;
      ahead_.push_back(n);
    }
  }
  behind_.assign(1, before);
  seen_[static_cast<size_t>(before)] = stamp_;
  for (size_t i = 0; i < behind_.size(); ++i) {
    const Node& node = At(behind_[i]);
    for (const int32_t n : {node.previous, node.in[0], node.in[1]}) {
      if (n == kNone || At(n).position < low || seen_[static_cast<size_t>(n)] == stamp_) continue;
      seen_[static_cast<size_t>(n)] = stamp_;
      behind_.push_back(n);
    }
  }
  const auto earlier = [this](int32_t a, int32_t b) { return At(a).position < At(b).position; };
  std::sort(ahead_.begin(), ahead_.end(), earlier);
  std::sort(behind_.begin(), behind_.end(), earlier);
  places_.clear();
  for (const int32_t node : behind_) places_.push_back(At(node).position);
  for (const int32_t node : ahead_) places_.push_back(At(node).position);
  std::sort(places_.begin(), places_.end());
  work_ += static_cast<int64_t>(places_.size());
  size_t place = 0;
  for (const std::vector<int32_t>* list : {&behind_, &ahead_}) {
    for (const int32_t node : *list) {
      old_positions_.emplace_back(node, At(node).position);
      SetPosition(node, places_[place++]);
    }
  }
  return true;
}

void OrderGraph::SetPosition(int32_t node, int32_t position) {
  At(node).position = position;
  sorted_[static_cast<size_t>(position)] = node;
}

void OrderGraph::Mark(int32_t node) {
  if (node != kNone) marked_.Mark(At(node).position);
}

void OrderGraph::PropagateHeads() {
  const std::vector<int32_t>& list = ListOf(move_.rank);
  const size_t low = move_.low(), high = move_.high();
  // The moved action must come before all else that it changes: the first place has the least
  // position.
  marked_.StartAt(At(list[low]).position);
  for (size_t i = low; i <= high + 1 && i < list.size(); ++i) Mark(list[i]);
  bool ends_changed = false;
  while (!marked_.empty()) {
    ++work_;
    const int32_t n = sorted_[marked_.TakeFirst()];
    Node& node = At(n);
    const Time head = HeadOf(node);
    const bool last = node.next == kNone;
    if (last && head + node.duration != ends_[static_cast<size_t>(node.rank)]) {
      Time& end = ends_[static_cast<size_t>(node.rank)];
      old_ends_.emplace_back(node.rank, end);
      rank_ends_ += head + node.duration - end;
      end = head + node.duration;
      ends_changed = true;
    }
    if (head == node.head) continue;
    old_heads_.emplace_back(n, node.head);
    node.head = head;
    Mark(node.next);
    Mark(node.out[0]);
    Mark(node.out[1]);
  }
  if (ends_changed) makespan_ = *std::max_element(ends_.begin(), ends_.end());
}

void OrderGraph::PropagateTails() {
  const std::vector<int32_t>& list = ListOf(move_.rank);
  const size_t low = move_.low(), high = move_.high();
  marked_.StartAt(At(list[high]).position);
  for (size_t i = low > 0 ? low - 1 : 0; i <= high; ++i) Mark(list[i]);
  while (!marked_.empty()) {
    ++work_;
    Node& node = At(sorted_[marked_.TakeLast()]);
    const Time tail = TailOf(node);
    if (tail == node.tail) continue;
    node.tail = tail;
    Mark(node.previous);
    Mark(node.in[0]);
    Mark(node.in[1]);
  }
}

}  // namespace contraflow
