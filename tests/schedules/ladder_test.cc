// A larger budget never gives a longer step, more memory and more overlap hardly ever.

#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <random>

#include "compiler/lower/interleave.h"
#include "compiler/plan/error.h"
#include "compiler/plan/memory_limit.h"
#include "schedules/registry.h"
#include "schedules/search/portfolio.h"
#include "tests/support/random_layers.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"

namespace contraflow::ladder_test {
namespace {

TEST_SUITE("property") {
  TEST_CASE("ladder: a larger budget never gives a longer step of layers, or with R") {
    std::mt19937_64 random(5);
    int compared = 0, shorter = 0;
    for (int round = 0; compared < CasesToDraw(40); ++round) {
      const int ranks = 5 + static_cast<int>(random() % 3);
      const bool bytes = random() % 2 == 0;
      Spec spec =
          MakeSpec("auto", ranks, 8 + 2 * static_cast<int>(random() % 4),
                   RandomLayers(&random, 4 * ranks + static_cast<int>(random() % 8), bytes));
      for (int r = 0; r < ranks && random() % 4 != 0; ++r) {
        spec.costs.ranks.resize(static_cast<size_t>(ranks));
        spec.costs.ranks[static_cast<size_t>(r)].speed = random() % 2 == 0 ? 1 : 0.5;
      }
      const int64_t one = bytes ? 5 * spec.costs.LayerCount() : ranks;
      if (random() % 3 != 0) spec.memory_limit = one * (3 + static_cast<int>(random() % 4)) / 4;
      if (bytes && spec.memory_limit && random() % 2 == 0) {
        spec.costs.memory.emplace().input_bytes = 1;
        spec.recompute.choice = Recompute::Choice::kAuto;
      }
      CAPTURE(round);
      std::optional<Time> last;
      for (const int64_t budget : {16'000'000, 40'000'000, 100'000'000, 250'000'000}) {
        spec.search.budget = budget;
        std::optional<Plan> plan;
        try {
          plan = GeneratePlan(spec);
        } catch (const Error&) {
          CHECK(!last);
          continue;
        }
        const Time step = StepTime(*plan, *plan->costs, spec, plan->provenance->memory_limit);
        CHECK(plan->provenance->budget == budget);
        if (last) {
          CHECK(step <= *last);
          ++compared;
          shorter += step < *last;
        }
        last = step;
      }
    }
    MESSAGE(shorter << " of " << compared << " shorter");
    CHECK((kSanitized || shorter > 4));
  }

  TEST_CASE("ladder: more memory, or more overlap, hardly ever gives a longer step") {
    std::mt19937_64 random(6);
    int shorter = 0, longer = 0;
    for (int round = 0; round < CasesToDraw(12); ++round) {
      CAPTURE(round);
      const int ranks = 4 + 2 * static_cast<int>(random() % 3);
      const int microbatches = 2 * ranks + 2 * static_cast<int>(random() % 4);
      const CostModel costs = round % 2 == 0 ? RandomMoeCosts(&random, 2, Overlap::kAll)
                                             : RandomCosts(&random, ranks, microbatches);
      Spec spec = MakeSpec("auto", ranks, microbatches, costs);
      // One layer is no two chunks.
      spec.search.placement =
          costs.moe || random() % 2 == 0 ? Placement::kBidirectional : Placement::kV;
      spec.search.budget = 100'000'000;
      const auto step = [&](std::optional<int64_t> limit) {
        spec.memory_limit = limit;
        const Plan plan = GeneratePlan(spec);
        return StepTime(plan, *plan.costs, spec, plan.provenance->memory_limit);
      };
      const MemoryLimit unit(costs);
      const int64_t one = unit.bytes() ? costs.memory->ActivationOfAll(ranks) : ranks;
      std::optional<Time> last;
      for (const int64_t quarters : {3, 4, 6, 0}) {
        const Time now = step(quarters > 0 ? std::optional(one * quarters / 4) : std::nullopt);
        // Limits share the budget.
        if (last) CHECK(now <= *last + *last / 50);
        longer += last && now > *last;
        shorter += last && now < *last;
        last = now;
      }
      if (!costs.moe) continue;
      DeriveChunkCosts(&spec.costs, Overlap::kPublished);
      const Time published = step(one);
      spec.costs = costs;
      const Time all = step(one);
      CHECK(all <= published + published / 20);
      longer += all > published;
    }
    MESSAGE(shorter << " shorter, " << longer << " longer");
    CHECK((kSanitized || shorter > 4));
    CHECK(longer * 4 < shorter);
  }
}

}  // namespace
}  // namespace contraflow::ladder_test
