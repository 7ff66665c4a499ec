#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "schedules/local/marked_positions.h"
#include "schedules/search/search_problem.h"

namespace contraflow {

class NoiseDraw;
class SampledTimes;

/// An order under change: the graph of what waits for what, with the longest path to and from every
/// action. One action is moved at a time; only what that touches is computed again (heads in a
/// topological order that is kept up to date after Pearce and Kelly, "A dynamic topological sort
/// algorithm for directed acyclic graphs", 2006), and the move can be taken back.
/// Messages are never in each other's way here: links are taken as free (see `exact`).
class OrderGraph {
 public:
  /// An action of a rank goes from one place of the rank's list to another; the actions in between
  /// close up.
  struct Move {
    int rank = 0, from = 0, to = 0;

    size_t low() const { return static_cast<size_t>(std::min(from, to)); }
    size_t high() const { return static_cast<size_t>(std::max(from, to)); }
  };

  /// The order must run and fit. The problem must outlive the graph. A draw (noise.h) replaces the
  /// durations.
  OrderGraph(const SearchProblem& problem, const Order& order, const NoiseDraw* draw = nullptr);

  /// True if makespans are those of Evaluate: messages do not queue.
  static bool Exact(const SearchProblem& problem) { return !problem.costs.comm.exclusive(); }

  Order ToOrder() const;

  Time makespan() const { return makespan_; }
  /// Sum of the last ends of all ranks.
  Time rank_ends() const { return rank_ends_; }
  int64_t actions() const { return static_cast<int64_t>(nodes_.size()); }
  int ranks() const { return static_cast<int>(lists_.size()); }
  int length(int rank) const { return static_cast<int>(lists_[static_cast<size_t>(rank)].size()); }
  /// How long the longest path through an action is.
  Time Through(int rank, int place) const;
  /// The first of the actions up to this one that run without a gap between them.
  int BlockStart(int rank, int place) const;
  /// Rank and place of the action whose message the one at `place` starts with; rank -1: none.
  std::pair<int, int> Sender(int rank, int place) const;

  /// The move as far as the order of its stages lets it go (from == to: not at all), and memory.
  Move Shorten(Move move) const;
  bool Fits(const Move& move) const;
  /// The longest path through what the move passes, as far as can be told from it alone (Balas and
  /// Vazacopoulos, "Guided local search with shifting bottleneck for job shop scheduling", 1998).
  Time Estimate(const Move& move) const;

  /// False, and nothing has changed, if ranks would wait for each other.
  bool Apply(const Move& move);
  /// After Apply one of the two.
  void Commit();
  void Rollback();

  /// Actions computed again since the last call.
  int64_t TakeWork() { return std::exchange(work_, 0); }

 private:
  friend class SampledTimes;  // keeps its own times next to the nodes

  static constexpr int32_t kNone = -1;

  /// One action. For an FB, `in` and `out` are those of the forward, then those of the backward.
  struct Node {
    Time head = 0, tail = 0;  // longest paths up to its start and from its end
    Time duration = 0;
    int32_t previous = kNone, next = kNone;                   // on its rank
    int32_t in[2] = {kNone, kNone}, out[2] = {kNone, kNone};  // on other ranks, a hop away
    int32_t position = 0;                                     // in topological order
    int32_t rank = 0, place = 0;
  };
  /// Which chunk's parts an action runs.
  struct Role {
    int32_t f_stage = kNone, f = 0, b_stage = kNone, b = 0, w_stage = kNone, w = 0;
    int64_t taken = 0, given = 0;  // memory
  };

  Node& At(int32_t node) { return nodes_[static_cast<size_t>(node)]; }
  const Node& At(int32_t node) const { return nodes_[static_cast<size_t>(node)]; }
  const Role& RoleOf(int32_t node) const { return roles_[static_cast<size_t>(node)]; }
  std::vector<int32_t>& ListOf(int rank) { return lists_[static_cast<size_t>(rank)]; }
  const std::vector<int32_t>& ListOf(int rank) const { return lists_[static_cast<size_t>(rank)]; }
  /// The node that a move brings to a place of a list.
  static int32_t Moved(const std::vector<int32_t>& list, const Move& move, size_t place) {
    if (place == static_cast<size_t>(move.to)) return list[static_cast<size_t>(move.from)];
    return list[move.to > move.from ? place + 1 : place - 1];
  }
  void Build(const Order& order, const NoiseDraw* draw);
  void Link();
  void Sort();
  bool MustPrecede(int32_t first, int32_t second) const;
  Time HeadOf(const Node& node) const;
  Time TailOf(const Node& node) const;
  Time Arrival(const Node& node) const;
  Time Demand(const Node& node) const;
  void Relocate(const Move& move);
  bool Reorder(int32_t before, int32_t after);
  void SetPosition(int32_t node, int32_t position);
  void Mark(int32_t node);
  void PropagateHeads();
  void PropagateTails();

  const SearchProblem& problem_;
  Time hop_ = 0;
  std::vector<Node> nodes_;
  std::vector<Role> roles_;
  std::vector<Action> actions_;  // of each node
  std::vector<std::vector<int32_t>> lists_;
  std::vector<std::vector<int64_t>> levels_;  // memory held before each place of a list
  std::vector<int32_t> sorted_;               // nodes in topological order
  MarkedPositions marked_;                    // actions to compute again
  Time makespan_ = 0, rank_ends_ = 0;
  std::vector<Time> ends_;

  // The move under way, to take it back.
  Move move_;
  Time old_makespan_ = 0, old_rank_ends_ = 0;
  std::vector<std::pair<int32_t, Time>> old_heads_;
  std::vector<std::pair<int32_t, int32_t>> old_positions_;
  std::vector<std::pair<int32_t, Time>> old_ends_;

  std::vector<int32_t> ahead_, behind_;  // of Reorder
  std::vector<int32_t> places_;
  std::vector<uint32_t> seen_;
  uint32_t stamp_ = 0;
  int64_t work_ = 0;
};

}  // namespace contraflow
