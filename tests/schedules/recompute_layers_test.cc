// Recompute of as few layers as it takes: what is chosen fits and takes no more time than it must,
// and no plan is longer for knowing its layers.

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "compiler/bound/bound.h"
#include "compiler/plan/layer_cost.h"
#include "compiler/plan/memory_limit.h"
#include "compiler/plan/recompute_cost.h"
#include "compiler/simulate/memory.h"
#include "compiler/simulate/simulate.h"
#include "schedules/compile.h"
#include "schedules/recompute/moves.h"
#include "schedules/recompute/recompute.h"
#include "schedules/registry.h"
#include "schedules/search/repartition.h"
#include "tests/support/failure.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"

namespace contraflow::recompute_layers_test {
namespace {

CostModel CostsOf(int layers) {
  CostModel costs = UniformCosts(100, 100, 100, 5);
  costs.memory = MemoryCost{.activation_bytes = 1000, .w_stash_bytes = 450, .input_bytes = 60};
  costs.shares = {std::vector<LayerShare>(static_cast<size_t>(layers))};
  return costs;
}

int64_t PeakOf(const Plan& plan, const CostModel& costs) {
  return std::ranges::max(MemoryOf(plan, costs), {}, &MemoryFigures::peak).peak;
}

Time TimeOf(const std::vector<RecomputedStage>& stages, const CostModel& costs) {
  Time time = 0;
  for (const RecomputedStage& s : stages)
    time += costs.Duration(RecomputeOp(s.stage, -1, s.extent));
  return time;
}

/// The least time of R with which an order fits, of all choices of layers; one rank after the
/// other.
Time LeastTime(const Plan& order, const CostModel& costs, int64_t limit) {
  Time least = -1;
  std::vector<int> layers(static_cast<size_t>(order.stages), 0);
  for (;;) {
    std::vector<RecomputedStage> stages;
    for (int s = 0; s < order.stages; ++s) {
      const int k = layers[static_cast<size_t>(s)];
      if (k > 0) stages.push_back({s, {RecomputePart::kFull, k == costs.LayersIn(s) ? 0 : k}});
    }
    if (PeakOf(RecomputeStages(order, stages), costs) <= limit) {
      const Time time = TimeOf(stages, costs);
      if (least < 0 || time < least) least = time;
    }
    size_t s = 0;
    while (s < layers.size() && ++layers[s] > costs.LayersIn(static_cast<int>(s))) layers[s++] = 0;
    if (s == layers.size()) return least;
  }
}

TEST_SUITE("property") {
  TEST_CASE("layers: as few as a rank needs run again") {
    std::mt19937_64 random(31);
    int layered = 0;
    for (int round = 0; round < CasesToDraw(40); ++round) {
      const std::string schedule = std::vector<std::string>{"1f1b", "zb-v", "gpipe"}[random() % 3];
      CostModel costs = CostsOf(1);
      Spec spec = MakeSpec(schedule, 2, 4, costs);
      const Plan order = GeneratePlan(spec);
      costs.stages.resize(static_cast<size_t>(order.stages), costs.stages.front());
      costs.shares.clear();
      for (int s = 0; s < order.stages; ++s) {
        std::vector<LayerShare>& shares = costs.shares.emplace_back(1 + random() % 4);
        for (LayerShare& layer : shares) {
          layer = {1 + static_cast<int64_t>(random() % 5), 1 + static_cast<int64_t>(random() % 5)};
        }
      }
      std::vector<int> all;
      for (int s = 0; s < order.stages; ++s) all.push_back(s);
      const int64_t least = PeakOf(InsertRecompute(order, all), costs), most = PeakOf(order, costs);
      const int64_t limit =
          least + static_cast<int64_t>(random() % static_cast<uint64_t>(most - least + 1));
      const auto stages = StagesToFit(order, costs, limit, RecomputePart::kFull, Grain::kLayers);
      CAPTURES(schedule, limit);
      CHECK(PeakOf(RecomputeStages(order, stages), costs) <= limit);
      CHECK(TimeOf(stages, costs) == LeastTime(order, costs, limit));
      CHECK(TimeOf(stages, costs) <= TimeOf(StagesToFit(order, costs, limit), costs));
      layered += RecomputedCells(RecomputeStages(order, stages)).in_layers();
    }
    CHECK(layered > CasesToDraw(40) / 4);
  }

  TEST_CASE("layers: no plan is longer for knowing them, all fit, and many are shorter") {
    int shorter = 0, count = 0;
    for (const std::string schedule : {"1f1b", "zb-1p", "zb-v", "interleaved-1f1b", "gpipe"}) {
      for (const double share : {0.4, 0.5, 0.75}) {
        for (const int layers : {2, 6}) {
          Spec spec = MakeSpec(schedule, 4, 8, CostsOf(layers));
          const int stages = FindSchedule(schedule).stages(spec);
          spec.memory_limit = static_cast<int64_t>(share * 1000 * stages);
          spec.recompute = ParseRecompute("auto");
          CAPTURES(schedule, share);
          const Plan with = GeneratePlan(spec);
          CHECK(FindingsText(with) == "");
          Spec without = spec;
          without.costs.shares.clear();
          const Plan whole = GeneratePlan(without);
          const MemoryLimit limit(spec.costs, spec.memory_limit);
          const Simulation a = Simulate(with, spec.costs), b = Simulate(whole, spec.costs);
          if (limit.Fits(b)) CHECK(limit.Fits(a));
          if (!limit.Fits(b)) continue;
          CHECK(a.makespan <= b.makespan);
          CHECK(ProveBound(with, spec.costs, spec.memory_limit).value <= a.makespan);
          ++count;
          shorter += a.makespan < b.makespan;
        }
      }
    }
    CHECK(count > 10);
    CHECK(2 * shorter > count);
  }

  TEST_CASE("layers: a search finds what no whole stages can") {
    for (const Placement placement : {Placement::kLinear, Placement::kV}) {
      Spec spec = MakeSpec("auto", 4, 8, CostsOf(8));
      spec.search.placement = placement;
      spec.search.budget = 20'000'000;
      spec.memory_limit = 2000;
      spec.recompute = ParseRecompute("auto");
      const auto step = [&](const Spec& each) {
        const Plan plan = GeneratePlan(each);
        CHECK(FindingsText(plan) == "");
        CHECK(MemoryLimit(*plan.costs, each.memory_limit).Fits(Simulate(plan, *plan.costs)));
        CHECK(plan.provenance->bound <= plan.provenance->makespan);
        return Simulate(plan, *plan.costs).makespan;
      };
      Spec without = spec;
      without.costs.shares.clear();
      const Time with = step(spec), whole = step(without);
      CHECK(with <= whole);
      CHECK((placement == Placement::kV || with < whole));
    }
  }

  TEST_CASE("layers: moves change how many, and stay sound and within the limit") {
    const CostModel costs = CostsOf(8);
    const Plan order = GeneratePlan(MakeSpec("1f1b", 4, 8, costs));
    const std::vector<RecomputedStage> stages =
        StagesToFit(order, costs, 2000, RecomputePart::kFull, Grain::kLayers);
    const Plan plan = HoistRecompute(RecomputeStages(order, stages), costs, 2000);
    int changed = 0;
    for (uint64_t seed = 0; seed < 4; ++seed) {
      SearchOptions options;
      options.budget = 20'000'000;
      SearchWork work(options, SearchControl());
      const Plan moved =
          ImproveRecomputed(plan, costs, 2000, Freedom::kLayers, 0, seed, work.left(), &work);
      CHECK(FindingsText(moved) == "");
      CHECK(PeakOf(moved, costs) <= 2000);
      CHECK(Simulate(moved, costs).makespan <= Simulate(plan, costs).makespan);
      const RecomputedCells before(plan), after(moved);
      for (int s = 0; s < plan.stages; ++s) changed += before.extent(s) != after.extent(s);
    }
    CHECK(changed > 0);
  }
}

TEST_SUITE("unit") {
  TEST_CASE("layers: stages that are cut or merged keep them where they are known") {
    CostModel costs = CostsOf(8);
    CHECK(Repartition(costs, 4, 8).LayersIn(5) == 4);
    CHECK(Repartition(costs, 4, 2).LayersIn(1) == 16);
    costs.shares = {std::vector<LayerShare>(3)};
    CHECK(Repartition(costs, 4, 8).LayersIn(0) == 0);
    // Merged, each layer has what it had of its own stage.
    costs.stages = {costs.stages[0], costs.stages[0]};
    costs.stages[1].f = 300;
    costs.shares = {{{1, 1}, {3, 4}}, {{1, 1}}};
    const CostModel merged = Repartition(costs, 2, 1);
    CHECK(merged.shares ==
          std::vector<std::vector<LayerShare>>{{{25, 200}, {75, 800}, {300, 1000}}});
  }

  TEST_CASE("layers: of a model's layers, as their costs say") {
    Spec spec = MakeSpec("1f1b", 2, 4, {});
    LayerCost block{.name = "block", .repeat = 5, .cost = {10, 10, 10, 20, 30}};
    block.activation_bytes = 100;
    block.output_bytes = 10;
    LayerCost head = block;
    head.name = "head", head.repeat = 1;
    head.cost = {30, 30, 30, 60, 90};
    spec.costs.layers = {block, head};
    spec.partition = ParsePartition("3,3");
    spec.recompute = ParseRecompute("layers=2");
    const Plan plan = Compile(spec);
    CHECK(plan.costs->LayersIn(1) == 3);
    CHECK(plan.costs->Duration(RecomputeOp(1, 0, {RecomputePart::kFull, 2})) == 20);
    CHECK(BytesOfCell(*plan.costs, 1, true, {RecomputePart::kFull, 2}).input == 110);
    // One stage of all layers has an input, too.
    Spec alone = spec;
    alone.schedule = "auto", alone.ranks = 1, alone.partition = {};
    alone.recompute = ParseRecompute("auto");
    alone.memory_limit = 900;
    CHECK(BytesOfCell(*Compile(alone).costs, 0, true, {}).input == 10);
    // An extent that no instruction goes by is not in the plan.
    spec.recompute = {};
    CHECK(Compile(spec).costs->shares.empty());
    spec.recompute = ParseRecompute("layers=1:0");
    spec.schedule = "auto";
    spec.partition = {};
    spec.costs = CostsOf(4);
    spec.search.placement = Placement::kV;
    CHECK(Failure([&] { GeneratePlan(spec); }) ==
          "`recompute`: layers of single stages are those of the 2 stages of the costs, and this "
          "placement makes 4; give a `placement` with as many, or layers=N for every stage");
  }
}

}  // namespace
}  // namespace contraflow::recompute_layers_test
