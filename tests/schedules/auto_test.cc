// The searched schedule: what holds for any costs, memory and placement.

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <random>

#include "compiler/bound/bound.h"
#include "compiler/lower/lower.h"
#include "compiler/plan/error.h"
#include "compiler/plan/layer_cost.h"
#include "compiler/plan/memory_limit.h"
#include "compiler/simulate/simulate.h"
#include "compiler/verify/verify.h"
#include "schedules/compile.h"
#include "schedules/registry.h"
#include "schedules/search/candidates.h"
#include "schedules/search/portfolio.h"
#include "schedules/search/search_control.h"
#include "tests/support/failure.h"
#include "tests/support/naive.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"

namespace contraflow::auto_test {
namespace {

constexpr Placement kPlacements[] = {
    Placement::kAny,         Placement::kSingle, Placement::kLinear,       Placement::kV,
    Placement::kInterleaved, Placement::kWave,   Placement::kBidirectional};

/// A spec of auto with any placement, costs, shape and limit.
Spec DrawSpec(std::mt19937_64* random) {
  const auto draw = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(*random);
  };
  const int ranks = draw(1, 6), microbatches = draw(1, 14);
  Spec spec = MakeSpec("auto", ranks, microbatches, {});
  spec.search.placement = kPlacements[draw(0, 6)];
  spec.search.budget = 1'000'000 * draw(0, 3);
  spec.search.seed = static_cast<uint64_t>(draw(0, 1000));
  if (draw(0, 3) == 0) spec.chunks = draw(1, 3);
  if (spec.search.placement == Placement::kWave) spec.chunks = draw(3, 4);
  const int chunks = spec.chunks > 0 ? spec.chunks : draw(1, 2);
  spec.costs = RandomCosts(random, chunks * ranks, microbatches);
  if (draw(0, 1) == 0) {
    const int each = draw(1, 40);
    spec.costs.memory = {.activation_bytes = 2 * each, .w_stash_bytes = draw(0, 2 * each)};
  }
  if (draw(0, 1) == 0) {
    const double factor = draw(4, 8) / 4.0;
    spec.memory_limit = ParseMemoryLimit(std::to_string(factor) + "x", spec, CostStages(spec));
  }
  return spec;
}

int64_t PeakOf(const Simulation& simulation, const CostModel& costs) {
  const bool bytes = costs.memory && costs.memory->activation_bytes > 0;
  int64_t peak = 0;
  for (const RankFigures& rank : simulation.ranks) {
    peak = std::max(peak, bytes ? rank.peak_bytes : int64_t{rank.peak_activations});
  }
  return peak;
}

Time StepOf(const Plan& order, const CostModel& costs) {
  return Simulate(Lower(order, costs, {.target = Level::kComm}), costs).makespan;
}

TEST_SUITE("property") {
  TEST_CASE("auto is sound within its memory and never longer than what is published") {
    std::mt19937_64 random(61);
    std::map<std::string, int> placements;
    int compared = 0, shorter = 0, refused = 0;
    for (int round = 0; round < CasesToDraw(150); ++round) {
      const Spec spec = DrawSpec(&random);
      CAPTURES(round, spec.ranks, spec.microbatches, spec.chunks, Name(spec.search.placement));
      const std::string why_not = RejectPlacement(spec);
      if (!why_not.empty()) {
        ++refused;
        CHECK(Failure([&] { GeneratePlan(spec); }) == "auto " + why_not);
        continue;
      }
      const Plan plan = GeneratePlan(spec);
      CHECK(plan == GeneratePlan(spec));
      CHECK(plan.schedule == "auto");
      CHECK(Verify(plan).empty());
      REQUIRE(plan.costs);
      REQUIRE(plan.provenance);
      const CostModel& costs = *plan.costs;
      const Provenance& provenance = *plan.provenance;
      const Simulation simulation = Simulate(plan, costs);
      CHECK(simulation.makespan == provenance.makespan);
      CHECK(provenance.makespan >= provenance.bound);
      // Above that of the bounds only where a search over all schedules has proven it.
      const Time bound = ProveBound(plan, costs, provenance.memory_limit).value;
      CHECK(provenance.bound >= bound);
      CHECK((provenance.bound == bound || provenance.bound == provenance.makespan));
      CHECK_FALSE(provenance.interrupted);
      if (spec.memory_limit) {
        CHECK(PeakOf(simulation, costs) <= *provenance.memory_limit);
        // In the activations of the costs it is the same limit.
        const int64_t scale = costs.memory ? 1 : plan.stages / std::max(1, CostStages(spec));
        if (scale >= 1) CHECK(*provenance.memory_limit == *spec.memory_limit * scale);
      }
      ++placements[provenance.placement];
      const Plan lowered = Lower(plan, costs, {.target = Level::kComm});
      CHECK(RunSymbolically(lowered) == "");
      CHECK(lowered.provenance == plan.provenance);
      const Time step = StepOf(plan, costs);
      for (const Candidate& candidate : CandidatesOf(spec)) {
        for (const Plan& published : PublishedOrders(candidate)) {
          const CostModel& same = candidate.spec.costs;
          const auto& limit = candidate.spec.memory_limit;
          if (limit && PeakOf(Simulate(published, same), same) > *limit) continue;
          CAPTURE(published.schedule);
          CHECK(step <= StepOf(published, same));
          shorter += step < StepOf(published, same);
          ++compared;
        }
      }
    }
    MESSAGE(compared << " comparisons, " << shorter << " shorter, " << refused << " refused");
    CHECK((kSanitized || compared > 400));
    CHECK((kSanitized || shorter > 100));
    CHECK((kSanitized || placements["linear"] > 20));
    CHECK((kSanitized || placements["v"] > 10));
    CHECK((kSanitized || placements["interleaved"] > 5));
    CHECK((kSanitized || placements["wave"] > 5));
    CHECK((kSanitized || placements["bidirectional"] > 10));
  }
}

TEST_SUITE("property") {
  TEST_CASE("a larger budget never gives a longer step, and `any` hardly ever than a placement") {
    std::mt19937_64 random(62);
    int compared = 0, shorter = 0, any_shorter = 0, any_longer = 0, bounded = 0;
    while (compared < CasesToDraw(120)) {
      Spec spec = DrawSpec(&random);
      if (spec.ranks < 2 || !RejectPlacement(spec).empty()) continue;
      spec.search.budget = 2'000'000;
      const auto step_of = [](const Plan& plan, const Spec& of) {
        return LongerThanOrder(*plan.costs, of.search) ? StepOf(plan, *plan.costs)
                                                       : plan.provenance->makespan;
      };
      const auto step = [&](const Spec& of) { return step_of(GeneratePlan(of), of); };
      const Time little = step(spec);
      CAPTURES(compared, Name(spec.search.placement));
      if (!IsChoice(spec.search.placement) && compared % 4 == 0) {
        Spec any = spec;
        any.search.placement = Placement::kAny;
        // The placements share the budget.
        any.search.budget *= 5;
        const Plan plan = GeneratePlan(any);
        const Time of_any = step_of(plan, any);
        CHECK(of_any <= little + little / 8);
        // `any` tries no others.
        const bool tried = spec.search.placement != Placement::kSingle &&
                           spec.search.placement != Placement::kWave;
        if (plan.provenance->bound_of_all && tried) {
          CHECK(*plan.provenance->bound_of_all <= little);
          CHECK(*plan.provenance->bound_of_all <= plan.provenance->bound);
          ++bounded;
        }
        any_longer += of_any > little;
        any_shorter += of_any < little;
      }
      spec.search.budget *= 4;
      const Time more = step(spec);
      CHECK(more <= little);
      shorter += more < little;
      ++compared;
    }
    MESSAGE(shorter << " of " << compared << " shorter; any placement: " << any_shorter
                    << " shorter, " << any_longer << " longer; " << bounded << " bounds of all");
    CHECK((kSanitized || any_longer * 4 < any_shorter));
    CHECK((kSanitized || shorter > 5));
    CHECK((kSanitized || bounded > 5));
  }
}

TEST_SUITE("unit") {
  TEST_CASE("the portfolio of a placement is every published order with its routes") {
    for (const int ranks : {1, 2, 3, 4, 6}) {
      for (const int microbatches : {2, 5, 8, 12}) {
        Spec spec = MakeSpec("auto", ranks, microbatches, UniformCosts(4, 6, 2));
        spec.search.placement = Placement::kAny;
        for (const Candidate& candidate : CandidatesOf(spec)) {
          CAPTURES(ranks, microbatches, Name(candidate.placement));
          std::vector<std::string> expected, names;
          for (const Schedule* schedule : Schedules()) {
            Spec other = candidate.spec;
            other.schedule = schedule->name;
            if (other.schedule == "auto" || !schedule->reject(other).empty()) continue;
            if (schedule->stages(other) != candidate.frame.stages) continue;
            const Plan plan = GeneratePlan(other);
            if (plan.routes == candidate.frame.routes) expected.push_back(plan.schedule);
          }
          for (const Plan& plan : PublishedOrders(candidate)) names.push_back(plan.schedule);
          std::ranges::sort(expected);
          std::ranges::sort(names);
          CHECK(names == expected);
          CHECK(PublishedOrders(candidate, 0).size() == names.size());
          if (!names.empty()) CHECK(PublishedOrders(candidate, kMaxCost).size() == 1);
        }
      }
    }
  }

  TEST_CASE("without a budget a search still offers published orders within its limit") {
    Spec spec = MakeSpec("auto", 1, 6, UniformCosts(13, 15, 16));
    spec.costs.stages.front().bw = 26;
    spec.costs.stages.front().fb = 37;
    spec.chunks = 1;
    spec.search.placement = Placement::kV;
    spec.search.budget = 0;
    spec.memory_limit = 1;
    const Time found = GeneratePlan(spec).provenance->makespan;
    for (const Candidate& candidate : CandidatesOf(spec)) {
      for (const Plan& published : PublishedOrders(candidate)) {
        const Simulation simulation = Simulate(published, candidate.spec.costs);
        if (PeakOf(simulation, candidate.spec.costs) > *candidate.spec.memory_limit) continue;
        CHECK(found <= simulation.makespan);
      }
    }
  }

  TEST_CASE("the portfolio makes what its memory proves too long only where nothing suffices") {
    Spec spec = MakeSpec("auto", 8, 32, UniformCosts(4, 4, 4));
    spec.search.placement = Placement::kV;
    const Candidate candidate = CandidatesOf(spec).front();
    const auto names = [&](std::optional<Time> enough) {
      std::vector<std::string> made;
      for (const Plan& plan : PublishedOrders(candidate, enough)) made.push_back(plan.schedule);
      return made;
    };
    const Time bound = LowerBound(candidate.frame, candidate.spec.costs);
    CHECK(names(std::nullopt).front() == "v-min");
    CHECK(names(bound) == std::vector<std::string>{"zb-v"});
    CHECK(names(bound - 1) == names(std::nullopt));
    CHECK(names(kMaxCost) == std::vector<std::string>{"v-min"});
  }

  TEST_CASE("auto takes any number of ranks and micro-batches in any placement") {
    for (const Placement placement : kPlacements) {
      for (int ranks = 1; ranks <= 5; ++ranks) {
        for (int microbatches = 1; microbatches <= 4; ++microbatches) {
          Spec spec = MakeSpec("auto", ranks, microbatches, UniformCosts(4, 6, 2));
          spec.search.placement = placement;
          CAPTURES(Name(placement), ranks, microbatches);
          if (placement == Placement::kBidirectional && microbatches == 1) {
            CHECK(FindSchedule("auto").reject(spec) ==
                  "needs at least 2 micro-batches for two directions, has 1");
            continue;
          }
          const Plan plan = GeneratePlan(spec);
          CHECK(Verify(plan).empty());
          // The same model, whatever is cut.
          Time busy = 0;
          for (const RankFigures& rank : Simulate(plan, *plan.costs).ranks) busy += rank.busy;
          CHECK(busy == ranks * microbatches * 12);
        }
      }
    }
  }

  TEST_CASE("on one rank, auto sums the gradients of a stage while others run backward") {
    const StageCost cost = {.f = 10, .b = 10, .w = 10, .bw = 20, .fb = 30, .reduce = 10};
    CostModel costs = UniformCosts(1, 1, 1);
    costs.stages.clear();
    costs.layers = {{.name = "block", .repeat = 4, .cost = cost}};
    Spec spec = MakeSpec("auto", 1, 2, costs);
    spec.search.placement = Placement::kAny;
    const auto step = [&] { return Compile(spec).provenance->makespan; };
    CHECK(step() == 2 * 4 * 30);
    spec.data_parallel = 2;
    CHECK(step() == 2 * 4 * 30 + 10);  // that of the first layer is after all backwards
    spec.search.placement = Placement::kLinear;
    CHECK(step() == 2 * 4 * 30 + 4 * 10);
  }

  TEST_CASE("auto says what costs and layers it cannot spread over the ranks") {
    Spec spec = MakeSpec("auto", 4, 8, UniformCosts(3, 3, 3));
    spec.costs.stages.resize(6, spec.costs.stages[0]);
    spec.search.placement = Placement::kAny;
    CHECK(FindSchedule("auto").reject(spec) ==
          "needs costs of P stages or a multiple of it, these are of 6 and P is 4");
    spec.costs.stages.resize(8, spec.costs.stages[0]);
    spec.chunks = 3;
    spec.search.placement = Placement::kInterleaved;
    CHECK(FindSchedule("auto").reject(spec) ==
          "would need costs of 12 stages, these are of 8, which can be neither split nor merged "
          "into that many equal parts");
    spec.search.placement = Placement::kLinear;
    CHECK(FindSchedule("auto").reject(spec) == "");
    std::mt19937_64 random(4);
    spec = MakeSpec("auto", 4, 8, RandomMoeCosts(&random, 1, Overlap::kAll));
    spec.search.placement = Placement::kV;
    CHECK(FindSchedule("auto").reject(spec) ==
          "would split each stage into 2, and its 1 layer does not divide");
    spec = MakeSpec("auto", 3, 2, UniformCosts(3, 3, 3));
    spec.costs.microbatch_scale = {1, 2};
    spec.search.placement = Placement::kBidirectional;
    CHECK(FindSchedule("auto").reject(spec) ==
          "needs an even number of ranks for micro-batches that differ (\"microbatch_scale\"), has "
          "3: on the middle one both directions add to the gradient of one stage, in ascending "
          "order of micro-batch, so which is whose is free only where all cost the same; take "
          "another `placement`");
  }

  TEST_CASE("micro-batches that differ run in an order that makes the step shorter") {
    std::mt19937_64 random(7);
    double gain = 0;
    int compared = 0;
    for (int i = 0; i < CasesToDraw(12); ++i) {
      constexpr Placement kThree[] = {Placement::kLinear, Placement::kV, Placement::kBidirectional};
      Spec spec = MakeSpec("auto", 4, 12 + static_cast<int>(random() % 8), UniformCosts(10, 11, 9));
      spec.search.placement = kThree[i % 3];
      const int chunks = spec.search.placement == Placement::kV ? 2 : 1;
      spec.costs.stages.resize(static_cast<size_t>(4 * chunks), spec.costs.stages[0]);
      spec.search.budget = 20'000'000;
      spec.memory_limit = 4 * chunks;
      for (int m = 0; m < spec.microbatches; ++m) {
        spec.costs.microbatch_scale.push_back(0.25 * static_cast<double>(1 + random() % 12));
      }
      CAPTURE(i);
      const Plan plan = GeneratePlan(spec);
      CHECK(FindingsText(plan) == "");
      const Simulation simulation = Simulate(plan, spec.costs);
      CHECK(simulation.makespan == plan.provenance->makespan);
      CHECK(plan.provenance->bound <= simulation.makespan);
      CHECK(ProveBound(plan, spec.costs, spec.memory_limit).value <= simulation.makespan);
      CHECK(MemoryLimit(spec.costs, spec.memory_limit).Fits(simulation));
      if (plan.routes.size() > 1) continue;
      // PyTorch takes them as they are numbered.
      spec.target = Target::kTorch;
      const Time numbered = GeneratePlan(spec).provenance->makespan;
      CHECK(simulation.makespan <= numbered);
      gain += 1 - static_cast<double>(simulation.makespan) / static_cast<double>(numbered);
      ++compared;
    }
    CHECK((kSanitized || gain > 0.05 * compared));
    MESSAGE("mean gain " << 100 * gain / compared << " %");
  }

  TEST_CASE("bounds are of the micro-batches that each direction has in the end") {
    std::mt19937_64 random(8);
    const auto draw = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(random);
    };
    int other = 0;
    for (int i = 0; i < CasesToDraw(60); ++i) {
      CostModel costs = UniformCosts(draw(30, 160), draw(30, 160), draw(0, 60));
      costs.stages.push_back(UniformCosts(draw(30, 160), draw(30, 160), draw(0, 60)).stages[0]);
      costs.microbatch_scale = {draw(5, 20) / 10.0, draw(5, 20) / 10.0, draw(5, 20) / 10.0};
      Spec spec = MakeSpec("auto", 2, 3, costs);
      spec.search.placement = Placement::kBidirectional;
      spec.memory_limit = draw(2, 5);
      const Plan plan = GeneratePlan(spec);
      CAPTURE(i);
      CHECK(plan.provenance->bound <= plan.provenance->makespan);
      other += plan.routes != CandidatesOf(spec).front().frame.routes ? 1 : 0;
    }
    CHECK(other > 0);
  }

  TEST_CASE("an interrupted search gives the best so far and says so") {
    const std::atomic<bool> stop{true};
    Spec spec = MakeSpec("auto", 6, 20, UniformCosts(3, 5, 2, 1));
    spec.search.placement = Placement::kAny;
    spec.search.budget = 3'600'000'000'000;
    const Plan plan = GeneratePlan(spec, {.stop = &stop});
    CHECK(Verify(plan).empty());
    CHECK(plan.provenance->interrupted);
    CHECK(plan.provenance->placement == "linear");
  }

  TEST_CASE("a limit that nothing fits is refused with what would do") {
    Spec spec = MakeSpec("auto", 3, 5, UniformCosts(3, 5, 2));
    spec.costs.memory = {.activation_bytes = 100, .w_stash_bytes = 40};
    spec.search.placement = Placement::kAny;
    spec.memory_limit = 99;
    CHECK(Failure([&] { GeneratePlan(spec); }) != "accepted");
    spec.memory_limit = 100;
    CHECK(Verify(GeneratePlan(spec)).empty());
  }
}

}  // namespace
}  // namespace contraflow::auto_test
