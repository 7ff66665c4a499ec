#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <string>

#include "compiler/bound.h"
#include "compiler/simulate.h"
#include "schedules/registry.h"
#include "tests/support.h"

namespace contraflow {
namespace {

constexpr Time kOne = 1'000'000;  // one "unit" in ticks

Simulation Run(const Spec& spec) { return Simulate(Compile(spec), spec.costs); }

TEST_SUITE("unit") {
  TEST_CASE("unit costs: bubble of every rank is the published formula") {
    // F = B = W = 1, so the full backward is 2, and F&B = 3.
    const CostModel costs = UniformCosts(kOne, kOne, kOne);
    for (const int p : {2, 4, 8, 16}) {
      for (const int m : {2 * p, 3 * p, 8 * p}) {
        const auto check = [&](const char* name, Time bubble, auto peak) {
          const Simulation simulation = Run(MakeSpec(name, p, m, costs));
          for (int r = 0; r < p; ++r) {
            CAPTURE(name);
            CAPTURE(p);
            CAPTURE(m);
            CAPTURE(r);
            const RankFigures& figures = simulation.ranks[static_cast<size_t>(r)];
            CHECK(figures.bubble == bubble * kOne);
            CHECK(figures.peak_activations == peak(r));
          }
        };
        check("gpipe", (p - 1) * 3, [&](int) { return m; });
        check("1f1b", (p - 1) * 3, [&](int r) { return p - r; });
        check("zb-1p", (p - 1) * 1, [&](int) { return p; });
        check("dualpipe", (p / 2 - 1) * (3 + 2 - 3), [&](int) { return p + 1; });
        check("dualpipe-v", (p - 1) * (3 + 2 - 3), [&](int) { return 2 * p + 1; });
      }
    }
  }

  TEST_CASE("random costs: bubble of every rank is the exact closed form") {
    std::mt19937_64 random(20241227);
    const auto draw = [&](Time low, Time high) {
      return std::uniform_int_distribution<Time>(low, high)(random);
    };
    int compared = 0, differs_from_published = 0;
    for (int round = 0; round < 1000; ++round) {
      CostModel costs = UniformCosts(draw(1, 100'000), draw(1, 100'000), draw(1, 100'000));
      StageCost& stage = costs.stages[0];
      stage.fb = draw(std::max(stage.f, stage.bw), stage.f + stage.bw);
      const int p = 2 * static_cast<int>(draw(1, 5));
      const int m = 2 * p + 2 * static_cast<int>(draw(0, 10));
      for (const Schedule* schedule : Schedules()) {
        const Spec spec = MakeSpec(schedule->name, p, m, costs);
        const Simulation simulation = Run(spec);
        const std::vector<Time> exact = schedule->formula->exact(spec);
        REQUIRE(exact.size() == static_cast<size_t>(p));
        const Time published = schedule->formula->published(spec);
        for (size_t r = 0; r < exact.size(); ++r) {
          CAPTURE(schedule->name);
          CAPTURE(r);
          CAPTURE(p);
          CAPTURE(m);
          CAPTURE(stage.f);
          CAPTURE(stage.b);
          CAPTURE(stage.w);
          CAPTURE(stage.fb);
          CHECK(simulation.ranks[r].bubble == exact[r]);
          ++compared;
          if (exact[r] != published) ++differs_from_published;
        }
        CHECK(LowerBound(GeneratePlan(spec), costs) <= simulation.makespan);
      }
    }
    MESSAGE(compared << " bubbles compared, of which " << differs_from_published
                     << " differ from the published formula");
    CHECK(compared > 25'000);
    // The closed forms are needed: without them most of these figures would be called wrong.
    CHECK(differs_from_published > 5'000);
  }

  TEST_CASE("where the published DualPipe formula is too small by how much") {
    // facts: (18.5, 18.1, 9.3) at PP = 8 gives 136.2 by the formula and 137.4 in truth.
    CostModel costs = UniformCosts(18'500'000, 18'100'000, 9'300'000);
    const Spec spec = MakeSpec("dualpipe", 8, 20, costs);
    const Schedule& schedule = FindSchedule("dualpipe");
    CHECK(FormatTime(schedule.formula->published(spec), Unit::kUnit) == "136.2");
    CHECK(FormatTime(Run(spec).ranks[3].bubble, Unit::kUnit) == "137.4");
    // With FB = 2.5 at unit cost the outer ranks idle less: [3.5 4 4.5 4.5 4.5 4.5 4 3.5].
    costs = UniformCosts(kOne, kOne, kOne);
    costs.stages[0].fb = 2'500'000;
    const Simulation simulation = Run(MakeSpec("dualpipe", 8, 20, costs));
    std::string bubbles;
    for (const RankFigures& rank : simulation.ranks) {
      bubbles += FormatTime(rank.bubble, Unit::kUnit) + " ";
    }
    CHECK(bubbles == "3.5 4 4.5 4.5 4.5 4.5 4 3.5 ");
  }

  TEST_CASE("the chunk figures of the H800 trace by hand") {
    // 1F1B: (64 + 15) * (f + b + w); DualPipe published: bw = b + w.
    CostModel costs = UniformCosts(98'696'000, 112'980'000, 29'876'000);
    costs.unit = Unit::kMicroseconds;
    for (StageCost& stage : costs.stages) {
      stage = {
          .f = 98'696'000, .b = 112'980'000, .w = 29'876'000, .bw = 142'856'000, .fb = 127'633'000};
    }
    // fb is shorter than bw here: the pair hides all-to-all that a lone backward exposes.
    CHECK(FormatTime(Run(MakeSpec("1f1b", 16, 64, costs)).makespan, costs.unit) == "19082608");
    CHECK(FormatTime(Run(MakeSpec("dualpipe", 16, 64, costs)).makespan, costs.unit) == "11485588");
  }
}

}  // namespace
}  // namespace contraflow
