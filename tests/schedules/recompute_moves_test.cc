// Orders with recompute, improved by moves of instructions. Results are sound, fit, are no longer,
// and are optimal for most tiny instances.

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "compiler/files/cost_io.h"
#include "compiler/plan/memory_limit.h"
#include "compiler/simulate/simulate.h"
#include "schedules/published/placement.h"
#include "schedules/recompute/moves.h"
#include "schedules/recompute/recompute.h"
#include "schedules/registry.h"
#include "tests/support/exact_search.h"
#include "tests/support/naive.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"

namespace contraflow::recompute_moves_test {
namespace {

/// With this many instructions of work.
Plan Improve(const Plan& plan, const CostModel& costs, std::optional<int64_t> limit, Time bound,
             int64_t budget, bool freely = false) {
  SearchOptions options;
  options.budget = 60'000'000'000;
  SearchWork work(options);
  return ImproveRecomputed(plan, costs, limit, freely ? Freedom::kCells : Freedom::kNone, bound, 3,
                           budget, &work);
}

/// Cells in the order in which a stage runs them, by kind of their parts.
std::vector<int> RunOf(const Program& program, int stage, bool (*has)(Op)) {
  std::vector<int> microbatches;
  for (const Instruction& i : program) {
    const bool back = has != HasForward;
    if (!has(i.op) || (back ? BackStage(i) : i.stage) != stage) continue;
    microbatches.push_back(back ? BackMicrobatch(i) : i.microbatch);
  }
  return microbatches;
}

bool IsRecompute(Op op) { return op == Op::R; }

TEST_SUITE("property") {
  TEST_CASE("recompute moves: what comes of them is sound, fits and is no longer") {
    std::mt19937_64 random(31);
    const auto draw = [&](int64_t low, int64_t high) {
      return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
    };
    int shorter = 0, fuller = 0, split = 0, toggled = 0;
    for (const Spec& spec : RandomSpecs(&random, 200, 5, 9)) {
      CostModel costs = spec.costs;
      const int64_t stash = draw(0, 50), activation = stash + draw(1, 60);
      costs.memory = MemoryCost{.activation_bytes = activation,
                                .w_stash_bytes = stash,
                                .input_bytes = draw(0, activation)};
      const Plan plain = GeneratePlan(spec);
      std::vector<int> stages;
      for (int s = 0; s < plain.stages; ++s) {
        if (draw(0, 3) > 0) stages.push_back(s);
      }
      const Plan plan = InsertRecompute(plain, stages);
      CAPTURES(spec.schedule, WriteCosts(costs));
      const Simulation before = Simulate(plan, costs);
      std::optional<int64_t> limit = 0;
      for (const RankFigures& rank : before.ranks) limit = std::max(*limit, rank.peak_bytes);
      if (draw(0, 3) == 0) limit.reset();
      const bool freely = draw(0, 1) == 0;
      const Plan moved = Improve(plan, costs, limit, 0, 300'000, freely);
      CHECK(moved == Improve(plan, costs, limit, 0, 300'000, freely));
      CHECK(FindingsText(moved) == "");
      CHECK(RunSymbolically(moved) == "");
      const Simulation after = Simulate(moved, costs);
      CHECK(MemoryLimit(costs, limit).Fits(after));
      CHECK(after.makespan <= before.makespan);
      shorter += after.makespan < before.makespan;
      if (costs.comm.exclusive()) CHECK(moved == plan);
      for (size_t r = 0; r < plan.programs.size(); ++r) {
        fuller += after.ranks[r].peak_bytes > before.ranks[r].peak_bytes;
        split += moved.programs[r].size() != plan.programs[r].size();
        for (int s = 0; s < plan.stages; ++s) {
          for (bool (*has)(Op) : {HasForward, HasBackward, HasWeight, IsRecompute}) {
            const std::vector<int> now = RunOf(moved.programs[r], s, has);
            const std::vector<int> before_it = RunOf(plan.programs[r], s, has);
            if (has != IsRecompute || !freely) {
              CHECK(now == before_it);
            } else {
              toggled += now != before_it;
            }
          }
        }
      }
    }
    MESSAGE(shorter << " of 200 shorter, " << fuller << " ranks hold more");
    CHECK(shorter > 100);
    CHECK(fuller > 20);
    CHECK(split > 50);
    CHECK(toggled > 50);
  }

  TEST_CASE("recompute moves: from 1F1B to the shortest of all schedules, mostly") {
    std::mt19937_64 random(32);
    int compared = 0, optimal = 0;
    while (compared < CasesToDraw(60)) {
      const auto draw = [&](int low, int high) {
        return low + static_cast<int>(random() % static_cast<uint64_t>(high - low + 1));
      };
      const int ranks = draw(2, 3), microbatches = draw(2, 4);
      Spec spec = MakeSpec("1f1b", ranks, microbatches,
                           UniformCosts(draw(2, 9), draw(2, 9), draw(1, 9), draw(0, 2)));
      spec.costs.memory =
          MemoryCost{.activation_bytes = 20, .w_stash_bytes = draw(0, 20), .input_bytes = 2};
      std::vector<int> all;
      for (int s = 0; s < ranks; ++s) all.push_back(s);
      const Plan plan = InsertRecompute(GeneratePlan(spec), all);
      const int64_t limit = 30;
      const ExactResult exact = ExactMakespan(plan, spec.costs, limit, 20'000);
      if (!exact.finished) continue;
      const Time makespan =
          Simulate(Improve(plan, spec.costs, limit, *exact.makespan, 2'000'000), spec.costs)
              .makespan;
      CHECK(makespan >= *exact.makespan);
      ++compared;
      optimal += makespan == *exact.makespan;
    }
    MESSAGE(optimal << " of " << compared << " optimal");
    CHECK(10 * optimal >= 9 * compared);
  }
}

TEST_SUITE("unit") {
  TEST_CASE("recompute moves: one and a half activations are enough for four ranks") {
    Spec spec = MakeSpec("auto", 4, 8, UniformCosts(10, 10, 10));
    spec.costs.memory =
        MemoryCost{.activation_bytes = 100, .w_stash_bytes = 100, .input_bytes = 10};
    spec.search.placement = Placement::kLinear;
    spec.search.budget = 300'000'000;
    spec.recompute.choice = Recompute::Choice::kFull;
    spec.memory_limit = 150;
    // 1F1B takes 410, GPipe 430.
    CHECK(GeneratePlan(spec).provenance->makespan == 380);
    // A rank with eight stages' inputs has no room for as many micro-batches as 1F1B begins.
    spec.ranks = 8;
    CHECK(GeneratePlan(spec).provenance->makespan < 700);
  }
}

}  // namespace
}  // namespace contraflow::recompute_moves_test
