// The searched schedule with recompute, and what is said where nothing fits.

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "compiler/bound/bound.h"
#include "compiler/lower/lower.h"
#include "compiler/plan/error.h"
#include "compiler/plan/layer_cost.h"
#include "compiler/simulate/simulate.h"
#include "compiler/verify/verify.h"
#include "schedules/published/placement.h"
#include "schedules/published/rows.h"
#include "schedules/recompute/memory_advice.h"
#include "schedules/registry.h"
#include "schedules/search/candidates.h"
#include "schedules/search/repartition.h"
#include "tests/support/failure.h"
#include "tests/support/naive.h"
#include "tests/support/random_layers.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"

namespace contraflow::auto_recompute_test {
namespace {

using Choice = Recompute::Choice;

constexpr Placement kPlacements[] = {
    Placement::kAny,         Placement::kSingle, Placement::kLinear,       Placement::kV,
    Placement::kInterleaved, Placement::kWave,   Placement::kBidirectional};

int64_t Draw(std::mt19937_64* random, int64_t low, int64_t high) {
  return low + static_cast<int64_t>((*random)() % static_cast<uint64_t>(high - low + 1));
}

int64_t PeakOf(const Plan& plan, const CostModel& costs) {
  const bool bytes = costs.memory && costs.memory->activation_bytes > 0;
  int64_t peak = 0;
  for (const RankFigures& rank : Simulate(plan, costs).ranks) {
    peak = std::max(peak, bytes ? rank.peak_bytes : int64_t{rank.peak_activations});
  }
  return peak;
}

Time StepOf(const Plan& order, const CostModel& costs) {
  return Simulate(Lower(order, costs, {.target = Level::kComm}), costs).makespan;
}

/// A spec of auto that recomputes, in any placement that it has.
Spec DrawSpec(std::mt19937_64* random) {
  Spec spec = MakeSpec("auto", static_cast<int>(Draw(random, 1, 5)),
                       static_cast<int>(Draw(random, 2, 9)), {});
  spec.search.placement = kPlacements[Draw(random, 0, 6)];
  spec.search.budget = 20'000'000;
  const bool wave = spec.search.placement == Placement::kWave;
  const auto chunks = static_cast<int>(wave ? Draw(random, 3, 4) : Draw(random, 1, 2));
  spec.costs = RandomCosts(random, chunks * spec.ranks, spec.microbatches);
  const int64_t activation = 2 * Draw(random, 5, 40);
  spec.costs.memory = {.activation_bytes = activation,
                       .w_stash_bytes = Draw(random, 0, activation),
                       .input_bytes = Draw(random, 0, activation / 2)};
  for (StageCost& cost : spec.costs.stages) cost.r = Draw(random, 0, 2) == 0 ? cost.f / 2 : -1;
  const Choice choices[] = {Choice::kFull, Choice::kStages, Choice::kAuto};
  spec.recompute.choice = choices[Draw(random, 0, 2)];
  if (spec.recompute.choice == Choice::kStages) {
    for (int s = 0; s < CostStages(spec); ++s) {
      if (Draw(random, 0, 1) == 0) spec.recompute.stages.push_back(s);
    }
  }
  if (Draw(random, 0, 3) > 0) {
    spec.memory_limit = std::max<int64_t>(1, activation * spec.ranks * Draw(random, 1, 5) / 4);
  }
  return spec;
}

/// Published schedules of the same model in a placement that the spec has, with its recompute.
std::vector<Plan> PublishedOf(const Spec& spec) {
  std::vector<Plan> plans;
  for (const Candidate& candidate : CandidatesOf(spec)) {
    if (candidate.frame.stages != CostStages(spec)) continue;
    for (const Schedule* schedule : Schedules()) {
      if (schedule == &kAuto) continue;
      Spec published = spec;
      published.schedule = schedule->name;
      published.chunks = schedule == &kInterleaved ? candidate.frame.stages / spec.ranks : 0;
      if (!schedule->reject(published).empty()) continue;
      if (schedule->stages(published) != candidate.frame.stages) continue;
      Plan plan = GeneratePlan(published);
      if (plan.routes == candidate.frame.routes) plans.push_back(std::move(plan));
    }
  }
  return plans;
}

void CheckPlan(const Plan& plan, const Spec& spec) {
  REQUIRE(plan.costs);
  REQUIRE(plan.provenance);
  const Provenance& provenance = *plan.provenance;
  CHECK(plan.schedule == "auto");
  CHECK(FindingsText(plan) == "");
  CHECK(*plan.costs == Repartition(spec.costs, CostStages(spec), plan.stages));
  CHECK(provenance.makespan == Simulate(plan, *plan.costs).makespan);
  // Above that of the bounds only where a search over all schedules has proven it.
  const Time bound = ProveBound(plan, *plan.costs, provenance.memory_limit).value;
  CHECK(provenance.bound >= bound);
  CHECK((provenance.bound == bound || provenance.bound == provenance.makespan));
  CHECK(provenance.bound <= provenance.makespan);
  CHECK(provenance.memory_limit == spec.memory_limit);
  CHECK(provenance.budget == spec.search.budget);
  CHECK(provenance.cost_stages.value_or(plan.stages) == CostStages(spec));
  if (spec.memory_limit) CHECK(PeakOf(plan, *plan.costs) <= *spec.memory_limit);
  CHECK(RunSymbolically(Lower(plan, *plan.costs, {.target = Level::kComm})) == "");
}

/// Checks a step with recompute against one without; false if that does not fit.
bool NoLongerThanPlain(Spec spec, Time step) {
  spec.recompute = {};
  try {
    const Plan plain = GeneratePlan(spec);
    // Both share the budget.
    const Time without = StepOf(plain, *plain.costs);
    CHECK(step <= without + without / 20);
    return true;
  } catch (const Error&) {
    return false;
  }
}

/// Length of a step; nothing where none fits.
std::optional<Time> StepOf(const Spec& spec) {
  try {
    const Plan plan = GeneratePlan(spec);
    return StepOf(plan, *plan.costs);
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// A spec of auto in a limited memory: layers, or stages alike in what they hold, and a host.
Spec DrawLimited(std::mt19937_64* random, bool layered) {
  const auto ranks = static_cast<int>(Draw(random, 2, 3));
  Spec spec = MakeSpec("auto", ranks, static_cast<int>(Draw(random, 2, 6)), {});
  int64_t activations = 0;  // of a micro-batch in all stages
  if (layered) {
    const auto layers = static_cast<int>(ranks * Draw(random, 2, 3) + Draw(random, 0, 3));
    spec.costs = RandomLayers(random, layers, true);
    for (LayerCost& layer : spec.costs.layers) {
      layer.activation_bytes = 2 + Draw(random, 0, 18);
      layer.w_stash_bytes = Draw(random, 0, layer.activation_bytes);
      layer.output_bytes = Draw(random, 1, 2);
      activations += layer.repeat * layer.activation_bytes;
    }
  } else {
    spec.costs = RandomCosts(random, ranks, spec.microbatches);
    spec.costs.memory = {.activation_bytes = 20, .w_stash_bytes = Draw(random, 0, 20)};
    spec.costs.memory->input_bytes = Draw(random, 1, 4);
    activations = 20 * ranks;
  }
  spec.costs.host = HostCost{.latency = Draw(random, 1, 30)};
  spec.search.placement = Draw(random, 0, 1) == 0 ? Placement::kLinear : Placement::kV;
  spec.search.budget = 100'000'000;
  spec.memory_limit = activations * Draw(random, 4, 15) / 10;
  return spec;
}

TEST_SUITE("property") {
  TEST_CASE("what auto may choose freely hardly ever makes a step longer, of layers or of stages") {
    // All choices share the budget, so that a freer one may end a little later.
    int shorter = 0, longer = 0;
    const auto compare = [&](const std::optional<Time>& freer, const std::optional<Time>& than) {
      if (!than) return;
      REQUIRE(freer);
      CHECK(*freer <= *than + *than / 20);
      shorter += *freer < *than;
      longer += *freer > *than;
    };
    for (const bool layered : {false, true}) {
      std::mt19937_64 random(6);
      for (int round = 0; round < CasesToDraw(16); ++round) {
        const Spec spec = DrawLimited(&random, layered);
        CAPTURES(layered, round);
        std::optional<Time> steps[2][2];  // with recompute, with offload
        for (const bool recompute : {false, true}) {
          for (const bool offload : {false, true}) {
            Spec with = spec;
            if (recompute) with.recompute.choice = Choice::kAuto;
            if (offload) with.offload.choice = Offload::Choice::kAuto;
            steps[recompute][offload] = StepOf(with);
          }
        }
        compare(steps[1][0], steps[0][0]);
        compare(steps[0][1], steps[0][0]);
        compare(steps[1][1], steps[1][0]);
        compare(steps[1][1], steps[0][1]);
      }
    }
    CHECK((kSanitized || shorter > 20));
    CHECK(longer * 10 < shorter);
  }

  TEST_CASE("auto with recompute is sound and never longer than what is published with it") {
    std::mt19937_64 random(23);
    int compared = 0, shorter = 0, refused = 0, recomputed = 0, plain = 0, longer = 0;
    for (int round = 0; round < CasesToDraw(120); ++round) {
      const Spec spec = DrawSpec(&random);
      CAPTURES(round, Name(spec.search.placement));
      if (!RejectPlacement(spec).empty()) continue;
      Plan plan;
      try {
        plan = GeneratePlan(spec);
      } catch (const Error& error) {
        // Only where one micro-batch alone is too much.
        REQUIRE(spec.memory_limit);
        CHECK(error.what() == "auto " + MemoryAdvice(spec));
        CHECK(*LeastLimit(spec, spec.recompute) > *spec.memory_limit);
        ++refused;
        continue;
      }
      CheckPlan(plan, spec);
      CHECK(plan == GeneratePlan(spec));
      recomputed += std::ranges::any_of(plan.programs, [](const auto& p) {
        return std::ranges::any_of(p, [](const auto& i) { return i.op == Op::R; });
      });
      const Time step = StepOf(plan, *plan.costs);
      if (spec.recompute.choice == Choice::kAuto && spec.memory_limit) {
        Spec full = spec;
        full.recompute.choice = Choice::kFull;
        const Plan all = GeneratePlan(full);
        longer += step > StepOf(all, *all.costs);
        plain += NoLongerThanPlain(spec, step);
      }
      for (const Plan& published : PublishedOf(spec)) {
        if (spec.memory_limit && PeakOf(published, spec.costs) > *spec.memory_limit) continue;
        CAPTURE(published.schedule);
        CHECK(step <= StepOf(published, spec.costs));
        shorter += step < StepOf(published, spec.costs);
        ++compared;
      }
    }
    MESSAGE(compared << " comparisons, " << shorter << " shorter, " << refused << " refused, "
                     << recomputed << " recompute");
    CHECK((kSanitized || compared > 150));
    CHECK((kSanitized || shorter > 50));
    CHECK((kSanitized || refused > 2));
    CHECK((kSanitized || recomputed > 50));
    CHECK((kSanitized || plain > 10));
    CHECK(longer <= 2);
  }

  TEST_CASE("one micro-batch at a time holds least and auto fits from there on") {
    std::mt19937_64 random(29);
    int fits = 0;
    for (int round = 0; round < CasesToDraw(60); ++round) {
      Spec spec = DrawSpec(&random);
      spec.memory_limit.reset();
      CAPTURE(round);
      if (!RejectPlacement(spec).empty()) continue;
      for (const Candidate& candidate : CandidatesOf(spec)) {
        const Plan serial = SerialOrder(candidate.frame);
        CHECK(FindingsText(serial) == "");
        CHECK(SerialPeak(candidate.frame, candidate.spec.costs, false) ==
              PeakOf(serial, candidate.spec.costs));
      }
      const Recompute drawn = spec.recompute;
      for (const Recompute& recompute : {Recompute{}, {.choice = Choice::kFull}, drawn}) {
        spec.recompute = recompute;
        spec.memory_limit = LeastLimit(spec, recompute);
        REQUIRE(spec.memory_limit);
        CheckPlan(GeneratePlan(spec), spec);
        if (*spec.memory_limit == 1) continue;
        --*spec.memory_limit;
        CHECK(Failure([&] { GeneratePlan(spec); }) == "auto " + MemoryAdvice(spec));
        ++fits;
      }
    }
    CHECK((kSanitized || fits > 60));
  }
}

TEST_SUITE("unit") {
  TEST_CASE("a limit that nothing fits is refused with what would help") {
    Spec spec = MakeSpec("auto", 3, 5, UniformCosts(6, 10, 4));
    spec.costs.memory = {.activation_bytes = 100, .w_stash_bytes = 40};
    spec.search.placement = Placement::kAny;
    spec.memory_limit = 99;
    const std::string alone =
        "auto does not fit `memory_limit`: one micro-batch alone holds 100 bytes on a rank, the "
        "limit is 99 bytes; raise it to 100";
    CHECK(Failure([&] { GeneratePlan(spec); }) == alone);
    spec.costs.memory->input_bytes = 10;
    CHECK(Failure([&] { GeneratePlan(spec); }) == alone + ", or give `recompute` auto, which fits");
    spec.memory_limit = 40;
    CHECK(Failure([&] { GeneratePlan(spec); }) ==
          "auto does not fit `memory_limit`: one micro-batch alone holds 100 bytes on a rank, the "
          "limit is 40 bytes; raise it to 100, or to 60 with `recompute` auto");
    spec.recompute = {.choice = Choice::kAuto};
    CHECK(Failure([&] { GeneratePlan(spec); }) ==
          "auto does not fit `memory_limit`: one micro-batch alone holds 60 bytes on a rank with "
          "all stages recomputed, the limit is 40 bytes; raise it to 60");
    spec.recompute = {.choice = Choice::kStages, .stages = {1}};
    CHECK(Failure([&] { GeneratePlan(spec); }) ==
          "auto does not fit `memory_limit`: one micro-batch alone holds 100 bytes on a rank with "
          "these stages recomputed, the limit is 40 bytes; raise it to 100, or to 60 with "
          "`recompute` auto");
    spec.recompute.stages = {0, 1};
    CHECK(Failure([&] { GeneratePlan(spec); }) ==
          "auto does not fit `memory_limit`: one micro-batch alone holds 60 bytes on a rank with "
          "these stages recomputed, the limit is 40 bytes; raise it to 60");
    spec.recompute.stages = {3};
    CHECK(Failure([&] { GeneratePlan(spec); }) ==
          "`recompute`: there is no stage 3, the costs of auto describe 3 stages (0..2)");
  }

  TEST_CASE("stages to recompute are those of the costs however they are cut or merged") {
    const auto stages_with_r = [](const Plan& plan) {
      std::vector<int> stages;
      for (const Program& program : plan.programs) {
        for (const Instruction& i : program) {
          if (i.op == Op::R && i.microbatch == 0) stages.push_back(i.stage);
        }
      }
      std::ranges::sort(stages);
      return stages;
    };
    Spec spec = MakeSpec("auto", 2, 3, UniformCosts(6, 8, 4));
    spec.costs.memory = {.activation_bytes = 100, .w_stash_bytes = 40, .input_bytes = 10};
    spec.recompute = {.choice = Choice::kStages, .stages = {1}};
    spec.search.placement = Placement::kV;
    CHECK(stages_with_r(GeneratePlan(spec)) == std::vector<int>{2, 3});
    spec.costs.stages.resize(4, spec.costs.stages[0]);
    spec.recompute.stages = {1, 2};
    CHECK(stages_with_r(GeneratePlan(spec)) == std::vector<int>{1, 2});
    spec.search.placement = Placement::kLinear;
    CHECK(stages_with_r(GeneratePlan(spec)) == std::vector<int>{0, 1});
    spec.recompute.stages = {0, 1};
    CHECK(stages_with_r(GeneratePlan(spec)) == std::vector<int>{0});
  }

  TEST_CASE("without a limit auto recomputes as early as any limit lets a published schedule") {
    for (const int ranks : {2, 4, 6}) {
      for (const int microbatches : {2, 5, 8}) {
        Spec spec = MakeSpec("auto", ranks, microbatches, UniformCosts(12, 11, 9, 1));
        spec.costs.memory = {.activation_bytes = 100, .w_stash_bytes = 40, .input_bytes = 10};
        spec.recompute = {.choice = Choice::kFull};
        spec.search.placement = Placement::kV;
        spec.search.budget = 2'000'000;
        const Plan plan = GeneratePlan(spec);
        CAPTURES(ranks, microbatches);
        for (const char* published : {"zb-v", "v-half", "v-min"}) {
          Spec limited = spec;
          limited.schedule = published;
          limited.costs = *plan.costs;
          limited.memory_limit = 100 * 2 * ranks;
          CHECK(StepOf(plan, *plan.costs) <= StepOf(GeneratePlan(limited), *plan.costs));
        }
      }
    }
  }

  TEST_CASE("a limit of activations is refused with recompute") {
    Spec spec = MakeSpec("auto", 4, 8, UniformCosts(1, 1, 1));
    spec.recompute = {.choice = Choice::kFull};
    spec.memory_limit = 400;
    const std::string refused =
        "`recompute` with `memory_limit`: the costs give no bytes, and what a recomputed cell "
        "holds is no activation; give \"memory\": {\"activation_bytes\": .., \"input_bytes\": ..}";
    CHECK(Failure([&] { GeneratePlan(spec); }) == refused);
    spec.schedule = "1f1b";
    CHECK(Failure([&] { GeneratePlan(spec); }) == refused);
    // A free choice recomputes nothing.
    spec.recompute = {.choice = Choice::kAuto};
    spec.memory_limit = 4;
    for (const char* schedule : {"1f1b", "auto"}) {
      spec.schedule = schedule;
      CHECK(!RecomputedCells(GeneratePlan(spec)).any());
    }
  }

  TEST_CASE("auto recomputes nothing where that makes no step shorter") {
    Spec spec = MakeSpec("auto", 4, 8, UniformCosts(6, 8, 4));
    spec.costs.memory = {.activation_bytes = 100, .w_stash_bytes = 40, .input_bytes = 10};
    spec.memory_limit = 200;
    const Time plain = GeneratePlan(spec).provenance->makespan;
    spec.recompute = {.choice = Choice::kAuto};
    CHECK(GeneratePlan(spec).provenance->makespan <= plain);
  }
}

}  // namespace
}  // namespace contraflow::auto_recompute_test
