// The part that a rank cannot fill once its last backward has ended (compiler/bound/window.cc).

#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <random>

#include "compiler/bound/bound.h"
#include "compiler/lower/interleave.h"
#include "schedules/published/placement.h"
#include "tests/support/deepseek_costs.h"
#include "tests/support/exact_search.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"

namespace contraflow::bound_end_test {
namespace {

CostModel Paired(Time f, Time b, Time w, Time fb, Time latency) {
  CostModel costs = UniformCosts(f, b, w, latency);
  costs.stages[0].fb = fb;
  return costs;
}

TEST_SUITE("unit") {
  TEST_CASE("the middle ranks of DualPipe wait at the end for the way upstream") {
    CostModel costs;
    costs.moe = DeepSeek(4);
    DeriveChunkCosts(&costs, Overlap::kPublished);
    const StageCost& cost = costs.stages[0];
    for (const int half : {2, 3, 4}) {
      const Plan frame = BidirectionalPlan(MakeSpec("", 2 * half, 4 * half, costs));
      // To the middle, to the end and back; pairs; the unpaired rest; and back to the beginning.
      const Time first = 2 * half * cost.f + (half - 1) * cost.b;
      const Time last = 2 * half * cost.b + (half - 1) * cost.b + cost.w;
      const Bound bound = ProveBound(frame, costs, 2 * half + 1);
      CAPTURE(half);
      CHECK(Name(bound.kind) == "pairs");
      CHECK(bound.value == first + 2 * half * cost.fb + last);
    }
  }
}

TEST_SUITE("property") {
  TEST_CASE("no bound with pairs and small weight gradients is above the optimum") {
    const int cases = FromEnvironment("CONTRAFLOW_EXACT", CasesToDraw(300));
    std::mt19937_64 random(static_cast<uint64_t>(FromEnvironment("CONTRAFLOW_SEED", 5)));
    const auto draw = [&](int64_t low, int64_t high) {
      return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
    };
    int compared = 0, decided = 0, reached = 0;
    while (compared < cases) {
      const auto ranks = static_cast<int>(draw(2, 3));
      const auto microbatches = static_cast<int>(draw(2, ranks == 2 ? 4 : 3));
      const bool both = draw(0, 2) == 0;
      CostModel costs;
      const bool alike = draw(0, 1) == 0;
      for (int s = 0; s < (alike ? 1 : 2 * ranks); ++s) {
        const Time f = draw(4, 16), b = draw(4, 16), w = draw(0, 5);
        costs.stages.push_back(Paired(f, b, w, std::max({f, b, w}) + draw(0, w + 4), 0).stages[0]);
      }
      if (draw(0, 1) == 0) costs.comm.latency = draw(1, 6);
      if (draw(0, 3) == 0) {
        for (int m = 0; m < microbatches; ++m) {
          costs.microbatch_scale.push_back(static_cast<double>(draw(5, 20)) / 10);
        }
      }
      const Spec spec = MakeSpec("drawn", both ? 2 * ranks : ranks, microbatches, costs);
      const Plan plan = both ? BidirectionalPlan(spec) : SingleRoutePlan(spec, VPlacement(ranks));
      std::optional<int64_t> limit;
      if (draw(0, 2) > 0) limit = draw(2, 2 * ranks + 1);
      const ExactResult exact =
          ExactMakespan(plan, costs, limit, cases > CasesToDraw(300) ? 40'000 : 5'000);
      if (!exact.finished || !exact.makespan) continue;
      CAPTURES(ranks, microbatches, both, compared);
      const Bound bound = ProveBound(plan, costs, limit);
      CHECK(bound.value <= *exact.makespan);
      ++compared;
      decided += Name(bound.kind) == "pairs";
      reached += bound.value == *exact.makespan;
    }
    MESSAGE("pairs decide " << decided << " of " << compared << " bounds, " << reached
                            << " are the optimum");
    CHECK((kSanitized || decided > compared / 20));
    CHECK(reached > compared / 10);
  }
}

}  // namespace
}  // namespace contraflow::bound_end_test
