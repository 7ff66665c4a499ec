#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "schedules/local/marked_positions.h"
#include "schedules/local/order_graph.h"

namespace contraflow {

/// How an order under change (order_graph.h) runs in many draws at once: the longest path to and
/// from every action in each of them, side by side, so that one pass over what a move touches
/// serves all. Times are in a unit of its own, as small as 32 bits allow.
class SampledTimes {
 public:
  /// Draws with the seeds `seed`, `seed` + 1, ...; `draws` is rounded up to a multiple of 16. The
  /// graph must outlive it, and every move of the graph must be told.
  SampledTimes(const SearchProblem& problem, const OrderGraph& graph, double sigma, uint64_t seed,
               size_t draws);

  size_t draws() const { return lanes_; }
  /// Sum of the makespans of all draws.
  int64_t sum() const { return sum_; }

  /// Time by which a move would lengthen the draws that it lengthens, together, as far as can be
  /// told from what it passes (OrderGraph::Estimate).
  int64_t Worse(const OrderGraph::Move& move) const;
  /// After the graph's Apply has returned true, and after its Commit or Rollback.
  void Apply(const OrderGraph::Move& move);
  void Commit();
  void Rollback();

  /// Rank and place of the actions of a longest path of a draw, the last first.
  void Path(size_t draw, std::vector<std::pair<int, int>>* path) const;
  /// Like OrderGraph's, in one draw.
  int BlockStart(size_t draw, int rank, int place) const;
  std::pair<int, int> Sender(size_t draw, int rank, int place) const;

  /// Work computed since the last call, in instructions of SearchWork: an action in 32 draws costs
  /// about as much as one in a single evaluation.
  int64_t TakeWork() { return std::exchange(work_, 0) * static_cast<int64_t>(lanes_) / 32; }

 private:
  static constexpr size_t kWide = 16;  // lanes that one loop handles

  int32_t* Row(std::vector<int32_t>* rows, int32_t node) {
    return rows->data() + static_cast<size_t>(node) * lanes_;
  }
  const int32_t* Row(const std::vector<int32_t>& rows, int32_t node) const {
    return rows.data() + static_cast<size_t>(node) * lanes_;
  }
  int32_t Lane(const std::vector<int32_t>& rows, int32_t node, size_t draw) const {
    return Row(rows, node)[draw];
  }
  bool Waits(int32_t node, int32_t in, size_t draw) const;
  /// With heads_ when a node ends, with tails_ how much follows its start; 0 of no node.
  void Pass(const std::vector<int32_t>& rows, int32_t node, int32_t* time) const;
  /// Raises the times to those of `nodes`, a hop away.
  void Hop(const std::vector<int32_t>& rows, const int32_t (&nodes)[2], int32_t* time) const;
  void HeadOf(int32_t node, int32_t* time) const;
  void TailOf(int32_t node, int32_t* time) const;
  void SumUp();
  void Mark(int32_t node);

  const OrderGraph& graph_;
  size_t lanes_ = 0;
  int32_t hop_ = 0;
  std::vector<int32_t> durations_, heads_, tails_;  // a row of lanes for each node
  std::vector<int32_t> makespans_;                  // of each lane
  int64_t sum_ = 0;
  MarkedPositions marked_;  // in the graph's order: what is to be computed again
  mutable std::vector<int32_t> scratch_;
  mutable int64_t work_ = 0;

  // The move under way, to take it back.
  OrderGraph::Move move_;
  std::vector<int32_t> old_nodes_, old_heads_, old_makespans_;
  int64_t old_sum_ = 0;
};

}  // namespace contraflow
