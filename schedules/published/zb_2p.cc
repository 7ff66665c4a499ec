// ZB-2P (Qi et al., arXiv 2401.10241, section 3.1 and the authors' published heuristic): zero
// bubble with twice the activations of 1F1B. The extra forwards fill what the first backwards wait
// for, the weight gradients what later forwards and backwards wait for.
//
//   rank 0   F0 F1 F2 F3 F4    B0 F5 W0 B1 W1 B2 W2 B3 W3 B4 W4 B5 W5
//   rank 1      F0 F1 F2    B0 F3 B1 F4 B2 F5 B3 W0 B4 W1 B5 W2 W3 W4 W5
//   rank 2         F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 W0 W1 W2 W3 W4 W5
//
// This is what the heuristic finds at unit cost; the hand-made order ZB-H2 (HandMadeZeroBubble) has
// the same span with one activation less. It places instruction by instruction, in rounds of one
// backward on every rank, and eight policies compete for the shortest span (largest last end -
// first start of a rank), the first of equals.

#include <algorithm>
#include <utility>
#include <vector>

#include "compiler/plan/error.h"
#include "compiler/plan/memory_limit.h"
#include "compiler/simulate/memory.h"
#include "schedules/published/placement.h"
#include "schedules/published/rows.h"

namespace contraflow {
namespace {

/// Limit of 2P activations before their B, or less.
int64_t LimitOf(const Spec& spec) {
  const MemoryLimit memory(spec.costs);
  const int64_t all = memory.bytes() ? spec.costs.memory->ActivationOfAll(spec.ranks) : spec.ranks;
  const int64_t twice = std::max(2 * all, memory.largest());
  return std::min(twice, spec.memory_limit.value_or(twice));
}

struct Zb2pPolicy {
  bool wait_before_first_b;  ///< no forward that would delay the first backward
  bool prefer_b;             ///< no forward that would make a rank late for its next backward
  bool greedy_w;             ///< a weight gradient even in a bubble that costs no span
};

class Zb2pHeuristic {
 public:
  Zb2pHeuristic(const Spec& spec, Zb2pPolicy policy)
      : spec_(spec), policy_(policy), ranks_(spec.ranks) {
    limits_.assign(static_cast<size_t>(ranks_), LimitOf(spec));
    if (const std::vector<int64_t> devices = DevicesOf(spec); !devices.empty()) {
      const Plan frame = SingleRoutePlan(spec, LinearPlacement(ranks_));
      const std::vector<int64_t> room = RoomForActivations(frame, spec.costs, devices);
      for (size_t r = 0; r < room.size(); ++r) {
        // Makes a plan that does not fit at all, so that the error can state the excess.
        const int64_t one = MemoryLimit(spec.costs, {}, {static_cast<int>(r)}).activation();
        limits_[r] = std::max(one, std::min(limits_[r], room[r]));
      }
    }
    for (int rank = 0; rank < ranks_; ++rank) {
      memory_.emplace_back(spec.costs, std::nullopt, std::vector<int>{rank});
    }
    state_.resize(static_cast<size_t>(ranks_));
    for (State& state : state_) {
      state.end_f.resize(static_cast<size_t>(spec.microbatches));
      state.end_b.resize(static_cast<size_t>(spec.microbatches));
      state.program.reserve(3 * state.end_f.size());
    }
  }

  void Run() {
    Begin();
    for (int round = 1; round < spec_.microbatches; ++round) {
      Forwards();
      Backwards(round);
    }
    for (int rank = 0; rank < ranks_; ++rank) {
      while (At(rank).w < spec_.microbatches) Put(rank, Op::W);
    }
  }

  Time Span() const {
    Time span = 0;
    for (const State& state : state_) span = std::max(span, state.now - state.first_start);
    return span;
  }

  std::vector<Program> TakePrograms() {
    std::vector<Program> programs;
    for (State& state : state_) programs.push_back(std::move(state.program));
    return programs;
  }

 private:
  struct State {
    Program program;
    std::vector<Time> end_f, end_b;
    int f = 0, b = 0, w = 0;  ///< next micro-batch of each kind
    Time now = 0, first_start = 0, bubble = 0;
    int64_t held = 0;
  };

  State& At(int rank) { return state_[static_cast<size_t>(rank)]; }

  Time Cost(int rank, Op op, int microbatch) const {
    return spec_.costs.Duration(CellOp(op, rank, microbatch));
  }

  /// When what F or B of this rank's next micro-batch waits for has arrived.
  Time Arrival(int rank, Op op) {
    const Time comm = spec_.costs.comm.latency + spec_.costs.comm.occupancy;
    if (op == Op::F && rank > 0) {
      CF_ASSERT(At(rank - 1).f > At(rank).f);
      return At(rank - 1).end_f[static_cast<size_t>(At(rank).f)] + comm;
    }
    if (op == Op::B && rank + 1 < ranks_) {
      CF_ASSERT(At(rank + 1).b > At(rank).b);
      return At(rank + 1).end_b[static_cast<size_t>(At(rank).b)] + comm;
    }
    return 0;
  }

  int64_t Limit(int rank) const { return limits_[static_cast<size_t>(rank)]; }
  const MemoryLimit& Memory(int rank) const { return memory_[static_cast<size_t>(rank)]; }

  void Put(int rank, Op op) {
    State& state = At(rank);
    int& next = op == Op::F ? state.f : op == Op::B ? state.b : state.w;
    const Time start = std::max(state.now, Arrival(rank, op));
    const Time end = start + Cost(rank, op, next);
    if (state.program.empty()) {
      state.first_start = start;
    } else {
      state.bubble += start - state.now;
      largest_bubble_ = std::max(largest_bubble_, state.bubble);
    }
    state.now = end;
    if (op == Op::F) {
      state.held += Memory(rank).activation();
      CF_ASSERT(state.held <= Limit(rank));
      state.end_f[static_cast<size_t>(next)] = end;
    } else if (op == Op::B) {
      state.held -= Memory(rank).activation() - Memory(rank).stash();
      state.end_b[static_cast<size_t>(next)] = end;
    } else {
      state.held -= Memory(rank).stash();
    }
    state.program.push_back(CellOp(op, rank, next++));
  }

  /// Forwards that fit before the first backward comes back, then that backward.
  void Begin() {
    for (int rank = 0; rank < ranks_; ++rank) Put(rank, Op::F);
    const Time comm = spec_.costs.comm.latency + spec_.costs.comm.occupancy;
    std::vector<int> ahead(static_cast<size_t>(ranks_), 0);
    Time back = At(ranks_ - 1).now + Cost(ranks_ - 1, Op::B, 0);
    for (int rank = ranks_ - 2; rank >= 0; --rank) {
      const State& state = At(rank);
      int& more = ahead[static_cast<size_t>(rank)];
      Time end = state.now;
      while (state.f + more < spec_.microbatches &&
             state.held + (more + 1) * Memory(rank).activation() <= Limit(rank)) {
        const Time cost = Cost(rank, Op::F, state.f + more);
        if (policy_.wait_before_first_b ? end + cost > back + comm : end >= back + comm) break;
        end += cost;
        ++more;
      }
      back = std::max(end, back + comm) + Cost(rank, Op::B, 0);
    }
    // No more than the rank before has, and one less unless these are all there are.
    for (size_t rank = 1; rank < ahead.size(); ++rank) {
      const bool all = At(static_cast<int>(rank)).f + ahead[rank] == spec_.microbatches;
      if (all && ahead[rank] <= ahead[rank - 1]) continue;
      ahead[rank] = std::min(ahead[rank], std::max(0, ahead[rank - 1] - 1));
    }
    for (int rank = 0; rank < ranks_; ++rank) {
      for (int i = 0; i < ahead[static_cast<size_t>(rank)]; ++i) Put(rank, Op::F);
    }
    for (int rank = ranks_ - 1; rank >= 0; --rank) Put(rank, Op::B);
  }

  /// True if the next forward of a rank should run before its next backward.
  bool WantsForward(int rank) {
    const State& state = At(rank);
    if (state.f >= spec_.microbatches) return false;
    if (!policy_.prefer_b || rank + 1 >= ranks_ || state.f < At(rank + 1).f + 2) return true;
    const State& next = At(rank + 1);
    const Time back = next.now + Cost(rank + 1, Op::F, next.f) + Cost(rank + 1, Op::B, next.b) +
                      spec_.costs.comm.latency + spec_.costs.comm.occupancy;
    if (state.now >= back) return false;
    // Weight gradients that have to go first, to make room.
    Time end = state.now + Cost(rank, Op::F, state.f);
    int64_t held = state.held + Memory(rank).activation();
    for (int w = state.w; held > Limit(rank) && w < state.b; ++w) {
      end += Cost(rank, Op::W, w);
      held -= Memory(rank).stash();
    }
    return end <= back || back - state.now > largest_bubble_ - state.bubble;
  }

  void Forwards() {
    std::vector<char> wanted(static_cast<size_t>(ranks_));
    for (int rank = 0; rank < ranks_; ++rank) {
      wanted[static_cast<size_t>(rank)] = WantsForward(rank);
    }
    for (size_t rank = wanted.size() - 1; rank-- > 0;) {
      wanted[rank] = wanted[rank] && wanted[rank + 1];
    }
    for (int rank = 0; rank < ranks_; ++rank) {
      if (!wanted[static_cast<size_t>(rank)]) continue;
      while (At(rank).held + Memory(rank).activation() > Limit(rank)) PutForcedWeight(rank);
      if (rank > 0) FillWithWeights(rank, Arrival(rank, Op::F));
      Put(rank, Op::F);
    }
  }

  void Backwards(int round) {
    for (int rank = ranks_ - 1; rank >= 0; --rank) {
      CF_ASSERT(At(rank).b == round);
      if (rank + 1 < ranks_) FillWithWeights(rank, Arrival(rank, Op::B));
      if (rank == 0 && At(0).f == spec_.microbatches) {
        while (At(0).w < At(0).b) Put(0, Op::W);
      }
      Put(rank, Op::B);
    }
  }

  void PutForcedWeight(int rank) {
    CF_ASSERT(At(rank).w < At(rank).b);
    Put(rank, Op::W);
  }

  /// Weight gradients that fit before `arrival`, and one more unless the bubble costs no span.
  void FillWithWeights(int rank, Time arrival) {
    const State& state = At(rank);
    while (state.w < state.b && state.now + Cost(rank, Op::W, state.w) <= arrival) {
      Put(rank, Op::W);
    }
    if (state.w >= state.b || state.now >= arrival) return;
    const bool free = arrival - state.now <= largest_bubble_ - state.bubble;
    if (!free || policy_.greedy_w) Put(rank, Op::W);
  }

  const Spec& spec_;
  const Zb2pPolicy policy_;
  std::vector<MemoryLimit> memory_;  // of one activation on each rank
  const int ranks_;
  std::vector<int64_t> limits_;  // of each rank
  Time largest_bubble_ = 0;
  std::vector<State> state_;
};

std::string RejectZb2p(const Spec& spec) {
  const int64_t least = MemoryLimit(spec.costs).largest();
  if (spec.memory_limit && *spec.memory_limit < least) {
    return "needs room for one activation of " + std::to_string(least) +
           " on a rank, `memory_limit` is " + std::to_string(*spec.memory_limit);
  }
  return RejectChunks(spec, 1);
}

/// Activations that wait for W have only the stash, so more than 2P may fit.
int Zb2pPeak(const Spec& spec, int) {
  const int64_t stash = MemoryLimit(spec.costs).stash();
  if (stash == 0) return spec.microbatches;
  return static_cast<int>(std::min<int64_t>(spec.microbatches, LimitOf(spec) / stash));
}

Plan GenerateZb2p(const Spec& spec) {
  Plan plan = LinearPlan(spec);
  Time best = 0;
  for (int i = 0; i < 8; ++i) {
    Zb2pHeuristic heuristic(
        spec, {.wait_before_first_b = i < 4, .prefer_b = i % 4 < 2, .greedy_w = i % 2 == 0});
    heuristic.Run();
    if (i > 0 && heuristic.Span() >= best) continue;
    best = heuristic.Span();
    plan.programs = heuristic.TakePrograms();
  }
  return plan;
}

}  // namespace

// The published (PP-1)(F+B-3W) is of the span, not of the makespan, so there is no formula here.
const Schedule kZb2p = {
    .name = "zb-2p",
    .summary = "no bubbles between first and last instruction of a rank, for twice the activations",
    .limits = "any P and M",
    .memory = "the bytes of 2P activations on every rank, or fewer with `memory_limit`",
    .stages = [](const Spec& spec) { return spec.ranks; },
    .reject = RejectZb2p,
    .frame = LinearPlan,
    .generate = GenerateZb2p,
    .peak_activations = Zb2pPeak,
    .formula = nullptr,
    .heeds_costs = true,
};

}  // namespace contraflow
