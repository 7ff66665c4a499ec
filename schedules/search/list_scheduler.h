#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "compiler/plan/cost.h"
#include "schedules/search/policy.h"
#include "schedules/search/search_problem.h"

namespace contraflow {

/// When each rank is to be looked at next, and which is first: a tournament tree. Among ranks at
/// the same time, the lowest is first.
class RankQueue {
 public:
  static constexpr Time kNever = std::numeric_limits<Time>::max();

  /// All ranks at time 0.
  void Reset(size_t ranks) {
    leaves_ = 1;
    while (leaves_ < ranks) leaves_ *= 2;
    node_.assign(2 * leaves_, {kNever, 0});
    for (size_t r = 0; r < leaves_; ++r) {
      node_[leaves_ + r] = {r < ranks ? 0 : kNever, static_cast<int>(r)};
    }
    for (size_t n = leaves_; n-- > 1;) node_[n] = Earlier(node_[2 * n], node_[2 * n + 1]);
  }

  void Set(int rank, Time time) {
    size_t n = leaves_ + static_cast<size_t>(rank);
    node_[n].time = time;
    while (n > 1) {
      n /= 2;
      const Entry& first = Earlier(node_[2 * n], node_[2 * n + 1]);
      // Above a node that stays as it was, everything does.
      if (first.rank == node_[n].rank && first.time == node_[n].time) return;
      node_[n] = first;
    }
  }

  Time time(int rank) const { return node_[leaves_ + static_cast<size_t>(rank)].time; }
  int first() const { return node_[1].rank; }
  Time first_time() const { return node_[1].time; }

 private:
  struct Entry {
    Time time;
    int rank;
  };
  static const Entry& Earlier(const Entry& a, const Entry& b) { return b.time < a.time ? b : a; }

  size_t leaves_ = 1;
  std::vector<Entry> node_;
};

/// Event-driven list scheduling: whenever a rank is free it starts what its rule prefers among
/// what has arrived, or waits for the next arrival it knows of. Linear in instructions but for the
/// queue of ranks, log P each. Plain F, B and W (or BW); keeps its arrays between runs.
///
/// Memory is never exceeded: a forward that would runs only after weight gradients have made room.
/// Nor does it come to a standstill, for any limit that one micro-batch at a time fits in: see
/// Admits in list_scheduler_decide.cc.
class ListScheduler {
 public:
  explicit ListScheduler(const SearchProblem& problem);

  /// The makespan if it is below `below`; gives up as soon as it cannot be.
  std::optional<Time> Run(const Rules& rules, Time below);
  /// Order of the last run, which has returned something.
  Order TakeOrder() const;
  /// Sum of the last ends of all ranks, of the last run.
  Time ends() const;
  /// Cost of the last run, in instructions as SearchWork counts them: those that it started, more
  /// than once each where ranks have many stages, at all of which every decision looks.
  int64_t cost() const { return started_ * looks_; }

 private:
  /// A stage, as it is scheduled.
  struct StageState {
    int32_t stage = 0, rank = 0, route = 0, count = 0;
    int32_t before = -1, after = -1;            // states
    int32_t edge_before = -1, edge_after = -1;  // directed edges to them; -1: links are free
    Time hop_before = 0, hop_after = 0;
    Time f = 0, b = 0, w = 0, bw = 0;
    CellBytes memory = {};
    size_t first = 0;                // of its chunks in the tables by chunk
    int32_t number = 0;              // of its stage
    int32_t cap_first = 0, cap = 0;  // most micro-batches between F and B
    int32_t nf = 0, nb = 0, nw = 0;  // started
    int32_t kf = 0, kb = 0;          // arrivals that are known
  };
  struct Rank {
    int32_t begin = 0, end = 0;  // its states
    size_t first = 0;            // of its codes
    int64_t room = 0;            // it may hold that much
    size_t size = 0;             // of its codes so far
    RankRule rule;
    int32_t due = 0;  // weight gradients
    int64_t held = 0;
    Time left = 0;  // durations of all it has not started
    Time last = 0;  // end of what it started last
    bool idle = true, was_forward = false;
  };
  /// The last stage of each route on a rank, and what a micro-batch of it takes there in all.
  struct Claim {
    int32_t state = 0;
    int64_t held = 0;
  };

  StageState& At(int32_t state) { return states_[static_cast<size_t>(state)]; }
  const StageState& At(int32_t state) const { return states_[static_cast<size_t>(state)]; }
  void Reset(const Rules& rules);
  void Decide(int r, Time now);
  Time WorthWaiting(const Rank& rank, int32_t ready, Time now, bool forward) const;
  int32_t WeightOf(const Rank& rank) const;
  void FillOrWait(int r, Time now, int32_t w, Time next);
  void Start(int r, Time now, Op op, int32_t state);
  void Depart(int32_t to, int32_t edge, Time hop, Time made, bool forward);
  static bool Below(const StageState& state) {
    return state.nf - state.nb < (state.nb == 0 ? state.cap_first : state.cap);
  }
  bool Admits(const Rank& rank, int32_t state) const;
  bool Before(Pick pick, const StageState& a, Time arrival_a, int32_t next_a, const StageState& b,
              Time arrival_b, int32_t next_b) const;
  Time Duration(Op op, const StageState& state) const;

  Time below_ = 0, end_ = 0, latency_ = 0;
  int64_t started_ = 0, total_ = 0, looks_ = 1;
  bool given_up_ = false, fused_ = false;
  std::vector<StageState> states_;
  std::vector<Rank> ranks_;
  std::vector<std::vector<Claim>> claims_;   // of ranks with several stages
  std::array<std::vector<Time>, 4> scaled_;  // by chunk; empty where all are alike
  std::vector<Time> f_in_, b_in_;            // arrivals by chunk
  std::vector<Time> edge_free_;
  std::vector<uint16_t> codes_;  // place of the stage on its rank * 4 + F, B, W, BW
  RankQueue queue_;
};

}  // namespace contraflow
