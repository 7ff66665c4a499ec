// Plans that are made once for all who ask for the same.

#include "schedules/partition/made_plans.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "compiler/plan/error.h"
#include "compiler/plan/layer_cost.h"
#include "schedules/compare.h"
#include "schedules/registry.h"
#include "tests/support/failure.h"
#include "tests/support/support.h"

namespace contraflow::made_plans_test {
namespace {

/// Spec of eight layers, unlike at both ends.
Spec LayeredSpec(const std::string& schedule) {
  Spec spec = MakeSpec(schedule, 2, 4, {});
  const auto layer = [](const char* name, Time f, int repeat) {
    LayerCost cost;
    cost.name = name;
    cost.cost = {.f = f, .b = f, .w = f, .bw = 2 * f, .fb = 3 * f};
    cost.repeat = repeat;
    return cost;
  };
  spec.costs.layers = {layer("embedding", 2, 1), layer("block", 5, 6), layer("head", 9, 1)};
  spec.search.budget = 2'000'000;
  return spec;
}

TEST_SUITE("unit") {
  TEST_CASE("made plans: one for each spec, and its error for each who asks") {
    MadePlans made;
    int times = 0;
    const auto make = [&] {
      ++times;
      Plan plan;
      plan.stages = times;
      return plan;
    };
    Spec spec = LayeredSpec("1f1b");
    CHECK(made.Get(spec, make).stages == 1);
    CHECK(made.Get(spec, make).stages == 1);
    spec.search.components = Overlap::kAll;
    CHECK(made.Get(spec, make).stages == 2);
    spec.costs.layers[0].cost.f += 1;
    CHECK(made.Get(spec, make).stages == 3);
    spec.ranks = 3;
    const auto fail = [&]() -> Plan { throw Error("not " + std::to_string(++times)); };
    for (int i = 0; i < 2; ++i) {
      CHECK(Failure([&] { made.Get(spec, fail); }) == "not 4");
    }
    CHECK(made.Get(LayeredSpec("1f1b"), make).stages == 1);
  }

  TEST_CASE("made plans: stages of the same layers are looked at once") {
    MadePlans made;
    const CostModel costs = LayeredSpec("").costs;
    LayerStages& stages = made.StagesOf(costs, Overlap::kAll);
    CHECK(&made.StagesOf(LayeredSpec("").costs, Overlap::kAll) == &stages);
    CHECK(&made.StagesOf(costs, Overlap::kPublished) != &stages);
    CostModel other = costs;
    other.layers[1].cost.f += 1;
    CHECK(&made.StagesOf(other, Overlap::kAll) != &stages);
    CHECK(&made.StagesOf(costs, Overlap::kAll) == &stages);
  }

  TEST_CASE("made plans: published schedules of layers are taken from there, `auto` is not") {
    MadePlans made, of_auto;
    Plan other;
    other.schedule = "another";
    Spec published = LayeredSpec("1f1b");
    published.search = {};  // no option of a search matters to it
    made.Get(published, [&] { return other; });
    of_auto.Get(LayeredSpec("auto"), [&] { return other; });
    const SearchControl control = {.made = &made};
    CHECK(GeneratePlan(LayeredSpec("1f1b"), control) == other);
    CHECK(GeneratePlan(LayeredSpec("gpipe"), control) == GeneratePlan(LayeredSpec("gpipe")));
    CHECK(GeneratePlan(LayeredSpec("auto"), {.made = &of_auto}) ==
          GeneratePlan(LayeredSpec("auto")));
  }

  TEST_CASE("made plans: a comparison says of each schedule what that gives alone") {
    CompareRequest request;
    request.spec = LayeredSpec("");
    request.keep_plans = true;
    const std::vector<CompareRow> rows = Compare(request);
    CHECK(rows.size() == Schedules().size());
    int taken = 0;
    for (const CompareRow& row : rows) {
      CAPTURE(row.schedule);
      const CompareRow alone = CompareSchedule(FindSchedule(row.schedule), request);
      CHECK(row.rejected == alone.rejected);
      CHECK(row.plan == alone.plan);
      taken += row.plan.has_value();
    }
    CHECK(taken > 6);
  }
}

}  // namespace
}  // namespace contraflow::made_plans_test
