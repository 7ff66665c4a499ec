#include "compiler/lower/lower.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <string>

#include "compiler/bound/bound.h"
#include "compiler/lower/passes.h"
#include "compiler/plan/error.h"
#include "compiler/simulate/simulate.h"
#include "compiler/verify/verify.h"
#include "schedules/registry.h"
#include "tests/support/failure.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"

namespace contraflow::lower_test {
namespace {

TEST_SUITE("property") {
  TEST_CASE("lowering proves itself and costs no makespan whatever the costs") {
    std::mt19937_64 random(7);
    int plans = 0;
    for (int round = 0; round < CasesToDraw(400); ++round) {
      const int p = std::uniform_int_distribution<int>(1, 6)(random);
      const int m = std::uniform_int_distribution<int>(1, 16)(random);
      for (const Schedule* schedule : Schedules()) {
        Spec spec = MakeSpec(schedule->name, p, m, {});
        if (!schedule->reject(spec).empty()) continue;
        spec.costs = RandomCosts(&random, schedule->stages(spec), m);
        spec.data_parallel = round % 3 == 0 ? 2 : 1;
        CAPTURES(schedule->name, p, m, round);
        const Plan order = GeneratePlan(spec);
        const Plan plan = Lower(order, spec.costs, {.target = Level::kComm});
        ++plans;
        CHECK(Verify(plan).empty());
        CHECK(plan.costs == spec.costs);
        CostModel free = spec.costs;  // the compute level knows no REDUCE and STEP
        for (StageCost& stage : free.stages) stage.reduce = stage.step = 0;
        const Time makespan = Simulate(order, free).makespan;
        CHECK(Simulate(plan, free).makespan == makespan);
        CHECK(LowerBound(order, free) <= makespan);
        // Only what the steps themselves take may come on top.
        Time steps = 0;
        for (int s = 0; s < plan.stages; ++s) {
          steps += spec.costs.stage(s).reduce + spec.costs.stage(s).step;
        }
        CHECK(Simulate(plan, spec.costs).makespan <= makespan + steps);
      }
    }
    MESSAGE(plans << " plans");
    CHECK((kSanitized || plans > 1000));
  }

  TEST_CASE("a SEND stands right after what it sends at comm = 0 and with latency") {
    for (const Schedule* schedule : Schedules()) {
      for (const Time latency : {0, 3}) {
        const Spec spec = MakeSpec(schedule->name, 4, 8, UniformCosts(10, 10, 10, latency));
        const Plan plan = Lower(GeneratePlan(spec), spec.costs, {.target = Level::kComm});
        for (const Program& program : plan.programs) {
          const Instruction* producer = nullptr;
          for (const Instruction& i : program) {
            if (WorkOf(i.op) == Work::kCompute) producer = &i;
            if (i.op == Op::SEND_F) {
              CHECK(HasForward(producer->op));
              CHECK(producer->stage == i.stage);
              CHECK(producer->microbatch == i.microbatch);
            }
            if (i.op == Op::SEND_B) {
              CHECK(HasBackward(producer->op));
              CHECK(BackStage(*producer) == i.stage);
              CHECK(BackMicrobatch(*producer) == i.microbatch);
            }
          }
        }
      }
    }
  }
}

TEST_SUITE("unit") {
  TEST_CASE("REDUCE where a stage has copies STEP everywhere") {
    const auto count = [](const Plan& plan, Op op) {
      int n = 0;
      for (const Program& program : plan.programs) {
        for (const Instruction& i : program) n += i.op == op;
      }
      return n;
    };
    Spec spec = MakeSpec("1f1b", 3, 4, UniformCosts(1, 1, 1));
    Plan plan = Lower(GeneratePlan(spec), spec.costs, {.target = Level::kComm});
    CHECK(count(plan, Op::REDUCE) == 0);
    CHECK(count(plan, Op::STEP) == 3);
    spec.data_parallel = 2;
    plan = Lower(GeneratePlan(spec), spec.costs, {.target = Level::kComm});
    CHECK(count(plan, Op::REDUCE) == 3);
    CHECK(count(plan, Op::STEP) == 3);
    spec = MakeSpec("dualpipe", 4, 8, UniformCosts(1, 1, 1));
    plan = Lower(GeneratePlan(spec), spec.costs, {.target = Level::kComm});
    CHECK(count(plan, Op::REDUCE) == 8);
    CHECK(count(plan, Op::STEP) == 8);
  }

  TEST_CASE("a STEP stands after the SEND of what was computed before it") {
    int sends = 0;
    for (const char* schedule : {"1f1b", "zb-v", "chimera", "dualpipe", "dualpipe-v"}) {
      CAPTURE(schedule);
      CostModel costs = UniformCosts(1'000, 1'000, 1'000, 50);
      costs.stages[0].step = 400;
      const Spec spec = MakeSpec(schedule, 4, 8, costs);
      for (const Program& program :
           Lower(GeneratePlan(spec), costs, {.target = Level::kComm}).programs) {
        for (size_t i = 0; i < program.size(); ++i) {
          if (!IsSend(program[i].op)) continue;
          size_t made = i;
          while (IsMessage(program[made].op)) --made;
          CHECK(WorkOf(program[made].op) == Work::kCompute);
          ++sends;
        }
      }
    }
    CHECK(sends > 200);
  }

  TEST_CASE("REDUCE stands after all that its holders begin before they can") {
    int reduces = 0;
    for (const char* schedule : {"chimera", "dualpipe"}) {
      CAPTURE(schedule);
      const CostModel costs = UniformCosts(1'000, 1'000, 1'000);
      const Plan order = GeneratePlan(MakeSpec(schedule, 4, 8, costs));
      const Timeline timeline = Simulate(order, costs).timeline;
      std::vector<Time> weighed(4, 0);
      for (size_t r = 0; r < 4; ++r) {
        for (size_t i = 0; i < order.programs[r].size(); ++i) {
          const Instruction& done = order.programs[r][i];
          if (!HasWeight(done.op)) continue;
          Time& last = weighed[static_cast<size_t>(BackStage(done))];
          last = std::max(last, timeline.ranks[r][i].end);
        }
      }
      const Plan plan = Lower(order, costs, {.target = Level::kComm});
      for (size_t r = 0; r < 4; ++r) {
        size_t computed = 0;
        for (const Instruction& i : plan.programs[r]) {
          if (WorkOf(i.op) == Work::kCompute) ++computed;
          if (i.op != Op::REDUCE) continue;
          const Time at = weighed[static_cast<size_t>(i.stage)];
          const auto begun = std::ranges::count_if(
              timeline.ranks[r], [at](const Span& span) { return span.start <= at; });
          CHECK(computed == static_cast<size_t>(begun));
          ++reduces;
        }
      }
    }
    CHECK(reduces == 16);
  }

  TEST_CASE("every pass is observed and what cannot be lowered is refused") {
    const Spec spec = MakeSpec("zb-1p", 2, 4, UniformCosts(1, 1, 1));
    const Plan order = GeneratePlan(spec);
    std::string seen;
    const Plan plan = Lower(order, spec.costs, {.target = Level::kComm},
                            [&](std::string_view pass, const Plan& made) {
                              seen += std::string(pass) + ":" + std::string(Name(made.level)) + " ";
                            });
    CHECK(seen == "comm:comm ");
    CHECK(PassNames().size() == 3);
    const auto failure = [&](const Plan& from, Level to) {
      return Failure([&] { Lower(from, spec.costs, {.target = to}); });
    };
    CHECK(failure(plan, Level::kComm) ==
          "only a plan of level compute can be lowered, this one is of level comm");
    CHECK(failure(order, Level::kComponent) ==
          "level component needs the costs of the components of a layer; give costs with \"moe\", "
          "such as `costs` deepseek-v3-h800");
    CHECK(failure(order, Level::kBuffer) ==
          "the costs do not say how large activations are; give \"memory\": "
          "{\"activation_bytes\": .., \"w_stash_bytes\": ..}");
    Plan broken = order;
    broken.programs[0].pop_back();
    CHECK(failure(broken, Level::kComm).rfind("cannot lower: ", 0) == 0);
  }
}

}  // namespace
}  // namespace contraflow::lower_test
