#include "compiler/simulate/idle.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "compiler/lower/lower.h"
#include "compiler/simulate/sensitivity.h"
#include "compiler/simulate/simulate.h"
#include "compiler/verify/verify.h"
#include "schedules/compile.h"
#include "schedules/registry.h"
#include "tests/support/failure.h"
#include "tests/support/support.h"

namespace contraflow::idle_test {
namespace {

Time Total(const std::vector<Idle>& idle) {
  Time total = 0;
  for (const Idle& one : idle) total += one.when.end - one.when.start;
  return total;
}

/// Causes by name, of one rank: "fill 3 memory 7".
std::string Causes(const std::vector<Idle>& idle) {
  std::vector<Time> times(kIdleCauses, 0);
  for (const Idle& one : idle) {
    times[static_cast<size_t>(one.cause)] += one.when.end - one.when.start;
  }
  std::string text;
  for (size_t c = 0; c < times.size(); ++c) {
    if (times[c] == 0) continue;
    text += (text.empty() ? "" : " ") + std::string(Name(static_cast<IdleCause>(c))) + " " +
            std::to_string(times[c]);
  }
  return text;
}

/// Returns "" if the idle times of a rank are in order, apart, and never while its lane is busy.
std::string Flaw(const Plan& plan, const Simulation& run, int r, const std::vector<Idle>& idle) {
  const std::vector<Span>& spans = run.timeline.ranks[static_cast<size_t>(r)];
  Time free = 0;
  for (const Idle& one : idle) {
    if (one.when.start < free || one.when.end <= one.when.start) return "out of order";
    if (one.when.end > run.makespan) return "after the end";
    if (one.cause == IdleCause::kOverhead) return "overhead in a prediction";
    free = one.when.end;
    if (one.because.rank < 0) continue;
    const Span& ran =
        run.timeline
            .ranks[static_cast<size_t>(one.because.rank)][static_cast<size_t>(one.because.index)];
    const bool instead = one.cause == IdleCause::kMemory || one.cause == IdleCause::kOrder;
    if (instead && ran.start < one.when.end) return "what could have run did run";
    if (!instead && (one.when.start < ran.start || ran.end < one.when.end)) {
      return "because of what did not run then";
    }
  }
  for (size_t i = 0; i < spans.size(); ++i) {
    if (LaneOf(plan.program(r)[i].op) != Lane::kCompute || spans[i].start == spans[i].end) continue;
    for (const Idle& one : idle) {
      if (one.when.start < spans[i].end && spans[i].start < one.when.end) return "idle while busy";
    }
  }
  return "";
}

TEST_SUITE("property") {
  TEST_CASE("idle times by cause add up to the bubble of each rank, at every level") {
    std::mt19937_64 random(7);
    std::set<std::string> names;
    int plans = 0;
    for (Spec& spec : RandomSpecs(&random, 90, 5, 10)) {
      const bool components = plans % 3 == 2;
      if (components) spec.costs = RandomMoeCosts(&random, 2, Overlap::kAll);
      if (!components) spec.costs.memory = {.activation_bytes = 8, .w_stash_bytes = 3};
      spec.costs.comm.reduce_blocks = plans % 4 == 0;
      if (!FindSchedule(spec.schedule).reject(spec).empty()) continue;
      for (const Level level : {Level::kComm, components ? Level::kComponent : Level::kBuffer}) {
        const Plan plan = Lower(GeneratePlan(spec), spec.costs, {.target = level});
        const Simulation run = Simulate(plan, spec.costs);
        const std::vector<std::vector<Idle>> idle = AttributeIdle(plan, spec.costs, run);
        CAPTURES(spec.schedule, Name(level));
        for (int r = 0; r < plan.ranks; ++r) {
          const auto& own = idle[static_cast<size_t>(r)];
          CHECK(Total(own) == run.ranks[static_cast<size_t>(r)].bubble);
          CHECK(Flaw(plan, run, r, own) == "");
          for (const Idle& one : own) names.emplace(Name(one.cause));
        }
        ++plans;
      }
    }
    CHECK(plans >= 150);
    for (const char* const name :
         {"fill", "drain", "dependency", "link", "all-to-all", "reduce", "memory", "order"}) {
      CAPTURE(name);
      CHECK(names.contains(name));
    }
  }

  TEST_CASE("of a run with late starts, too; what began late is overhead") {
    std::mt19937_64 random(17);
    Time late = 0;
    for (const Spec& spec : RandomSpecs(&random, 40, 5, 8)) {
      const Plan plan = Compile(spec);
      Timeline timeline = Simulate(plan, spec.costs).timeline;
      timeline.measured = true;
      for (size_t r = 0; r < timeline.ranks.size(); ++r) {
        for (size_t i = 0; i < timeline.ranks[r].size(); ++i) {
          Span& span = timeline.ranks[r][i];
          if (WorkOf(plan.programs[r][i].op) != Work::kCompute) continue;
          span.start += std::uniform_int_distribution<Time>(0, (span.end - span.start) / 2)(random);
        }
      }
      const Simulation run = RunOf(plan, spec.costs, timeline);
      const auto idle = AttributeIdle(plan, spec.costs, run);
      CAPTURE(spec.schedule);
      for (int r = 0; r < plan.ranks; ++r) {
        const auto& own = idle[static_cast<size_t>(r)];
        CHECK(Total(own) == run.ranks[static_cast<size_t>(r)].bubble);
        Time free = 0;
        for (const Idle& one : own) {
          CHECK(free <= one.when.start);
          free = one.when.end;
          if (one.cause == IdleCause::kOverhead) late += one.when.end - one.when.start;
        }
      }
    }
    CHECK(late > 0);
  }

  TEST_CASE("what could have run in an idle time can stand there in a sound plan") {
    std::mt19937_64 random(11);
    int moved = 0;
    for (const Spec& spec : RandomSpecs(&random, 60, 5, 8)) {
      const Plan plan = Compile(spec);
      const std::vector<std::vector<Idle>> idle =
          AttributeIdle(plan, spec.costs, Simulate(plan, spec.costs));
      for (int r = 0; r < plan.ranks; ++r) {
        for (const Idle& one : idle[static_cast<size_t>(r)]) {
          if (one.cause != IdleCause::kMemory && one.cause != IdleCause::kOrder) continue;
          Plan other = plan;
          Program& program = other.program(r);
          const auto from = program.begin() + one.because.index;
          if (WorkOf(from->op) == Work::kStep) continue;  // not there at level compute
          std::rotate(program.begin() + one.next, from, from + 1);
          other.level = Level::kCompute;
          for (Program& rank : other.programs) {
            std::erase_if(rank,
                          [](const Instruction& i) { return WorkOf(i.op) != Work::kCompute; });
          }
          CAPTURE(spec.schedule);
          CHECK(FindingsText(other) == "");
          ++moved;
        }
      }
    }
    CHECK(moved > 100);
  }

  TEST_CASE("sensitivities are what a simulation with that cost changed says") {
    std::mt19937_64 random(13);
    int changed = 0;
    for (Spec& spec : RandomSpecs(&random, 60, 5, 10)) {
      const Plan plan = Compile(spec);
      const CostModel& costs = spec.costs;
      const Time before = Simulate(plan, costs).makespan;
      for (const Sensitivity& sensitivity : Sensitivities(plan, costs, 100)) {
        if (sensitivity.cost != "f" && sensitivity.cost != "w" && sensitivity.cost != "comm") {
          continue;
        }
        CostModel other = costs;
        Time& cost = sensitivity.cost == "f"   ? other.stages[0].f
                     : sensitivity.cost == "w" ? other.stages[0].w
                                               : other.comm.latency;
        CHECK(sensitivity.value == cost);
        const Time step = std::max<Time>(1, cost / 1000);
        cost += step;
        if (!FlawOf(other.stages[0], other.unit).empty()) continue;
        CAPTURES(spec.schedule, sensitivity.cost);
        const Time after = Simulate(plan, other).makespan;
        CHECK(sensitivity.slope * static_cast<double>(step) ==
              doctest::Approx(static_cast<double>(after - before)));
        ++changed;
      }
    }
    CHECK(changed > 40);
  }
}

TEST_SUITE("idle") {
  TEST_CASE("1F1B: the causes of each rank") {
    const CostModel costs = UniformCosts(10, 10, 10, 1);
    const Plan plan = Compile(MakeSpec("1f1b", 4, 8, costs));
    const auto idle = AttributeIdle(plan, costs, Simulate(plan, costs));
    CHECK(Causes(idle[0]) == "drain 32 link 4 memory 70");
    CHECK(Causes(idle[3]) == "fill 30 drain 63 dependency 5 link 8");
    // The first backward of rank 0 comes back through all others.
    const Idle& first = idle[0][0];
    CHECK(first.when == Span{40, 106});
    CHECK(ToString(plan.program(0)[static_cast<size_t>(first.because.index)]) == "F s0 m4");
  }

  TEST_CASE("a rank fills up to its first instruction, and then depends on others") {
    CostModel costs = UniformCosts(10, 10, 10);
    costs.stages.resize(3, costs.stages[0]);
    costs.stages[0].f = 30;
    costs.stages[0].fb = 50;
    const Plan plan = Compile(MakeSpec("1f1b", 3, 4, costs));
    // From 40 to 60 it waits for the second micro-batch, and nothing else is there for it.
    const std::vector<Idle> idle = AttributeIdle(plan, costs, Simulate(plan, costs))[1];
    REQUIRE(idle.size() > 2);
    CHECK(idle[0].when == Span{0, 30});
    CHECK(idle[0].cause == IdleCause::kFill);
    CHECK(idle[1].when == Span{40, 60});
    CHECK(idle[1].cause == IdleCause::kDependency);
  }

  TEST_CASE("what would fill the memory and no more could have run: its order is why it did not") {
    CostModel costs = UniformCosts(10, 10, 10, 1);
    for (const int64_t bytes : {0, 100}) {
      CAPTURE(bytes);
      costs.memory = MemoryCost{.activation_bytes = bytes};
      // Two are held at most, and one while rank 0 waits for the first backward.
      const Plan order = PlanFromText(
          "rank\n F s0 m0\n BW s0 m0\n F s0 m1\n F s0 m2\n BW s0 m1\n BW s0 m2\n"
          "rank\n F s1 m0\n BW s1 m0\n F s1 m1\n BW s1 m1\n F s1 m2\n BW s1 m2\n");
      const Plan plan = Lower(order, costs, {.target = Level::kComm});
      const std::vector<Idle> idle = AttributeIdle(plan, costs, Simulate(plan, costs))[0];
      REQUIRE(!idle.empty());
      CHECK(idle[0].cause == IdleCause::kOrder);
      CHECK(!Contains(Causes(idle), "memory"));
      // 1F1B holds as many as it ever does while it waits.
      const Plan full = Compile(MakeSpec("1f1b", 4, 8, costs));
      CHECK(Causes(AttributeIdle(full, costs, Simulate(full, costs))[0]) ==
            "drain 32 link 4 memory 70");
    }
  }

  TEST_CASE("a step lasts as long as its critical path: slopes of 1F1B and GPipe") {
    const CostModel costs = UniformCosts(10'000, 10'000, 10'000);
    for (const char* const schedule : {"1f1b", "gpipe"}) {
      const auto found = Sensitivities(Compile(MakeSpec(schedule, 4, 8, costs)), costs, 5);
      REQUIRE(found.size() == 2);
      CHECK(found[0].cost == "bw");
      CHECK(found[0].slope == doctest::Approx(11));
      CHECK(found[1].cost == "f");
      CHECK(found[1].slope == doctest::Approx(11));
    }
  }

  TEST_CASE("of a plan with too many costs to try all of them those on the critical path are") {
    CostModel costs = UniformCosts(1000, 1000, 1000);
    costs.stages.assign(64, costs.stages[0]);
    costs.stages[40].bw = 9000;
    costs.stages[40].fb = 10'000;
    const auto found = Sensitivities(Compile(MakeSpec("1f1b", 64, 512, costs)), costs, 3);
    REQUIRE(found.size() == 3);
    CHECK(found[0].cost == "bw s40");
    CHECK(found[0].slope == doctest::Approx(512));
  }
}

}  // namespace
}  // namespace contraflow::idle_test
