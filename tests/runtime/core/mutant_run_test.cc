// Mutants that the verifier lets pass run to the right gradients: mutants of sound plans that
// Verify accepts are executed under the strictest semantics and compared with training without a
// pipeline, bit for bit.

#include <doctest/doctest.h>

#include <set>
#include <string>

#include "compiler/verify/verify.h"
#include "schedules/registry.h"
#include "tests/support/mutants.h"
#include "tests/support/run_support.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"

namespace contraflow::mutant_run_test {
namespace {

TEST_SUITE("property") {
  TEST_CASE("mutants that pass the verifier run right") {
    std::set<std::string> operators;
    int made = 0, ran = 0;
    uint64_t seed = 1;
    for (const Schedule* schedule : Schedules()) {
      for (const auto& [ranks, microbatches] :
           std::vector<std::pair<int, int>>{{2, 4}, {3, 6}, {4, 8}, {4, 10}}) {
        Spec spec = MakeSpec(schedule->name, ranks, microbatches, UniformCosts(3, 4, 2, 1));
        if (!schedule->reject(spec).empty()) continue;
        spec.data_parallel = 1 + ranks % 3 % 2;
        const Plan plan = Compile(spec);
        for (const Mutant& mutant : MakeMutants(plan, CasesToDraw(200), seed++)) {
          ++made;
          if (!Verify(mutant.plan).empty()) continue;
          CAPTURES(plan.schedule, plan.ranks, plan.microbatches, mutant.name, mutant.what);
          CHECK(
              TrainBesideReference(mutant.plan, SmallModel(plan.stages), {.steps = 1}).difference ==
              "");
          operators.insert(mutant.name);
          ++ran;
        }
      }
    }
    MESSAGE(made << " mutants, " << ran << " pass Verify and run right, of " << operators.size()
                 << " operators");
    CHECK(made >= CasesToDraw(2000));
    CHECK(ran >= CasesToDraw(100));
    CHECK(operators.size() >= (kSanitized ? 1 : 3));
  }

  TEST_CASE("mutants of components and of buffers that pass the verifier run right") {
    for (const Level level : {Level::kComponent, Level::kBuffer}) {
      std::set<std::string> operators;
      int made = 0, ran = 0;
      uint64_t seed = 1;
      for (const Schedule* schedule : Schedules()) {
        for (const auto& [ranks, microbatches] : std::vector<std::pair<int, int>>{{2, 4}, {4, 8}}) {
          if (!schedule
                   ->reject(MakeSpec(schedule->name, ranks, microbatches, UniformCosts(3, 4, 2)))
                   .empty()) {
            continue;
          }
          const float capacity = seed % 3 == 0 ? 1.0f : 0;
          const Model model = GroupModel(capacity);
          const Plan plan =
              PlanFor(model, schedule->name, ranks, microbatches, ranks == 2 ? 2 : 1, level, seed);
          for (const Mutant& mutant : MakeMutants(plan, CasesToDraw(250), seed++)) {
            ++made;
            if (!Verify(mutant.plan).empty()) continue;
            CAPTURES(plan.schedule, plan.ranks, Name(level), mutant.name, mutant.what);
            const std::string failure =
                TrainBesideReference(mutant.plan, model, {.steps = 1}).difference;
            // The values of a device are of other sizes in a group of another size, unless every
            // expert has a fixed capacity: twice the devices, half as many experts on each.
            if (level == Level::kBuffer && mutant.plan.expert_parallel != plan.expert_parallel &&
                (capacity == 0 || failure != "")) {
              CHECK(failure.starts_with(
                  "this plan was compiled for another model or device: value "));
              continue;
            }
            CHECK(failure == "");
            operators.insert(mutant.name);
            ++ran;
          }
        }
      }
      MESSAGE(Name(level) << ": " << made << " mutants, " << ran
                          << " pass Verify and run right, of " << operators.size() << " operators");
      CHECK(made >= CasesToDraw(1000));
      CHECK(ran >= CasesToDraw(20));
    }
  }
}

}  // namespace
}  // namespace contraflow::mutant_run_test
