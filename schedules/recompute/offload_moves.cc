// Which order goes with the copies, and what is recomputed rather than copied, is found by moving:
// an instruction within its rank, a cell from recomputed to not and back. Every order that comes of
// it is fitted to its limits anew. Longer ones are taken too, less and less so as work is spent.

#include <algorithm>
#include <cstddef>
#include <random>
#include <utility>

#include "compiler/plan/error.h"
#include "compiler/plan/memory_limit.h"
#include "compiler/simulate/simulate.h"
#include "schedules/recompute/offload.h"
#include "schedules/search/incumbent.h"

namespace contraflow {
namespace {

/// How far a move carries an instruction, at most.
constexpr int kFar = 8;
/// Laying out copies and simulating them, in instructions of an order that is evaluated.
constexpr int64_t kWorkOfFit = 16;

struct Fitted {
  Plan plan;
  Worth worth;
};

Fitted WithWorth(Plan plan, const CostModel& costs, const std::vector<int64_t>& limits) {
  Fitted fitted = {std::move(plan), {}};
  const Simulation run = Simulate(fitted.plan, costs, Keep::kFigures);
  for (size_t r = 0; r < limits.size(); ++r) {
    const int64_t peak = MemoryLimit(costs).Peak(run.ranks[r]);
    fitted.worth.excess = std::max(fitted.worth.excess, peak - limits[r]);
  }
  fitted.worth.step = run.makespan;
  return fitted;
}

Fitted FitOrder(const Plan& order, const CostModel& costs, const std::vector<int64_t>& limits) {
  return WithWorth(OffloadToFit(order, costs, limits), costs, limits);
}

bool Touches(const Instruction& i, int stage, int m) {
  return (i.stage == stage && i.microbatch == m) ||
         (HasBackward(i.op) && BackStage(i) == stage && BackMicrobatch(i) == m);
}

/// Instructions of one cell keep their order.
bool MayPass(const Instruction& x, const Instruction& y) {
  return !Touches(x, y.stage, y.microbatch) && !Touches(y, x.stage, x.microbatch) &&
         !(HasBackward(x.op) && Touches(y, BackStage(x), BackMicrobatch(x)));
}

class Moves {
 public:
  Moves(uint64_t seed, bool recompute) : random_(seed), recompute_(recompute) {}

  size_t Draw(size_t count) { return static_cast<size_t>(random_() % count); }

  /// False if what was drawn cannot be done.
  bool Apply(Plan* order) {
    Program& program = order->programs[Draw(order->programs.size())];
    if (program.empty()) return false;
    const size_t at = Draw(program.size());
    if (recompute_ && Draw(8) == 0) return ToggleRecompute(*order, &program, at);
    const bool later = Draw(2) == 0;
    const size_t far = 1 + Draw(kFar);
    size_t to = at;
    while (to - at + far > 0 && at - to + far > 0) {
      if (later ? to + 1 >= program.size() : to == 0) break;
      const size_t next = later ? to + 1 : to - 1;
      if (!MayPass(program[at], program[next])) break;
      to = next;
    }
    const auto begin = program.begin();
    const auto x = begin + static_cast<std::ptrdiff_t>(at);
    const auto y = begin + static_cast<std::ptrdiff_t>(to);
    if (to > at) std::rotate(x, x + 1, y + 1);
    if (to < at) std::rotate(y, x, x + 1);
    return to != at;
  }

 private:
  bool ToggleRecompute(const Plan& order, Program* program, size_t at) {
    const Instruction i = (*program)[at];
    if (!HasBackward(i.op)) return false;
    const int stage = BackStage(i), m = BackMicrobatch(i);
    const auto found = std::find_if(program->begin(), program->end(), [&](const Instruction& r) {
      return r.op == Op::R && r.stage == stage && r.microbatch == m;
    });
    // Extent, the same for all cells of a stage.
    RecomputeExtent extent;
    for (const Program& each : order.programs) {
      const auto like = std::find_if(each.begin(), each.end(), [&](const Instruction& r) {
        return r.op == Op::R && r.stage == stage;
      });
      if (like != each.end()) extent = ExtentOf(*like);
    }
    if (found != program->end()) {
      program->erase(found);
    } else {
      program->insert(program->begin() + static_cast<std::ptrdiff_t>(at),
                      RecomputeOp(stage, m, extent));
    }
    return true;
  }

  std::mt19937_64 random_;
  bool recompute_;
};

}  // namespace

Plan ImproveOffloaded(const Plan& offloaded, const CostModel& costs,
                      const std::vector<int64_t>& limits, Time bound, bool recompute, uint64_t seed,
                      SearchWork* work) {
  Plan order = offloaded;
  order.costs.reset();
  int64_t instructions = 0;
  for (Program& program : order.programs) {
    std::erase_if(program, [](const Instruction& i) { return IsHostCopy(i.op); });
    instructions += static_cast<int64_t>(program.size());
  }
  Fitted best = WithWorth(offloaded, costs, limits);
  best.plan.costs.reset();
  Worth current = best.worth;
  if (best.worth > Worth{0, bound}) {
    // Its copies may come from elsewhere.
    Fitted fitted = FitOrder(order, costs, limits);
    current = fitted.worth;
    if (current < best.worth) best = std::move(fitted);
  }
  Moves moves(seed, recompute);
  const int64_t all = work->left();
  while (best.worth > Worth{0, bound} && work->Spend(kWorkOfFit * instructions)) {
    Plan moved = order;
    bool changed = false;
    for (size_t left = 1 + moves.Draw(2); left > 0; --left)
      changed = moves.Apply(&moved) || changed;
    if (!changed) continue;
    try {
      Fitted fitted = FitOrder(moved, costs, limits);
      // Up to two thousandths longer at first.
      const Time heat = current.step / 512 * (work->left() / 1024) / (all / 1024 + 1);
      if (fitted.worth > Worth{current.excess, current.step + heat}) continue;
      current = fitted.worth;
      order = std::move(moved);
      if (current < best.worth) best = std::move(fitted);
    } catch (const InternalError&) {
      throw;
    } catch (const Error&) {
      // Ranks wait for one another.
    }
  }
  best.plan.costs = offloaded.costs;
  return std::move(best.plan);
}

}  // namespace contraflow
