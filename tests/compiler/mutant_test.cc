// The verifier has teeth: each mutant of a sound plan is rejected by the check that its operator is
// aimed at, or it is harmless, and then an interpreter that knows nothing of Verify runs it to the
// right result.

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>

#include "compiler/lower/lower.h"
#include "compiler/verify/verify.h"
#include "schedules/registry.h"
#include "tests/support/mutants.h"
#include "tests/support/naive.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"

namespace contraflow::mutant_test {
namespace {

// Number of plans of which one is mutated.
constexpr uint64_t kEach = kSanitized ? 8 : 1;

/// Sound comm-level plans of every schedule, small, with one and two replicas.
std::vector<Plan> SoundPlans() {
  std::vector<Plan> plans;
  for (const Schedule* schedule : Schedules()) {
    for (const auto& [ranks, microbatches] :
         std::vector<std::pair<int, int>>{{1, 2}, {2, 4}, {3, 6}, {4, 8}, {4, 11}, {5, 3}}) {
      Spec spec = MakeSpec(schedule->name, ranks, microbatches, UniformCosts(3, 4, 2, ranks % 2));
      if (!schedule->reject(spec).empty()) continue;
      for (spec.data_parallel = 1; spec.data_parallel <= 2; ++spec.data_parallel) {
        plans.push_back(Compile(spec));
      }
    }
  }
  return plans;
}

/// A mutant that breaks a promise of shape, level or group is wrong without any effect on the run.
bool MustGoWrong(const std::string& check) {
  return check != "shape" && check != "level" && check != "group";
}

/// Mutates a plan, or one of `kEach` plans; `harmless` goes on with a mutant that no check rejects.
template <typename Harmless>
void Mutate(const Plan& plan, uint64_t seed, MutantTally* tally, Harmless harmless) {
  if (seed % kEach != 0) return;
  REQUIRE(Verify(plan).empty());
  REQUIRE(RunSymbolically(plan) == "");
  for (const Mutant& mutant : MakeMutants(plan, 153, seed)) {
    CAPTURES(plan.schedule, plan.ranks, plan.microbatches, seed, mutant.name, mutant.what,
             FindingsText(mutant.plan));
    const std::vector<std::string> checks = ChecksOf(Verify(mutant.plan));
    CHECK(tally->Add(mutant, checks));
    if (checks.empty()) {
      CHECK(RunSymbolically(mutant.plan) == "");
      harmless(mutant.plan);
    } else if (MustGoWrong(checks[0])) {
      // No false alarm either: what is out of order, out of place or stuck does go wrong.
      CHECK(RunSymbolically(mutant.plan) != "");
    }
  }
}

TEST_SUITE("property") {
  TEST_CASE("every mutant is rejected by the expected check or runs right") {
    MutantTally tally;
    uint64_t seed = 1;
    for (const Plan& plan : SoundPlans()) Mutate(plan, seed++, &tally, [](const Plan&) {});
    MESSAGE(tally.total << " mutants, " << tally.sound << " of them sound\n"
                        << tally.Table(Level::kComm));
    CHECK(tally.total >= CasesToDraw(5000));
    CHECK(tally.sound < tally.total / 10);
    if (kSanitized) return;
    // Every check is needed: without it some mutant would pass.
    CHECK(tally.needed == std::set<std::string>{"shape", "level", "owner", "complete", "order",
                                                "message", "producer", "consumer", "group",
                                                "reduce", "step", "deadlock"});
  }

  TEST_CASE("level compute: mutants are rejected or lower to what runs right") {
    MutantTally tally;
    uint64_t seed = 1000;
    for (Plan plan : SoundPlans()) {
      plan.level = Level::kCompute;
      for (Program& program : plan.programs) {
        std::erase_if(program, [](const Instruction& i) { return WorkOf(i.op) != Work::kCompute; });
      }
      Mutate(plan, seed++, &tally, [&](const Plan& harmless) {
        // Lower throws if what it makes is unsound.
        CHECK(RunSymbolically(Lower(harmless, *plan.costs, {.target = Level::kComm})) == "");
      });
    }
    MESSAGE(tally.total << " mutants, " << tally.sound << " of them sound");
    CHECK(tally.total >= CasesToDraw(2000));
  }

  TEST_CASE("many changes at once: Verify ends and what it lets pass runs right") {
    std::mt19937_64 random(9);
    const std::vector<Plan> plans = SoundPlans();
    int sound = 0;
    for (int round = 0; round < CasesToDraw(3000); ++round) {
      Plan plan = plans[random() % plans.size()];
      // Orders change most, so that enough stay sound.
      const auto changes = 1 + random() % 6;
      for (uint64_t k = 0; k < changes; ++k) {
        const uint64_t operation = random() % 2 == 0 ? 9 + random() % 3 : random();
        if (const auto mutant = MakeMutant(plan, operation, random())) plan = mutant->plan;
      }
      CAPTURES(round, FindingsText(plan));
      const std::vector<std::string> checks = ChecksOf(Verify(plan));
      if (checks.empty()) {
        ++sound;
        CHECK(RunSymbolically(plan) == "");
      } else if (checks[0] == "deadlock") {
        CHECK(RunSymbolically(plan).rfind("stuck", 0) == 0);
      }
    }
    MESSAGE(sound << " of " << CasesToDraw(3000) << " sound");
    CHECK(sound > CasesToDraw(50));
  }
}

}  // namespace
}  // namespace contraflow::mutant_test
