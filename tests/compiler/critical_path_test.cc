#include <doctest/doctest.h>

#include <random>
#include <vector>

#include "compiler/lower/lower.h"
#include "compiler/simulate/simulate.h"
#include "schedules/registry.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"

// The critical path where instructions have lanes; tests/simulate_test.cc has the one of chunks.

namespace contraflow::critical_path_test {
namespace {

/// Checks the time between the starts of a link of the chain and the next.
bool Follows(const Instruction& before, const Span& from, const Span& to, Time occupancy) {
  if (to.start == from.end) return true;
  // A message after another on its edge starts when that one has left, before it arrives.
  return WorkOf(before.op) == Work::kSend && to.start == from.start + occupancy;
}

TEST_SUITE("property") {
  TEST_CASE("with components the critical path is a chain from 0 to the makespan") {
    std::mt19937_64 random(71);
    int across = 0, all_to_all = 0;
    for (int round = 0; round < CasesToDraw(120); ++round) {
      const auto schedules = Schedules();
      const Schedule& schedule = *schedules[static_cast<size_t>(round) % schedules.size()];
      const auto draw = [&](int low, int high) {
        return std::uniform_int_distribution<int>(low, high)(random);
      };
      Spec spec = MakeSpec(schedule.name, draw(1, 5), draw(1, 12), {});
      if (!schedule.reject(spec).empty()) continue;
      const Overlap overlap = round % 2 == 0 ? Overlap::kAll : Overlap::kPublished;
      spec.costs = RandomMoeCosts(&random, 2, overlap);
      spec.costs.comm.reduce_blocks = round % 3 == 0;
      const Plan plan =
          Lower(GeneratePlan(spec), spec.costs, {.target = Level::kComponent, .overlap = overlap});
      const Simulation simulation = Simulate(plan, spec.costs);
      const auto path = CriticalPath(plan, spec.costs, simulation.timeline);
      CAPTURES(round, schedule.name);
      REQUIRE_FALSE(path.empty());
      const auto span = [&](InstructionRef ref) {
        return simulation.timeline
            .ranks[static_cast<size_t>(ref.rank)][static_cast<size_t>(ref.index)];
      };
      const auto instruction = [&](InstructionRef ref) {
        return plan.program(ref.rank)[static_cast<size_t>(ref.index)];
      };
      CHECK(span(path.front()).start == 0);
      CHECK(span(path.back()).end == simulation.makespan);
      for (size_t i = 1; i < path.size(); ++i) {
        const Instruction& before = instruction(path[i - 1]);
        CHECK(Follows(before, span(path[i - 1]), span(path[i]), spec.costs.comm.occupancy));
        across += path[i].rank != path[i - 1].rank;
        all_to_all += WorkOf(before.op) == Work::kAllToAll;
      }
    }
    CHECK((kSanitized || across > 100));
    CHECK(all_to_all > 500);
  }
}

}  // namespace
}  // namespace contraflow::critical_path_test
