// ZB-V (Qi et al., arXiv 2401.10241, section 6 and the authors' published heuristic): zero bubble
// with the activations of 1F1B, on a V-shaped pipeline of two stages a rank. The rank that runs the
// first stage runs the last one too, so that backwards begin as soon as the first forwards are
// back.
//
//   rank 0   F0 F1 F2 F3 F4 F0' B0' W0' F1' B1' W1' ...       ' the stage on the way up
//   rank 1      F0 F1 F2 F0' F3 F1' B0' W0' ...
//   rank 2         F0 F0' F1 F1' F2 F2' B0' W0' F3 B0 ...     P = 3
//
// This is the hand-made order. The authors' heuristic places instruction by instruction, in rounds
// of one backward on every rank; its four policies, each repeated with what it has learnt of the
// bubbles, compete with the hand-made order, the first of equals. The paper measures the span, in
// which the heuristic is often better, and by the makespan the hand-made order is; so both count.
// Passes 0..3 are those of v_shape.h.

#include <algorithm>
#include <array>
#include <deque>
#include <initializer_list>
#include <utility>
#include <vector>

#include "compiler/bound/bound.h"
#include "compiler/plan/error.h"
#include "compiler/simulate/simulate.h"
#include "schedules/published/placement.h"
#include "schedules/published/rows.h"
#include "schedules/published/v_shape.h"

namespace contraflow {
namespace {

/// The order by hand, for the rank; micro-batches that it would like to have and are not there are
/// left out.
Program HandMadeZbV(const Spec& spec, int rank) {
  const int ranks = spec.ranks, all = std::max(2 * ranks - 1, spec.microbatches);
  Program program;
  int next[kPasses + 2] = {};
  const auto put = [&](int pass) {
    const int microbatch = next[pass]++;
    if (microbatch >= spec.microbatches) return;
    program.push_back(PassInstruction(ranks, rank, pass, microbatch));
  };
  const auto put_all = [&](std::initializer_list<int> passes, int times) {
    for (int i = 0; i < times; ++i) {
      for (const int pass : passes) put(pass);
    }
  };
  put_all({0}, 2 * (ranks - rank) - 1);
  put_all({1, 0}, rank);
  put_all({1, 2, 4}, ranks - rank);
  while (next[1] < all) {
    if (next[0] < all) put(0);
    put_all({3, 5, 1, 2, 4}, 1);
  }
  put_all({3, 2}, rank);
  put_all({3, 5}, ranks - rank);
  put_all({4}, all - next[4]);
  put_all({5}, all - next[5]);
  return program;
}

struct ZbVPolicy {
  bool fill_b, fill_f;  ///< a weight gradient even where it delays the second B pass, a forward
};

struct ZbVResult {
  std::vector<Program> programs;  ///< empty: the policy does not get to the end
  std::vector<Time> bubbles;      ///< between first and last instruction of each rank
  Time largest_bubble;
};

class ZbVHeuristic {
 public:
  /// `known`: the bubble of each rank in an earlier run, or nothing.
  ZbVHeuristic(const Spec& spec, ZbVPolicy policy, std::vector<Time> known)
      : spec_(spec),
        policy_(policy),
        known_(std::move(known)),
        ranks_(spec.ranks),
        all_(spec.microbatches) {
    for (const Time bubble : known_) largest_known_ = std::max(largest_known_, bubble);
    state_.resize(static_cast<size_t>(ranks_));
    for (State& state : state_) {
      state.program.reserve(6 * static_cast<size_t>(all_));
      for (auto& ends : state.end) ends.reserve(static_cast<size_t>(all_));
    }
  }

  ZbVResult Run() {
    Begin();
    while (Backwards()) {
      for (int rank = 0; rank < ranks_; ++rank) Forward(rank);
    }
    ZbVResult result = {.programs = {}, .bubbles = {}, .largest_bubble = largest_bubble_};
    for (State& state : state_) {
      // With uneven costs the heuristic may get stuck.
      if (state.count(3) < all_) return {.programs = {}, .bubbles = {}, .largest_bubble = 0};
      while (!state.pending.empty()) PutWeight(&state);
      result.programs.push_back(std::move(state.program));
      result.bubbles.push_back(state.bubble);
    }
    return result;
  }

 private:
  struct State {
    Program program;
    std::array<std::vector<Time>, kPasses> end;  ///< of each pass, by micro-batch
    std::deque<Instruction> pending;             ///< weight gradients
    Time now = 0, bubble = 0;
    int held = 0;  ///< activations

    int count(int pass) const { return static_cast<int>(end[static_cast<size_t>(pass)].size()); }
  };

  State& At(int rank) { return state_[static_cast<size_t>(rank)]; }

  /// The rank that a pass comes from, -1 where it turns or begins.
  int From(int rank, int pass) const {
    const int from = pass % 2 == 0 ? rank - 1 : rank + 1;
    return from == ranks_ ? -1 : from;
  }

  /// True if another rank has run the next micro-batch of this pass.
  bool Comes(int rank, int pass) {
    const int from = From(rank, pass);
    return from >= 0 && At(from).count(pass) > At(rank).count(pass);
  }

  /// True if nothing keeps the rank from running this pass.
  bool Ready(int rank, int pass) {
    const State& state = At(rank);
    const int next = state.count(pass);
    return next < all_ && (pass == 0 || state.count(pass - 1) > next) &&
           (From(rank, pass) < 0 || Comes(rank, pass)) &&
           (pass >= 2 || state.held < 2 * ranks_ || !state.pending.empty());
  }

  /// When it arrives; 0 where the pass does not come from another rank.
  Time Arrival(int rank, int pass) {
    const int from = From(rank, pass);
    if (from < 0) return 0;
    CF_ASSERT(Comes(rank, pass));
    const auto microbatch = static_cast<size_t>(At(rank).count(pass));
    return At(from).end[static_cast<size_t>(pass)][microbatch] + spec_.costs.comm.latency +
           spec_.costs.comm.occupancy;
  }

  Time Cost(int rank, int pass, int microbatch) const {
    return spec_.costs.Duration(PassInstruction(ranks_, rank, pass, microbatch));
  }

  void Put(int rank, int pass) {
    State& state = At(rank);
    const int microbatch = state.count(pass);
    CF_ASSERT(Ready(rank, pass));
    const Time start = std::max(state.now, Arrival(rank, pass));
    if (!state.program.empty()) state.bubble += start - state.now;
    largest_bubble_ = std::max(largest_bubble_, state.bubble);
    state.now = start + Cost(rank, pass, microbatch);
    state.end[static_cast<size_t>(pass)].push_back(state.now);
    state.program.push_back(PassInstruction(ranks_, rank, pass, microbatch));
    if (pass >= 2) {
      state.pending.push_back(PassInstruction(ranks_, rank, pass + 2, microbatch));
    } else {
      ++state.held;
    }
  }

  void PutWeight(State* state) {
    CF_ASSERT(!state->pending.empty());
    state->program.push_back(state->pending.front());
    state->now += spec_.costs.Duration(state->pending.front());
    state->pending.pop_front();
    --state->held;
  }

  /// Forwards until the first backward can start: as many on the way down as come back too late to
  /// wait for, then both ways in turn until every rank has as many as the rank before.
  void Begin() {
    for (int rank = 0; rank < ranks_; ++rank) Put(rank, 0);
    for (int rank = ranks_ - 1; rank >= 0; --rank) {
      if (rank + 1 < ranks_) {
        const Time back = Arrival(rank, 1);
        while (At(rank).held + 2 + 2 * rank <= 2 * ranks_ && At(rank).count(0) < all_ &&
               At(rank).now + Cost(rank, 0, At(rank).count(0)) <= back) {
          for (int before = 0; before <= rank; ++before) Put(before, 0);
        }
      }
      Put(rank, 1);
    }
    int pass = 0;
    for (int rank = 1; rank < ranks_; ++rank) {
      const State &here = At(rank), &before = At(rank - 1);
      int in_vain = 0;
      while (in_vain < 2 && (here.count(0) + here.count(1) < before.count(0) + before.count(1) ||
                             (here.count(1) <= before.count(1) && before.count(1) < all_))) {
        ++in_vain;
        for (int after = ranks_ - 1; after >= rank; --after) {
          if (!Ready(after, pass)) continue;
          Put(after, pass);
          in_vain = 0;
        }
        pass = 1 - pass;
      }
    }
  }

  /// One on every rank; false if there was none left that could run.
  bool Backwards() {
    std::vector<int> first, second;  // ranks whose next B is of pass 2, of pass 3
    for (int rank = 0; rank < ranks_; ++rank) {
      const State& state = At(rank);
      const bool is_second = state.count(3) < state.count(2) &&
                             (rank == ranks_ - 1 || Comes(rank, 3) || state.count(2) >= all_);
      (is_second ? second : first).push_back(rank);
    }
    std::reverse(second.begin(), second.end());
    bool any = false;
    for (const int pass : {3, 2}) {
      for (const int rank : pass == 3 ? second : first) {
        if (!Ready(rank, pass)) continue;
        FillWithWeights(rank, pass, pass == 3 || policy_.fill_b);
        Put(rank, pass);
        any = true;
      }
    }
    return any;
  }

  void Forward(int rank) {
    const State& state = At(rank);
    int pass = -1;
    if (state.count(1) >= state.count(0)) {
      pass = 0;
    } else if (rank == ranks_ - 1 || Comes(rank, 1)) {
      pass = 1;
    } else if (rank == 0 || Comes(rank, 0)) {
      pass = 0;
    }
    if (pass < 0 || !Ready(rank, pass)) return;
    while (state.held == 2 * ranks_) PutWeight(&At(rank));
    FillWithWeights(rank, pass, policy_.fill_f);
    Put(rank, pass);
  }

  /// Weight gradients that fit before this pass arrives; with `more` one that does not, unless the
  /// rank can afford the bubble.
  void FillWithWeights(int rank, int pass, bool more) {
    State& state = At(rank);
    if (From(rank, pass) < 0) return;
    const Time arrival = Arrival(rank, pass);
    while (!state.pending.empty() &&
           state.now + spec_.costs.Duration(state.pending.front()) <= arrival) {
      PutWeight(&state);
    }
    if (state.pending.empty() || !more) return;
    Time afford = largest_bubble_;
    if (!known_.empty()) {
      afford = std::max(afford, largest_known_ - known_[static_cast<size_t>(rank)]);
    }
    if (arrival - state.now > afford - state.bubble) PutWeight(&state);
  }

  const Spec& spec_;
  const ZbVPolicy policy_;
  const std::vector<Time> known_;
  const int ranks_, all_;
  Time largest_known_ = 0, largest_bubble_ = 0;
  std::vector<State> state_;
};

/// Runs a policy again with the bubbles it made, as long as they get smaller.
ZbVResult BestZbV(const Spec& spec, ZbVPolicy policy) {
  ZbVResult best = ZbVHeuristic(spec, policy, {}).Run();
  while (!best.programs.empty()) {
    ZbVResult next = ZbVHeuristic(spec, policy, best.bubbles).Run();
    if (next.programs.empty() || next.largest_bubble >= best.largest_bubble) break;
    best = std::move(next);
  }
  return best;
}

/// Length of a step with a barrier after it (makespan) and without one (span), counted alike.
Time Length(const Plan& plan, const CostModel& costs) {
  const Simulation simulation = Simulate(plan, costs, Keep::kFigures);
  return simulation.makespan + simulation.span;
}

/// No order of these routes has a shorter Length: no step is below its bound, and no rank's span is
/// below its work.
Time LeastLength(const Plan& plan, const CostModel& costs) {
  Time busiest = 0;
  for (const Program& program : plan.programs) {
    Time work = 0;
    for (const Instruction& i : program) work += costs.Duration(i);
    busiest = std::max(busiest, work);
  }
  return LowerBound(plan, costs) + busiest;
}

Plan GenerateZbV(const Spec& spec) {
  Plan plan = VPlan(spec);
  Plan best = plan;
  for (int rank = 0; rank < spec.ranks; ++rank) {
    best.program(rank) = HandMadeZbV(spec, rank);
  }
  Time least = Length(best, spec.costs);
  // The heuristic takes far longer than the order by hand, which is often the best there is.
  if (least <= LeastLength(best, spec.costs)) return best;
  std::vector<std::vector<Program>> known;  // policies often agree
  for (int i = 0; i < 4; ++i) {
    plan.programs = BestZbV(spec, {.fill_b = i < 2, .fill_f = i % 2 == 0}).programs;
    if (plan.programs.empty() || std::ranges::count(known, plan.programs) > 0) continue;
    known.push_back(plan.programs);
    const Time length = Length(plan, spec.costs);
    if (length >= least) continue;
    least = length;
    best = plan;
  }
  return best;
}

}  // namespace

// The published bubble of 0 at unit cost is that of the span, so there is no formula here.
const Schedule kZbV = {
    .name = "zb-v",
    .summary = "two stages per rank in a V, no bubbles between a rank's first and last instruction",
    .limits = "any P and M",
    .memory = "2P activations of half a rank each, on every rank",
    .stages = [](const Spec& spec) { return 2 * spec.ranks; },
    .reject = [](const Spec& spec) { return RejectChunks(spec, 2); },
    .frame = VPlan,
    .generate = GenerateZbV,
    .peak_activations = [](const Spec& spec,
                           int) { return 2 * std::min(spec.ranks, spec.microbatches); },
    .formula = nullptr,
    .heeds_costs = true,
};

}  // namespace contraflow
