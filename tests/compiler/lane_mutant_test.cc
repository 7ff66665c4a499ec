// The teeth of the verifier where plans have lanes and buffers: each mutant is rejected, or it is
// harmless, and then it runs right in program order and however the lanes get on with each other.

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "compiler/lower/lower.h"
#include "compiler/verify/verify.h"
#include "schedules/registry.h"
#include "tests/support/lane_run.h"
#include "tests/support/mutants.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"

namespace contraflow::lane_mutant_test {
namespace {

/// Returns the first fault of some runs of a plan.
std::string RunAllWays(const Plan& plan, int runs) {
  std::vector<PacedRun> paced = {{Pace::kProgramOrder, 1}};
  for (int k = 0; k < runs; ++k) {
    paced.push_back({k % 2 == 0 ? Pace::kRandom : Pace::kGreedyLane, static_cast<uint64_t>(k)});
  }
  return RunInLanes(plan, paced);
}

/// Sound plans of one level, small: all schedules, one and two layers, stages with unlike ones,
/// replicas, expert groups, and at level buffer stages without layers as well.
std::vector<Plan> SoundPlans(Level level) {
  std::mt19937_64 random(41);
  std::vector<Plan> plans;
  int round = 0;
  for (const Schedule* schedule : Schedules()) {
    for (const auto& [ranks, microbatches] :
         std::vector<std::pair<int, int>>{{1, 2}, {2, 4}, {3, 6}, {4, 8}}) {
      Spec spec = MakeSpec(schedule->name, ranks, microbatches, UniformCosts(3, 4, 2));
      if (!schedule->reject(spec).empty()) continue;
      const bool opaque = level == Level::kBuffer && round % 4 == 3;
      MemoryCost memory;
      if (opaque) {
        memory.activation_bytes = 640;
        memory.w_stash_bytes = 200;
        spec.costs.comm.bytes = 100;
      } else {
        spec.costs = RandomMoeCosts(&random, 2, Overlap::kAll);
        for (size_t v = 0; v < kValueCount; ++v) {
          memory.values.push_back(std::uniform_int_distribution<int64_t>(1, 400)(random));
        }
      }
      spec.costs.memory = memory;
      spec.data_parallel = 1 + round % 2;
      spec.expert_parallel = 1 + round / 2 % 2;
      plans.push_back(Lower(GeneratePlan(spec), spec.costs, {.target = level}));
      if (++round % 2 == 0 || opaque || ranks == 1) continue;
      const bool kinds = level == Level::kComponent;
      spec.costs = RandomUnlikeCosts(&random, schedule->stages(spec), 3, kinds, Overlap::kAll);
      spec.costs.memory = memory;
      if (!schedule->reject(spec).empty()) continue;
      plans.push_back(Lower(GeneratePlan(spec), spec.costs, {.target = level}));
    }
  }
  return plans;
}

/// All mutants of the plans of a level; returns the checks that alone catch some mutant.
std::set<std::string> Mutate(Level level, int each, int least) {
  MutantTally tally;
  int racy = 0, shown = 0;
  uint64_t seed = 1;
  each = std::max(each, static_cast<int>(MutantOperators(level).size()));  // one of every kind
  int number = 0;
  for (const Plan& plan : SoundPlans(level)) {
    if (kSanitized && number++ % 3 != 0) continue;
    CAPTURES(plan.schedule, plan.ranks, plan.layers);
    REQUIRE(FindingsText(plan) == "");
    REQUIRE(RunAllWays(plan, 10) == "");
    for (const Mutant& mutant : MakeMutants(plan, each, seed++)) {
      CAPTURES(seed, mutant.name, mutant.what);
      const std::vector<std::string> checks = ChecksOf(Verify(mutant.plan));
      CAPTURE(FindingsText(mutant.plan));
      CHECK(tally.Add(mutant, checks));
      if (checks.empty()) {
        CHECK(RunAllWays(mutant.plan, 10) == "");
        continue;
      }
      // No false alarm: where only an event or a place is wrong, some run goes wrong by it.
      if (checks.size() > 1 || (checks[0] != "event" && checks[0] != "sharing")) continue;
      if (mutant.name == "event forward" || mutant.name == "repeat event") continue;
      ++racy;
      shown += RunAllWays(mutant.plan, 40) != "";
    }
  }
  MESSAGE(tally.total << " mutants at level " << std::string(Name(level)) << ", " << tally.sound
                      << " of them sound; of " << racy << " with a race only, " << shown
                      << " were seen going wrong\n"
                      << tally.Table(level));
  CHECK(tally.total >= least);
  CHECK(shown * 10 >= racy * 9);
  return tally.needed;
}

TEST_SUITE("property") {
  TEST_CASE("every mutant of components is rejected or runs right") {
    const std::set<std::string> needed =
        Mutate(Level::kComponent, CasesToDraw(150), CasesToDraw(2000));
    for (const char* check : {"shape", "owner", "complete", "order", "weight-order", "message",
                              "reduce", "step", "deadlock", "lane", "event"}) {
      CAPTURE(check);
      CHECK((kSanitized || needed.count(check) == 1));
    }
  }

  TEST_CASE("every mutant of buffers is rejected or runs right") {
    const std::set<std::string> needed =
        Mutate(Level::kBuffer, CasesToDraw(176), CasesToDraw(2000));
    for (const char* check : {"level", "lane", "event", "slot", "sharing"}) {
      CAPTURE(check);
      CHECK((kSanitized || needed.count(check) == 1));
    }
  }

  TEST_CASE("many changes of lanes and slots at once: what passes runs right") {
    std::mt19937_64 random(19);
    std::vector<Plan> plans = SoundPlans(Level::kComponent);
    for (Plan& plan : SoundPlans(Level::kBuffer)) plans.push_back(std::move(plan));
    int sound = 0;
    for (int round = 0; round < CasesToDraw(1500); ++round) {
      Plan plan = plans[random() % plans.size()];
      const auto changes = 1 + random() % 4;
      for (uint64_t k = 0; k < changes; ++k) {
        const auto mutant = MakeMutant(plan, random(), random());
        if (!mutant) continue;
        plan = mutant->plan;
        // Operators work on what has the shape of a plan.
        const std::vector<std::string> checks = ChecksOf(Verify(plan));
        if (!checks.empty() && (checks[0] == "shape" || checks[0] == "level")) break;
      }
      CAPTURES(round, FindingsText(plan));
      if (!Verify(plan).empty()) continue;
      ++sound;
      CHECK(RunAllWays(plan, 6) == "");
    }
    MESSAGE(sound << " of " << CasesToDraw(1500) << " sound");
    CHECK(sound > CasesToDraw(30));
  }
}

}  // namespace
}  // namespace contraflow::lane_mutant_test
