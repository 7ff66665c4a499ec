// The verifier has teeth: each mutant of a sound plan is rejected by the check that its operator is
// aimed at, or it is harmless, and then an interpreter that knows nothing of Verify runs it to the
// right result.

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
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

// Of so many plans one is mutated.
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

bool Expected(const Mutant& mutant, const std::vector<std::string>& checks) {
  return std::any_of(checks.begin(), checks.end(), [&](const std::string& check) {
    return std::count(mutant.expected.begin(), mutant.expected.end(), check) > 0;
  });
}

/// What breaks a promise of shape, level or group is wrong without any effect on the run.
bool MustGoWrong(const std::string& check) {
  return check != "shape" && check != "level" && check != "group";
}

struct Tally {
  int made = 0, sound = 0;
  std::map<std::string, int> checks;
};

TEST_SUITE("property") {
  TEST_CASE("every mutant is rejected by the expected check or runs right") {
    std::map<std::string, Tally> tallies;
    std::set<std::string> needed;  // checks that alone catch some mutant
    int total = 0, sound = 0;
    uint64_t seed = 1;
    for (const Plan& plan : SoundPlans()) {
      REQUIRE(Verify(plan).empty());
      REQUIRE(RunSymbolically(plan) == "");
      if (seed % kEach != 0) {
        ++seed;
        continue;
      }
      for (const Mutant& mutant : MakeMutants(plan, 153, seed++)) {
        CAPTURE(plan.schedule);
        CAPTURE(plan.ranks);
        CAPTURE(plan.microbatches);
        CAPTURE(seed);
        CAPTURE(mutant.name);
        CAPTURE(mutant.what);
        const std::vector<Finding> findings = Verify(mutant.plan);
        const std::vector<std::string> checks = ChecksOf(findings);
        Tally& tally = tallies[mutant.name];
        ++tally.made;
        ++total;
        for (const std::string& check : checks) ++tally.checks[check];
        if (checks.size() == 1) needed.insert(checks[0]);
        if (findings.empty()) {
          ++tally.sound;
          ++sound;
          CHECK(mutant.may_be_sound);
          CHECK(RunSymbolically(mutant.plan) == "");
          continue;
        }
        CAPTURE(FindingsText(mutant.plan));
        CHECK(Expected(mutant, checks));
        // No false alarm either: what is out of order, out of place or stuck does go wrong.
        if (MustGoWrong(checks[0])) CHECK(RunSymbolically(mutant.plan) != "");
      }
    }
    std::string table;
    for (const std::string& name : MutantOperators(Level::kComm)) {
      const Tally& tally = tallies[name];
      CAPTURE(name);
      CHECK(tally.made > 0);
      table += name + ": " + std::to_string(tally.made);
      if (tally.sound > 0) table += ", sound " + std::to_string(tally.sound);
      for (const auto& [check, count] : tally.checks) {
        table += ", " + check + " " + std::to_string(count);
      }
      table += "\n";
    }
    MESSAGE(total << " mutants, " << sound << " of them sound\n" << table);
    CHECK(total >= CasesToDraw(5000));
    CHECK(sound < total / 10);
    if (kSanitized) return;
    // Every check is needed: without it some mutant would pass.
    CHECK(needed == std::set<std::string>{"shape", "level", "owner", "complete", "order", "message",
                                          "producer", "consumer", "group", "reduce", "step",
                                          "deadlock"});
  }

  TEST_CASE("level compute: mutants are rejected or lower to what runs right") {
    int total = 0, sound = 0;
    uint64_t seed = 1000;
    for (const Plan& lowered : SoundPlans()) {
      if (seed % kEach != 0) {
        ++seed;
        continue;
      }
      Plan plan = lowered;
      plan.level = Level::kCompute;
      for (Program& program : plan.programs) {
        program.erase(
            std::remove_if(program.begin(), program.end(),
                           [](const Instruction& i) { return WorkOf(i.op) != Work::kCompute; }),
            program.end());
      }
      REQUIRE(Verify(plan).empty());
      REQUIRE(RunSymbolically(plan) == "");
      for (const Mutant& mutant : MakeMutants(plan, 153, seed++)) {
        CAPTURE(plan.schedule);
        CAPTURE(plan.ranks);
        CAPTURE(plan.microbatches);
        CAPTURE(seed);
        CAPTURE(mutant.name);
        CAPTURE(mutant.what);
        CAPTURE(FindingsText(mutant.plan));
        const std::vector<std::string> checks = ChecksOf(Verify(mutant.plan));
        ++total;
        if (checks.empty()) {
          ++sound;
          CHECK(mutant.may_be_sound);
          CHECK(RunSymbolically(mutant.plan) == "");
          // Lower throws if what it makes is unsound.
          CHECK(RunSymbolically(Lower(mutant.plan, *lowered.costs, {.target = Level::kComm})) ==
                "");
          continue;
        }
        CHECK(Expected(mutant, checks));
        if (MustGoWrong(checks[0])) CHECK(RunSymbolically(mutant.plan) != "");
      }
    }
    MESSAGE(total << " mutants, " << sound << " of them sound");
    CHECK(total >= CasesToDraw(2000));
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
      CAPTURE(round);
      CAPTURE(FindingsText(plan));
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
