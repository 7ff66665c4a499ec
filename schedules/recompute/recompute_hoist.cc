// R needs nothing but the stage input, so it can run long before its backward: in a bubble, if
// there is memory for what it makes.

#include <algorithm>
#include <utility>

#include "compiler/plan/recomputed.h"
#include "compiler/simulate/simulate.h"
#include "schedules/recompute/recompute.h"

namespace contraflow {
namespace {

/// Moves the R of one rank into idle time before them. What stands in between starts when it did,
/// so nothing is ever later for it.
class Hoister {
 public:
  Hoister(const Plan& plan, const RecomputedCells& recomputed, size_t rank,
          const std::vector<Span>& spans, const CostModel& costs, const CellBytes& bytes,
          int64_t most)
      : program_(plan.programs[rank]), spans_(spans), costs_(costs), bytes_(bytes), most_(most) {
    int64_t held = 0;
    for (size_t at = 0; at < program_.size(); ++at) {
      const Instruction& i = program_[at];
      idle_.push_back(spans[at].start - (at > 0 ? spans[at - 1].end : 0));
      if (HasForward(i.op)) held += bytes.activation;
      if (i.op == Op::R) held += Dropped();
      held_.push_back(held);
      if (HasForward(i.op) && recomputed.Has(i.stage, i.microbatch)) held -= Dropped();
      if (HasBackward(i.op)) held -= bytes.activation - bytes.stash;
      if (HasWeight(i.op)) held -= bytes.stash;
    }
  }

  Program Run() {
    std::vector<std::vector<size_t>> moved(program_.size());  // what comes before each instruction
    std::vector<bool> gone(program_.size(), false);
    for (size_t at = 0; at < program_.size(); ++at) {
      if (program_[at].op != Op::R || !HoldsUp(at)) continue;
      const size_t to = Place(at);
      if (to == at) continue;
      idle_[to] -= costs_.Duration(program_[at]);
      for (size_t k = to; k < at; ++k) held_[k] += Dropped();
      moved[to].push_back(at);
      gone[at] = true;
    }
    Program program;
    program.reserve(program_.size());
    for (size_t at = 0; at < program_.size(); ++at) {
      for (const size_t earlier : moved[at]) program.push_back(program_[earlier]);
      if (!gone[at]) program.push_back(program_[at]);
    }
    return program;
  }

 private:
  int64_t Dropped() const { return bytes_.activation - bytes_.input; }

  /// True if what follows R begins no earlier because of it.
  bool HoldsUp(size_t at) const {
    return at + 1 < program_.size() && spans_[at + 1].start == spans_[at].end;
  }

  /// The latest earlier place with room for R in time and memory; its own if there is none.
  size_t Place(size_t at) const {
    constexpr size_t kFarthest = 64;
    const Instruction& again = program_[at];
    const Time duration = costs_.Duration(again);
    for (size_t to = at; to-- > 0 && at - to <= kFarthest;) {
      const Instruction& before = program_[to];
      const bool own = HasForward(before.op) && before.stage == again.stage &&
                       before.microbatch == again.microbatch;
      if (own || held_[to] > most_ - Dropped()) break;
      if (idle_[to] >= duration && duration > 0) return to;
    }
    return at;
  }

  const Program& program_;
  const std::vector<Span>& spans_;
  const CostModel& costs_;
  const CellBytes bytes_;
  const int64_t most_;
  std::vector<Time> idle_;     // before each instruction
  std::vector<int64_t> held_;  // during each
};

int64_t FullestRank(const Simulation& simulation) {
  int64_t peak = 0;
  for (const RankFigures& rank : simulation.ranks) peak = std::max(peak, rank.peak_bytes);
  return peak;
}

}  // namespace

Plan HoistRecompute(Plan plan, const CostModel& costs, std::optional<int64_t> limit) {
  constexpr int kRounds = 4;
  Simulation now = Simulate(plan, costs);
  // Which chunks are recomputed does not change by moving R.
  const RecomputedCells recomputed(plan);
  const CellBytes bytes = BytesOfCell(costs, recomputed.any());
  const int64_t most = limit.value_or(FullestRank(now));
  for (int round = 0; round < kRounds; ++round) {
    Plan next = plan;
    for (size_t r = 0; r < next.programs.size(); ++r) {
      next.programs[r] =
          Hoister(plan, recomputed, r, now.timeline.ranks[r], costs, bytes, most).Run();
    }
    if (next.programs == plan.programs) break;
    Simulation then = Simulate(next, costs);
    if (then.makespan >= now.makespan) break;
    plan = std::move(next);
    now = std::move(then);
  }
  return plan;
}

}  // namespace contraflow
