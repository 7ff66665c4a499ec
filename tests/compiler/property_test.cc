// Properties of every row of the schedule table, whatever it is.

#include <doctest/doctest.h>

#include <random>

#include "compiler/lower/lower.h"
#include "compiler/plan/error.h"
#include "compiler/simulate/simulate.h"
#include "compiler/verify/verify.h"
#include "schedules/registry.h"
#include "tests/support/failure.h"
#include "tests/support/naive.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"

namespace contraflow::property_test {
namespace {

constexpr Time kOne = 1'000'000;

/// The text of every instruction gives it back.
int CountRoundTripFailures(const Plan& plan) {
  int failures = 0;
  for (const Program& program : plan.programs) {
    for (const Instruction& i : program) failures += !(ParseInstruction(ToString(i)) == i);
  }
  return failures;
}

/// One cost, one tick up or a lot. The saving of an F&B over its halves stays: with a longer
/// forward alone and the same F&B it would save more, and other pairs with it.
CostModel Raised(CostModel costs, std::mt19937_64* random) {
  const auto draw = [&](int high) { return std::uniform_int_distribution<int>(0, high)(*random); };
  const Time more = draw(1) == 0 ? 1 : 17;
  StageCost& stage =
      costs.stages[static_cast<size_t>(draw(static_cast<int>(costs.stages.size()) - 1))];
  const int which = draw(7);
  Time* const fields[] = {&stage.f, &stage.bw,   &stage.fb,     &stage.b,
                          &stage.w, &stage.step, &stage.reduce, &costs.comm.latency};
  *fields[which] += more;
  if (which < 2) stage.fb += more;
  // Raised with its part, a full backward keeps what its pair saves.
  const Time longer = std::max({stage.bw, stage.b, stage.w}) - stage.bw;
  stage.bw += longer;
  stage.fb = std::max({stage.fb + longer, stage.f, stage.b, stage.w});
  return costs;
}

CostModel Times(CostModel costs, Time factor) {
  for (StageCost& stage : costs.stages) {
    for (Time* field :
         {&stage.f, &stage.b, &stage.w, &stage.bw, &stage.fb, &stage.reduce, &stage.step}) {
      *field *= factor;
    }
  }
  costs.comm.latency *= factor;
  costs.comm.occupancy *= factor;
  return costs;
}

TEST_SUITE("property") {
  TEST_CASE("every shape up to 8 ranks and 20 micro-batches: honest sound within its memory") {
    int accepted = 0, rejected = 0;
    for (const Schedule* schedule : Schedules()) {
      for (int ranks = 1; ranks <= (kSanitized ? 5 : 8); ++ranks) {
        for (int microbatches = 1; microbatches <= (kSanitized ? 10 : 20); ++microbatches) {
          for (int chunks = 0; chunks <= 3; ++chunks) {
            Spec spec =
                MakeSpec(schedule->name, ranks, microbatches, UniformCosts(kOne, kOne, kOne));
            spec.chunks = chunks;
            CAPTURES(spec.schedule, ranks, microbatches, chunks);
            const std::string why_not = schedule->reject(spec);
            if (!why_not.empty()) {
              ++rejected;
              CHECK(Failure([&] { GeneratePlan(spec); }) == spec.schedule + " " + why_not);
              continue;
            }
            ++accepted;
            const Plan order = GeneratePlan(spec);
            CHECK(order.level == Level::kCompute);
            if (schedule->frame) CHECK(schedule->frame(spec).routes == order.routes);
            // Costs of auto are cut or merged to the stages of its placement.
            const CostModel costs = order.costs ? *order.costs : spec.costs;
            if (!order.costs) CHECK(order.stages == schedule->stages(spec));
            CHECK(Verify(order).empty());
            const Plan plan = Lower(order, costs, {.target = Level::kComm});
            CHECK(Verify(plan).empty());
            CHECK(RunSymbolically(plan) == "");
            CHECK(CountRoundTripFailures(plan) == 0);
            const Simulation simulation = Simulate(plan, costs);
            for (int r = 0; r < ranks; ++r) {
              CHECK(simulation.ranks[static_cast<size_t>(r)].peak_activations <=
                    schedule->peak_activations(spec, r));
            }
          }
        }
      }
    }
    MESSAGE(accepted << " specs accepted, " << rejected << " rejected");
    CHECK(accepted > CasesToDraw(500));
    CHECK(rejected > CasesToDraw(500));
  }

  TEST_CASE("the stated peak of activations is reached once there are enough micro-batches") {
    for (const Schedule* schedule : Schedules()) {
      for (int ranks = 1; ranks <= 8; ++ranks) {
        const Spec spec =
            MakeSpec(schedule->name, ranks, 6 * ranks, UniformCosts(kOne, kOne, kOne));
        if (!schedule->reject(spec).empty()) continue;
        // A searched order has no certain peak, only one it cannot exceed.
        if (spec.schedule == "auto") continue;
        const Simulation simulation = Simulate(Compile(spec), spec.costs);
        for (int r = 0; r < ranks; ++r) {
          CAPTURES(spec.schedule, ranks, r);
          CHECK(simulation.ranks[static_cast<size_t>(r)].peak_activations ==
                schedule->peak_activations(spec, r));
        }
      }
    }
  }

  TEST_CASE("zb-2p keeps any limit that has room for one activation and shortens with memory") {
    std::mt19937_64 random(11);
    const auto draw = [&](int64_t low, int64_t high) {
      return std::uniform_int_distribution<int64_t>(low, high)(random);
    };
    const Schedule& schedule = FindSchedule("zb-2p");
    for (int round = 0; round < CasesToDraw(300); ++round) {
      const int ranks = static_cast<int>(draw(1, 8)), m = static_cast<int>(draw(1, 30));
      Spec spec = MakeSpec("zb-2p", ranks, m, RandomCosts(&random, ranks, m));
      const int64_t each = draw(1, 50);
      spec.costs.memory = {.activation_bytes = each, .w_stash_bytes = draw(0, each)};
      spec.memory_limit = draw(1, 3 * each * ranks);
      CAPTURES(ranks, m, each, *spec.memory_limit);
      if (*spec.memory_limit < each) {
        CHECK(schedule.reject(spec) == "needs room for one activation of " + std::to_string(each) +
                                           " on a rank, `memory_limit` is " +
                                           std::to_string(*spec.memory_limit));
        continue;
      }
      const Plan plan = GeneratePlan(spec);
      CHECK(Verify(plan).empty());
      for (const RankFigures& rank : Simulate(plan, spec.costs).ranks) {
        CHECK(rank.peak_bytes <= std::min(*spec.memory_limit, 2 * ranks * each));
        CHECK(rank.peak_activations <= schedule.peak_activations(spec, 0));
      }
    }
    Spec spec = MakeSpec("zb-2p", 8, 32, UniformCosts(kOne, kOne, kOne));
    Time longer = Simulate(GeneratePlan(spec), spec.costs).span;
    for (const int64_t limit : {12, 8, 4, 2, 1}) {
      spec.memory_limit = limit;
      const Time span = Simulate(GeneratePlan(spec), spec.costs).span;
      CAPTURE(limit);
      CHECK(span > longer);
      longer = span;
    }
  }

  TEST_CASE("costs times k give times times k and a higher cost never gives a shorter makespan") {
    std::mt19937_64 random(3);
    for (const Spec& spec : RandomSpecs(&random, 200, 6, 16)) {
      CAPTURES(spec.schedule, spec.ranks, spec.microbatches);
      const Plan plan = Compile(spec);
      CostModel costs = spec.costs;
      Time makespan = Simulate(plan, costs).makespan;
      for (int k = 0; k < 5; ++k) {
        costs = Raised(costs, &random);
        const Time raised = Simulate(plan, costs).makespan;
        CHECK(raised >= makespan);
        makespan = raised;
      }
      // Factors a micro-batch round to ticks, so only without them are times exact multiples.
      costs.microbatch_scale.clear();
      const Simulation once = Simulate(plan, costs);
      const Simulation seven = Simulate(plan, Times(costs, 7));
      CHECK(seven.makespan == 7 * once.makespan);
      CHECK(seven.span == 7 * once.span);
    }
  }

  TEST_CASE("generating and lowering twice gives the same plan") {
    std::mt19937_64 random(4);
    for (const Spec& spec : RandomSpecs(&random, 50, 8, 20)) {
      CAPTURE(spec.schedule);
      CHECK(Compile(spec) == Compile(spec));
    }
  }
}

}  // namespace
}  // namespace contraflow::property_test
