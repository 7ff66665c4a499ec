// Offloading an order costs no time and makes ranks fit; the plan of a schedule with it is never
// longer than without.

#include "schedules/recompute/offload.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "compiler/bound/bound.h"
#include "compiler/files/cost_io.h"
#include "compiler/plan/memory_limit.h"
#include "compiler/simulate/memory.h"
#include "compiler/simulate/simulate.h"
#include "compiler/verify/verify.h"
#include "schedules/compile.h"
#include "schedules/recompute/recompute.h"
#include "schedules/registry.h"
#include "tests/support/failure.h"
#include "tests/support/held_at_any_pace.h"
#include "tests/support/support.h"

namespace contraflow::offload_schedule_test {
namespace {

CostModel WithLink(CostModel costs, Time copy) {
  costs.memory = MemoryCost{.activation_bytes = 1000, .w_stash_bytes = 300, .input_bytes = 100};
  costs.host = HostCost{.latency = copy};
  return costs;
}

int64_t PeakOf(const Plan& plan, const CostModel& costs) {
  int64_t peak = 0;
  for (const RankFigures& rank : Simulate(plan, costs).ranks)
    peak = std::max(peak, rank.peak_bytes);
  return peak;
}

size_t CountOf(const Plan& plan, Op op) {
  size_t count = 0;
  for (const Program& program : plan.programs) {
    count += static_cast<size_t>(
        std::ranges::count_if(program, [op](const Instruction& i) { return i.op == op; }));
  }
  return count;
}

TEST_SUITE("property") {
  TEST_CASE("offload: an order takes no longer by it, whatever it costs, and holds no more") {
    std::mt19937_64 random(21);
    int offloaded = 0;
    for (Spec& spec : RandomSpecs(&random, 40, 5, 9)) {
      spec.search.budget = 5'000'000;
      CAPTURE(spec.schedule);
      spec.costs = WithLink(spec.costs, 0);
      const Plan frame = GeneratePlan(spec);
      CostModel costs = frame.costs.value_or(spec.costs);
      costs.host->latency = static_cast<Time>(random() % 3) * (1 + costs.stages[0].f / 2);
      if (random() % 2 == 0) spec.recompute = {};
      Plan order = frame;
      if (random() % 3 == 0) order = InsertRecompute(order, {0});
      const Time makespan = Simulate(order, costs).makespan;
      const int64_t peak = PeakOf(order, costs);
      std::vector<int> all(static_cast<size_t>(order.stages));
      for (size_t s = 0; s < all.size(); ++s) all[s] = static_cast<int>(s);
      const std::vector<int64_t> limits(static_cast<size_t>(order.ranks), 1 + peak / 2);
      const Plan stages = OffloadStages(order, costs, all);
      CHECK(Simulate(stages, costs).makespan == makespan);
      for (const Plan& with : {stages, OffloadToFit(order, costs, limits)}) {
        CHECK(FindingsText(with) == "");
        CHECK(PeakOf(with, costs) <= peak);
        CHECK(HeldAtAnyPace(with, costs, 30, &random) == "");
        CHECK(CountOf(with, Op::OFFLOAD) == CountOf(with, Op::RELOAD));
        offloaded += CountOf(with, Op::OFFLOAD) > 0 ? 1 : 0;
        // All that stands there but the copies is the order as it was.
        Plan without = with;
        for (Program& program : without.programs) {
          std::erase_if(program, [](const Instruction& i) { return IsHostCopy(i.op); });
        }
        CHECK(without.programs == order.programs);
      }
    }
    CHECK(offloaded >= 30);
  }

  TEST_CASE("offload: auto fits its limit and is never longer than without, of any schedule") {
    std::mt19937_64 random(22);
    int shorter = 0, made = 0;
    for (const std::string schedule :
         {"1f1b", "zb-1p", "zb-2p", "zb-v", "v-half", "dualpipe", "auto"}) {
      for (const Time copy : {1, 4, 9}) {
        for (const int64_t limit : {2200, 3200, 4400}) {
          Spec spec = MakeSpec(schedule, 4, 8, WithLink(UniformCosts(5, 5, 4, 1), copy));
          spec.search.budget = 20'000'000;
          spec.search.placement = Placement::kLinear;
          spec.memory_limit = limit;
          CAPTURES(schedule, copy, limit);
          std::optional<Time> without;
          try {
            const Plan plan = Compile(spec);
            without = Simulate(plan, *plan.costs).makespan;
          } catch (const Error&) {
          }
          spec.offload = {.choice = Offload::Choice::kAuto};
          try {
            const Plan plan = Compile(spec);
            const Time with = Simulate(plan, *plan.costs).makespan;
            CHECK(PeakOf(plan, *plan.costs) <= limit);
            CHECK(HeldAtAnyPace(plan, *plan.costs, 3, &random) == "");
            for (const MemoryFigures& rank : MemoryOf(plan, *plan.costs)) CHECK(rank.peak <= limit);
            CHECK(with <= without.value_or(with));
            CHECK(ProveBound(plan, *plan.costs, limit).value <= with);
            if (plan.provenance) CHECK(plan.provenance->bound <= with);
            shorter += !without || with < *without ? 1 : 0;
            ++made;
          } catch (const Error&) {
            CHECK(!without);
          }
        }
      }
    }
    MESSAGE(shorter << " of " << made << " are shorter with offload, or fit with it only");
    CHECK(made >= 30);
    CHECK(shorter >= made / 3);
  }
}

TEST_SUITE("unit") {
  TEST_CASE("offload: a tight limit is met whatever the seed") {
    const char* const costs = R"({"unit": "s", "stages": [
        {"f": 9637.852, "b": 7781.482, "w": 1609.131, "bw": 8242.908, "reduce": 2099.989,
        "step": 1207.585},
        {"f": 6688.046, "b": 3313.779, "w": 1798.156, "bw": 4525.608, "reduce": 1438.317,
        "step": 1986.126}],
        "memory": {"activation_bytes": [56384, 74091], "w_stash_bytes": [11542, 15167]},
        "host": {"latency": 282.626, "bandwidth": 13.630823}})";
    Spec spec = MakeSpec("auto", 2, 8, ReadCosts(costs, "costs.json"));
    spec.search.placement = Placement::kInterleaved;
    spec.chunks = 2;
    spec.search.budget = 1'000'000;
    spec.offload = {.choice = Offload::Choice::kAuto};
    spec.memory_limit = 64'277;
    for (spec.search.seed = 0; spec.search.seed < 64; ++spec.search.seed) {
      CAPTURE(spec.search.seed);
      CHECK(Failure([&] { Compile(spec); }) == "accepted");
    }
  }

  TEST_CASE("offload: a limit holds however slow the link to the host is") {
    Spec spec = MakeSpec("auto", 2, 3, UniformCosts(10, 10, 10, 1));
    spec.costs.memory = MemoryCost{.activation_bytes = 10, .w_stash_bytes = 5, .input_bytes = 2};
    spec.costs.host = HostCost{.latency = 5};
    spec.search.placement = Placement::kBidirectional;
    spec.search.budget = 5'000'000;
    spec.offload = {.choice = Offload::Choice::kAuto};
    spec.recompute = {.choice = Recompute::Choice::kAuto};
    spec.memory_limit = 20;
    const Plan plan = Compile(spec);
    CHECK(CountOf(plan, Op::OFFLOAD) > 0);
    CHECK(plan.provenance->makespan == 91);
    for (const Time copy : {1, 5, 8, 10, 20, 100}) {
      CostModel costs = *plan.costs;
      costs.host->latency = copy;
      CAPTURE(copy);
      CHECK(PeakOf(plan, costs) == 20);
    }
    // RELOAD relies on the copies that stand before it alone, whatever the clock says.
    const std::string begin = "rank\n F s0 m0\n F s0 m1\n OFFLOAD s0 m0\n F s0 m2\n ";
    const std::string end =
        "\n B s0 m0\n W s0 m0\n RELOAD s0 m1\n B s0 m1\n W s0 m1\n B s0 m2\n W s0 m2\n";
    const Plan before = PlanFromText(begin + "RELOAD s0 m0\n OFFLOAD s0 m1" + end);
    const Plan after = PlanFromText(begin + "OFFLOAD s0 m1\n RELOAD s0 m0" + end);
    CHECK(Simulate(before, *plan.costs).makespan == Simulate(after, *plan.costs).makespan);
    CHECK(PeakOf(before, *plan.costs) == 30);
    CHECK(PeakOf(after, *plan.costs) == 20);
    CHECK(MemoryOf(before, *plan.costs)[0].peak == 30);
    CHECK(MemoryOf(after, *plan.costs)[0].peak == 20);
  }

  TEST_CASE(
      "offload: an optimizer step keeps no plan from fitting, nor does a device for a limit") {
    Spec spec = MakeSpec("auto", 2, 4, UniformCosts(1000, 1000, 1000));
    spec.costs.memory = MemoryCost{.activation_bytes = 100, .w_stash_bytes = 98};
    spec.costs.host = HostCost{.latency = 1000};
    spec.search.placement = Placement::kV;
    spec.search.budget = 5'000'000;
    spec.offload = {.choice = Offload::Choice::kAuto};
    spec.memory_limit = 60;
    const Plan plain = Compile(spec);
    spec.costs.stages.front().step = 1000;
    const Plan with_step = Compile(spec);
    CHECK(with_step.provenance->makespan == plain.provenance->makespan + 1000);
    CHECK(PeakOf(with_step, *with_step.costs) <= 60);
    spec.memory_limit.reset();
    spec.costs.memory->parameter_bytes = {0};
    spec.device_memory = 60;
    const Plan on_device = Compile(spec);
    CHECK(on_device.provenance->makespan <= with_step.provenance->makespan);
    CHECK(PeakOf(on_device, *on_device.costs) <= 60);
  }

  TEST_CASE("offload: limits without bytes hold for stages that are listed, cut and merged") {
    Spec spec = MakeSpec("auto", 4, 8, UniformCosts(1, 1, 1));
    spec.costs.stages.assign(8, spec.costs.stages.front());
    spec.costs.host = HostCost{.latency = 0};
    spec.search.budget = 5'000'000;
    spec.offload = {.choice = Offload::Choice::kAuto};
    spec.memory_limit = 5;
    for (const auto& [placement, most] : {std::pair(Placement::kV, 5), {Placement::kLinear, 2}}) {
      spec.search.placement = placement;
      const Plan plan = Compile(spec);
      for (const RankFigures& rank : Simulate(plan, *plan.costs).ranks) {
        CHECK(rank.peak_activations <= most);
      }
      CHECK(plan.provenance->memory_limit == most);
    }
    // A published schedule tries copies where its own order does not fit.
    for (const char* schedule : {"v-half", "interleaved-1f1b", "dualpipe-v"}) {
      CAPTURE(schedule);
      Spec published = MakeSpec(schedule, 4, 8, UniformCosts(1, 1, 1));
      published.costs.host = HostCost{.latency = 0};
      published.offload = {.choice = Offload::Choice::kAuto};
      published.memory_limit = 5;
      const Plan plan = Compile(published);
      CHECK(CountOf(plan, Op::OFFLOAD) > 0);
      for (const RankFigures& rank : Simulate(plan, *plan.costs).ranks) {
        CHECK(rank.peak_activations <= 5);
      }
    }
  }

  TEST_CASE("offload: 1F1B on a fast link holds three activations and takes no longer") {
    const CostModel costs = WithLink(UniformCosts(10, 10, 10), 5);
    Spec spec = MakeSpec("1f1b", 8, 24, costs);
    const Plan plain = GeneratePlan(spec);
    CHECK(PeakOf(plain, costs) == 8000);
    spec.offload = {.choice = Offload::Choice::kAuto};
    // Without a limit there is nothing to fit.
    CHECK(GeneratePlan(spec).programs == plain.programs);
    spec.memory_limit = 4000;
    const Plan plan = GeneratePlan(spec);
    CHECK(PeakOf(plan, costs) <= 4000);
    CHECK(Simulate(plan, costs).makespan == Simulate(plain, costs).makespan);
    // The last rank never waits, and rank 0 offloads more than any.
    const auto copies = [&](int rank) {
      return std::count_if(plan.program(rank).begin(), plan.program(rank).end(),
                           [](const Instruction& i) { return i.op == Op::OFFLOAD; });
    };
    CHECK(copies(7) == 0);
    CHECK(copies(0) >= copies(4));
    CHECK(copies(0) > 8);
  }

  TEST_CASE("offload: auto is no longer than a published schedule that offloads as well") {
    Spec spec = MakeSpec("1f1b", 4, 8, WithLink(UniformCosts(185, 184, 93, 9), 92));
    spec.offload = {.choice = Offload::Choice::kAuto};
    spec.memory_limit = 2000;
    const Plan published = Compile(spec);
    spec.schedule = "auto";
    spec.search.placement = Placement::kLinear;
    spec.search.budget = 20'000'000;
    const Plan searched = Compile(spec);
    CHECK(PeakOf(searched, *searched.costs) <= 2000);
    CHECK(Simulate(searched, *searched.costs).makespan <=
          Simulate(published, *published.costs).makespan);
  }

  TEST_CASE("offload: auto moves the order with the copies; recompute beside it is not longer") {
    CostModel costs = UniformCosts(100, 100, 100, 5);
    costs.memory = MemoryCost{.activation_bytes = 1000, .w_stash_bytes = 450, .input_bytes = 60};
    costs.host = HostCost{.latency = 50};
    Spec spec = MakeSpec("auto", 4, 8, costs);
    spec.search.placement = Placement::kLinear;
    spec.search.budget = 400'000'000;
    spec.memory_limit = 2000;
    spec.offload = {.choice = Offload::Choice::kAuto};
    const Plan plan = Compile(spec);
    CHECK(FindingsText(plan) == "");
    CHECK(PeakOf(plan, *plan.costs) <= 2000);
    const Time makespan = Simulate(plan, *plan.costs).makespan;
    const Plan frame = FrameOf(plan);
    // 21.5 % above the bound where the copies are laid into orders as they come.
    CHECK(makespan <= LowerBound(frame, costs) * 112 / 100);
    spec.recompute = {.choice = Recompute::Choice::kAuto};
    const Plan both = Compile(spec);
    CHECK(FindingsText(both) == "");
    CHECK(PeakOf(both, *both.costs) <= 2000);
    CHECK(Simulate(both, *both.costs).makespan <= makespan);
  }

  TEST_CASE("offload: limits in activations, and what cannot be asked for") {
    CostModel costs = UniformCosts(10, 10, 10);
    costs.host = HostCost{.latency = 4};
    Spec spec = MakeSpec("1f1b", 6, 12, costs);
    spec.offload = {.choice = Offload::Choice::kAuto};
    spec.memory_limit = 4;
    const Plan plan = GeneratePlan(spec);
    for (const RankFigures& rank : Simulate(plan, costs).ranks) CHECK(rank.peak_activations <= 4);
    spec.schedule = "auto";
    spec.search.placement = Placement::kV;
    spec.memory_limit.reset();
    CHECK_FALSE(OffloadedCells(GeneratePlan(spec)).any());
    spec.schedule = "1f1b";
    spec.offload = {.choice = Offload::Choice::kStages, .stages = {6}};
    CHECK(Failure([&] { GeneratePlan(spec); }) ==
          "`offload`: there is no stage 6, 1f1b makes 6 stages (0..5)");
    spec.costs.host.reset();
    CHECK(Failure([&] { GeneratePlan(spec); }) ==
          "the plan copies activations to the host (OFFLOAD), and the costs do not say how long "
          "that takes; give \"host\": {\"bandwidth\": ..} or {\"time\": ..}");
    CHECK(ParseOffload("none") == Offload{});
    CHECK(ParseOffload("0,2-3") == Offload{Offload::Choice::kStages, {0, 2, 3}});
    CHECK(Failure([] { ParseOffload("some"); }) ==
          "`offload`: must be none, full, auto or stages as in \"0,3,5-7\", is \"some\"");
  }
}

}  // namespace
}  // namespace contraflow::offload_schedule_test
