// The bound against the optimum of random tiny instances. More of them, with what came out by
// class: CONTRAFLOW_EXACT=5000 contraflow_test -tc="no bound is above*", and CONTRAFLOW_SEED=2 for
// others.

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>
#include <random>
#include <string>

#include "compiler/bound/bound.h"
#include "compiler/plan/error.h"
#include "schedules/published/placement.h"
#include "tests/support/exact_instance.h"
#include "tests/support/exact_search.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"

namespace contraflow::exact_bound_test {
namespace {

/// How near the bound comes.
struct Tally {
  int cases = 0, reached = 0;
  double gap = 0, worst = 0;

  void Add(Time bound, Time optimum) {
    ++cases;
    reached += bound == optimum;
    const double by = static_cast<double>(optimum - bound) / static_cast<double>(optimum);
    gap += by;
    worst = std::max(worst, by);
  }
};

struct Proven {
  Bound bound;
  Time optimum;
};

/// The bound of an instance, which is not above its optimum; nothing where no search found that.
std::optional<Proven> Compared(const ExactInstance& instance, int64_t most, Tally* all) {
  CAPTURE(instance.Describe());
  const ExactResult exact = ExactMakespan(instance.plan, instance.costs, instance.limit, most);
  // Every instance drawn has room for one micro-batch after the other.
  if (exact.finished) CHECK(exact.makespan.has_value());
  if (!exact.finished || !exact.makespan) return std::nullopt;
  const Bound bound = ProveBound(instance.plan, instance.costs, instance.limit);
  CAPTURE(Name(bound.kind));
  CHECK(bound.value <= *exact.makespan);
  CHECK(bound.value == bound.head + bound.work + bound.idle + bound.tail);
  all->Add(bound.value, *exact.makespan);
  return Proven{bound, *exact.makespan};
}

TEST_SUITE("unit") {
  TEST_CASE("no bound is above the optimum of a tiny instance") {
    const int wanted = FromEnvironment("CONTRAFLOW_EXACT", CasesToDraw(600));
    const bool longer = wanted > 600;
    ExactInstances instances(static_cast<uint64_t>(FromEnvironment("CONTRAFLOW_SEED", 1)));
    std::map<std::string, Tally> classes;
    std::map<std::string, int> kinds;
    Tally all;
    int unfinished = 0;
    while (all.cases < wanted) {
      const ExactInstance instance = instances.Next();
      const auto proven = Compared(instance, longer ? 60'000 : 5'000, &all);
      if (!proven) {
        ++unfinished;
        continue;
      }
      const auto& [bound, optimum] = *proven;
      CHECK(LowerBound(instance.plan, instance.costs) <= bound.value);
      const std::string memory = instance.placement + ", " + instance.memory;
      classes[memory].Add(bound.value, optimum);
      classes[memory + ", " + instance.kind].Add(bound.value, optimum);
      ++kinds[std::string(Name(bound.kind))];
    }
    if (longer) {
      for (const auto& [name, tally] : classes) {
        std::printf("%-44s %5d cases, reached %5.1f %%, gap %6.3f %%, worst %5.1f %%\n",
                    name.c_str(), tally.cases, 100.0 * tally.reached / tally.cases,
                    100 * tally.gap / tally.cases, 100 * tally.worst);
      }
    }
    for (const auto& [name, count] : kinds) MESSAGE(name << ": " << count);
    MESSAGE("the bound is the optimum of " << all.reached << " of " << all.cases << " and "
                                           << 100 * all.gap / all.cases << " % below on average; "
                                           << unfinished << " searches not finished");
    // A bound that is never near could be far too low without anybody noticing.
    CHECK(all.reached > all.cases / 2);
    CHECK(all.gap < 0.03 * all.cases);
    // Each kind decides somewhere, so a mistake in it can show.
    for (const BoundKind kind :
         {BoundKind::kCriticalPath, BoundKind::kBusyRank, BoundKind::kOrder, BoundKind::kTwoWindows,
          BoundKind::kPairs, BoundKind::kMemoryArea, BoundKind::kLink}) {
      CAPTURE(Name(kind));
      CHECK((kSanitized || kinds[std::string(Name(kind))] > 0));
    }
    CHECK(unfinished < all.cases);
  }

  TEST_CASE("no bound is above the optimum of a tiny instance whose stages hold unlike much") {
    const int wanted = FromEnvironment("CONTRAFLOW_EXACT", CasesToDraw(600)) / 2;
    std::mt19937_64 random(static_cast<uint64_t>(FromEnvironment("CONTRAFLOW_SEED", 1)) + 7);
    ExactInstances instances(random());
    Tally all;
    int tighter = 0;
    while (all.cases < wanted) {
      ExactInstance instance = instances.Next();
      const Plan& plan = instance.plan;
      if (!instance.limit) continue;
      MemoryCost memory;
      int64_t most = 0;
      for (int s = 0; s < plan.stages; ++s) {
        memory.activation_of.push_back(1 + static_cast<int64_t>(random() % 12));
        const int64_t held = memory.activation_of.back();
        memory.stash_of.push_back(static_cast<int64_t>(random()) % (held + 1));
        memory.stash_of.back() = std::abs(memory.stash_of.back());
        most = std::max(most, held);
      }
      memory.activation_bytes = *std::ranges::min_element(memory.activation_of);
      memory.w_stash_bytes = *std::ranges::min_element(memory.stash_of);
      instance.costs.memory = memory;
      const int64_t least = SerialPeak(plan, instance.costs, false);
      instance.limit = least + static_cast<int64_t>(random() % static_cast<uint64_t>(2 * most));
      const auto proven = Compared(instance, 5'000, &all);
      if (!proven) continue;
      tighter += proven->bound.value > LowerBound(plan, instance.costs);
      // One byte less than one micro-batch needs: nothing fits, and that is proven.
      CHECK_THROWS_AS(ProveBound(plan, instance.costs, least - 1), Error);
    }
    MESSAGE("with unlike stages the bound is the optimum of "
            << all.reached << " of " << all.cases << " and " << 100 * all.gap / all.cases
            << " % below on average, " << tighter << " by memory");
    CHECK(all.reached > all.cases / 4);
    CHECK(tighter > all.cases / 10);
  }

  TEST_CASE("no bound is above the optimum of a tiny instance that recomputes") {
    const int wanted = FromEnvironment("CONTRAFLOW_EXACT", CasesToDraw(600)) / 2;
    std::mt19937_64 random(static_cast<uint64_t>(FromEnvironment("CONTRAFLOW_SEED", 1)));
    ExactInstances instances(random());
    Tally all;
    int unfinished = 0, tighter = 0;
    while (all.cases < wanted) {
      ExactInstance instance = instances.Next();
      Plan& plan = instance.plan;
      plan.programs.assign(static_cast<size_t>(plan.ranks), {});
      const bool whole = random() % 2 == 0;  // stages, or chunks by lot
      for (int s = 0; s < plan.stages; ++s) {
        const bool stage = random() % 2 == 0;
        for (int m = 0; m < plan.microbatches; ++m) {
          if (whole ? stage : random() % 2 == 0) plan.programs[0].push_back(CellOp(Op::R, s, m));
        }
      }
      if (instance.costs.memory) {
        const auto activation = static_cast<uint64_t>(instance.costs.memory->activation_bytes);
        instance.costs.memory->input_bytes = static_cast<int64_t>(random() % (activation + 1));
      }
      for (StageCost& cost : instance.costs.stages) {
        cost.r = random() % 2 == 0 ? -1 : static_cast<Time>(random() % 6);
      }
      const auto proven = Compared(instance, 5'000, &all);
      if (!proven) {
        ++unfinished;
        continue;
      }
      tighter += proven->bound.value > LowerBound(FrameOf(plan), instance.costs);
    }
    MESSAGE("with recompute the bound is the optimum of "
            << all.reached << " of " << all.cases << " and " << 100 * all.gap / all.cases
            << " % below on average; " << unfinished << " searches not finished");
    CHECK(all.reached > all.cases / 4);
    CHECK(tighter > all.cases / 2);
    CHECK((kSanitized || unfinished < all.cases));
  }
}

}  // namespace
}  // namespace contraflow::exact_bound_test
