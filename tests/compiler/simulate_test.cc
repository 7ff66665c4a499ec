#include "compiler/simulate/simulate.h"

#include <doctest/doctest.h>

#include <random>
#include <string>
#include <vector>

#include "compiler/bound/bound.h"
#include "compiler/files/cost_io.h"
#include "compiler/plan/error.h"
#include "compiler/simulate/memory.h"
#include "schedules/registry.h"
#include "tests/support/failure.h"
#include "tests/support/support.h"

namespace contraflow::simulate_test {
namespace {

Plan Compile(std::string_view schedule, int ranks, int microbatches, const CostModel& costs) {
  return Compile(MakeSpec(schedule, ranks, microbatches, costs));
}

TEST_SUITE("unit") {
  TEST_CASE("measured durations replace those of the costs") {
    std::mt19937_64 random(5);
    const CostModel moe = RandomMoeCosts(&random, 2, Overlap::kAll);
    for (const Level level : {Level::kComm, Level::kComponent}) {
      for (const char* schedule : {"1f1b", "zb-1p", "dualpipe"}) {
        CAPTURE(schedule);
        const Plan plan = Compile(MakeSpec(schedule, 4, 8, moe), {.level = level});
        const Simulation simulation = Simulate(plan, *plan.costs);
        CostModel messages = *plan.costs;
        for (StageCost& stage : messages.stages) stage = {};
        const Simulation again = SimulateMeasured(plan, messages, {simulation.timeline});
        CHECK(again.timeline.ranks == simulation.timeline.ranks);
        CHECK(again.makespan == simulation.makespan);
        Timeline slower = simulation.timeline;
        for (auto& spans : slower.ranks) {
          for (Span& span : spans) span = {2 * span.start, 2 * span.end};
        }
        messages.comm.latency *= 2;
        messages.comm.occupancy *= 2;
        CHECK(SimulateMeasured(plan, messages, {slower}).makespan == 2 * simulation.makespan);
        for (size_t r = 0; r < plan.programs.size(); ++r) {
          for (size_t i = 0; i < plan.programs[r].size(); ++i) {
            if (plan.programs[r][i].op == Op::REDUCE) slower.ranks[r][i].end += 1'000'000;
          }
        }
        const bool reduces = std::string(schedule) == "dualpipe";
        const Time blocked = SimulateMeasured(plan, messages, {slower, true}).makespan;
        const Time beside = SimulateMeasured(plan, messages, {slower, false}).makespan;
        CHECK((blocked > beside) == reduces);
      }
    }
  }

  TEST_CASE("two ranks by hand") {
    // f 10, b 20, w 5 (bw 25), hop 3:  rank 0: F 0-10, F 10-20 .. BW
    const CostModel costs = UniformCosts(10, 20, 5, 3);
    const Plan plan = Compile("1f1b", 2, 2, costs);
    const Simulation simulation = Simulate(plan, costs);
    std::string text;
    for (size_t r = 0; r < plan.programs.size(); ++r) {
      for (size_t i = 0; i < plan.programs[r].size(); ++i) {
        const Span& span = simulation.timeline.ranks[r][i];
        text += ToString(plan.programs[r][i]) + " " + std::to_string(span.start) + ".." +
                std::to_string(span.end) + "\n";
      }
    }
    CHECK(text ==
          "F s0 m0 0..10\n"
          "SEND_F s0 m0 to=1 10..13\n"
          "F s0 m1 10..20\n"
          "SEND_F s0 m1 to=1 20..23\n"
          "RECV_B s0 m0 from=1 48..51\n"
          "BW s0 m0 51..76\n"
          "RECV_B s0 m1 from=1 83..86\n"
          "BW s0 m1 86..111\n"
          "STEP s0 111..111\n"
          "RECV_F s1 m0 from=0 10..13\n"
          "F s1 m0 13..23\n"
          "RECV_F s1 m1 from=0 20..23\n"
          "BW s1 m0 23..48\n"
          "SEND_B s1 m0 to=0 48..51\n"
          "F s1 m1 48..58\n"
          "BW s1 m1 58..83\n"
          "SEND_B s1 m1 to=0 83..86\n"
          "STEP s1 83..83\n");
    CHECK(simulation.makespan == 111);
    CHECK(simulation.span == 111);
    CHECK(simulation.ranks[0].busy == 70);
    CHECK(simulation.ranks[1].bubble == 41);
    CHECK(simulation.ranks[1].first_start == 13);
    CHECK(simulation.bubble_ratio() == doctest::Approx(82.0 / 222));
  }

  TEST_CASE("with a bandwidth messages of one edge queue first in first out") {
    CostModel costs = UniformCosts(10, 10, 10, 2);
    costs.comm.bytes = 1;
    costs.comm.bandwidth = 1;
    costs.comm.occupancy = 25;
    const Plan plan = Compile("gpipe", 2, 3, costs);
    const Simulation simulation = Simulate(plan, costs);
    std::vector<Span> sends;
    for (size_t i = 0; i < plan.programs[0].size(); ++i) {
      if (plan.programs[0][i].op == Op::SEND_F) sends.push_back(simulation.timeline.ranks[0][i]);
    }
    CHECK(sends == std::vector<Span>{{10, 37}, {35, 62}, {60, 87}});
  }

  TEST_CASE("a message fills its edge for as long as its own bytes take") {
    CostModel costs = UniformCosts(10, 10, 10, 2);
    costs.comm.bandwidth = 1;
    costs.comm.bytes = costs.comm.occupancy = 5;
    costs.comm.sizes = {{5, 5}, {20, 20}};
    const Plan plans[] = {GeneratePlan(MakeSpec("1f1b", 3, 1, costs)),
                          Compile("1f1b", 3, 1, costs)};
    for (const Plan& plan : plans) {
      // Forward 10 7 10 22 10, backward 20 22 20 7 20.
      CHECK(Simulate(plan, costs).makespan == 148);
      CHECK(ProveBound(plan, costs).value <= 148);
      // One message to and from each neighbour.
      const std::vector<MemoryFigures> ranks = MemoryOf(plan, costs);
      CHECK(ranks[0].messages == 10);
      CHECK(ranks[1].messages == 50);
      CHECK(ranks[2].messages == 40);
    }
    CHECK(Failure([&] { Simulate(Compile("1f1b", 2, 1, UniformCosts(1, 1, 1)), costs); }) ==
          "`costs`: /comm/bytes: lists the messages between 3 stages, this plan has 2");
  }

  TEST_CASE("memory: activations in bytes and where the peak is") {
    CostModel costs = UniformCosts(10, 10, 10);
    costs.memory = MemoryCost{.activation_bytes = 100, .w_stash_bytes = 40};
    // Rank 2 of ZB-1P runs two B ahead of their W, with one more forward under way: 100 + 2 * 40.
    const Plan plan = Compile("zb-1p", 3, 6, costs);
    const Simulation simulation = Simulate(plan, costs);
    CHECK(simulation.ranks[0].peak_bytes == 300);
    CHECK(simulation.ranks[1].peak_bytes == 240);
    CHECK(simulation.ranks[2].peak_bytes == 180);
    for (size_t r = 0; r < 3; ++r) {
      CHECK(simulation.ranks[r].peak_activations == 3);
      const auto index = static_cast<size_t>(simulation.ranks[r].peak_index);
      CHECK(plan.programs[r][index].op == Op::F);
    }
    costs.memory.reset();
    CHECK(Simulate(plan, costs).ranks[0].peak_bytes == 0);
  }

  TEST_CASE("REDUCE meets at the last weight gradient STEP follows") {
    CostModel costs = UniformCosts(10, 10, 10);
    costs.stages[0].reduce = 7;
    costs.stages[0].step = 4;
    const Plan plan = Compile("dualpipe", 2, 4, costs);
    const Simulation simulation = Simulate(plan, costs);
    std::vector<Span> reductions[2];
    for (size_t r = 0; r < 2; ++r) {
      Time last_end = 0;
      for (size_t i = 0; i < plan.programs[r].size(); ++i) {
        const Span& span = simulation.timeline.ranks[r][i];
        if (plan.programs[r][i].op == Op::REDUCE) {
          CHECK(span.end - span.start == 7);
          last_end = span.end;
          reductions[r].push_back(span);
        }
        if (plan.programs[r][i].op == Op::STEP) {
          CHECK(span.start >= last_end);
          CHECK(span.end - span.start == 4);
        }
      }
    }
    CHECK(reductions[0].size() == 2);
    CHECK(reductions[0] == reductions[1]);
  }

  TEST_CASE("the critical path is a chain from 0 to the makespan") {
    for (const Schedule* schedule : Schedules()) {
      for (const Time latency : {0, 7}) {
        for (const Time occupancy : {0, 30}) {
          CostModel costs = UniformCosts(31, 37, 17, latency);
          if (occupancy > 0) {
            costs.comm.bytes = 1;
            costs.comm.bandwidth = 1;
            costs.comm.occupancy = occupancy;
          }
          const Plan plan = Compile(schedule->name, 4, 8, costs);
          const Simulation simulation = Simulate(plan, costs);
          const auto path = CriticalPath(plan, costs, simulation.timeline);
          CAPTURES(schedule->name, latency, occupancy);
          REQUIRE_FALSE(path.empty());
          const auto span = [&](InstructionRef ref) {
            return simulation.timeline
                .ranks[static_cast<size_t>(ref.rank)][static_cast<size_t>(ref.index)];
          };
          CHECK(span(path.front()).start == 0);
          CHECK(span(path.back()).end == simulation.makespan);
          for (size_t i = 1; i < path.size(); ++i) {
            const bool queued = span(path[i]).start < span(path[i - 1]).end;
            // A message after another on its edge starts when that one has left, before it
            // arrives.
            if (queued) {
              CHECK(span(path[i]).start == span(path[i - 1]).start + occupancy);
            } else {
              CHECK(span(path[i]).start == span(path[i - 1]).end);
            }
          }
        }
      }
    }
  }

  TEST_CASE("where REDUCE blocks a rank nothing runs beside it") {
    const Plan plan = PlanFromText(
        "route 0 1 : 0\nroute 1 0 : 1\n"
        "rank\n F s0 m0\n SEND_F s0 m0 to=1\n RECV_F s1 m1 from=1\n F s1 m1\n BW s1 m1\n"
        " SEND_B s1 m1 to=1\n RECV_B s0 m0 from=1\n REDUCE s1\n BW s0 m0\n STEP s1\n"
        " REDUCE s0\n STEP s0\n"
        "rank\n F s0 m1\n RECV_F s1 m0 from=0\n SEND_F s0 m1 to=0\n F s1 m0\n BW s1 m0\n"
        " RECV_B s0 m1 from=0\n SEND_B s1 m0 to=0\n REDUCE s1\n BW s0 m1\n STEP s1\n"
        " REDUCE s0\n STEP s0\n");
    REQUIRE(Verify(plan).empty());
    CostModel costs = UniformCosts(1, 1, 1);
    costs.stages[0].reduce = 4;
    costs.stages[0].step = 2;
    // F F BW BW to 6, REDUCE s1 4..8, STEP 8..10, REDUCE s0 6..10, STEP 10..12
    CHECK(Simulate(plan, costs).makespan == 12);
    costs.comm.reduce_blocks = true;
    // F F BW to 4, REDUCE to 8, BW to 10, STEP to 12, REDUCE to 16, STEP to 18
    const Simulation blocked = Simulate(plan, costs);
    CHECK(blocked.makespan == 18);
    CHECK(blocked.timeline.ranks[1][8] == Span{8, 10});
    const auto path = CriticalPath(plan, costs, blocked.timeline);
    const auto span = [&](InstructionRef ref) {
      return blocked.timeline.ranks[static_cast<size_t>(ref.rank)][static_cast<size_t>(ref.index)];
    };
    CHECK(span(path.front()).start == 0);
    for (size_t i = 1; i < path.size(); ++i) CHECK(span(path[i]).start == span(path[i - 1]).end);
    const CostModel read = ReadCosts(WriteCosts(costs), "c.json");
    CHECK(read.comm.reduce_blocks);
    CHECK(read == costs);
  }

  TEST_CASE("in a group a RECV may stand before the SEND that it depends on") {
    const Plan plan = PlanFromText(
        "route 0 1 : 0\n"
        "rank\n F s0 m0\n RECV_B s0 m0 from=1 group=1\n SEND_F s0 m0 to=1 group=1\n"
        " BW s0 m0\n STEP s0\n"
        "rank\n RECV_F s1 m0 from=0\n F s1 m0\n BW s1 m0\n SEND_B s1 m0 to=0\n STEP s1\n");
    REQUIRE(Verify(plan).empty());
    const Simulation simulation = Simulate(plan, UniformCosts(10, 20, 5, 3));
    CHECK(simulation.timeline.ranks[0][1] == Span{48, 51});
    CHECK(simulation.timeline.ranks[0][2] == Span{10, 13});
    CHECK(simulation.makespan == 76);
    CHECK(CriticalPath(plan, UniformCosts(10, 20, 5, 3), simulation.timeline).size() == 6);
  }

  TEST_CASE("figures are the same without a timeline") {
    std::mt19937_64 random(29);
    for (const Spec& spec : RandomSpecs(&random, 40, 6, 12)) {
      for (const Plan& plan : {GeneratePlan(spec), Compile(spec)}) {
        const Simulation whole = Simulate(plan, spec.costs);
        const Simulation bare = Simulate(plan, spec.costs, Keep::kFigures);
        CHECK(bare.timeline.ranks.empty());
        CHECK(bare.makespan == whole.makespan);
        CHECK(bare.span == whole.span);
        REQUIRE(bare.ranks.size() == whole.ranks.size());
        for (size_t r = 0; r < bare.ranks.size(); ++r) {
          const auto figures = [](const RankFigures& f) {
            return std::vector<int64_t>{f.busy,       f.bubble,     f.first_start,
                                        f.last_end,   f.exposed,    f.peak_activations,
                                        f.peak_bytes, f.peak_index, f.all_to_all};
          };
          CHECK(figures(bare.ranks[r]) == figures(whole.ranks[r]));
        }
      }
    }
  }

  TEST_CASE("an unsound plan does not hang the simulator") {
    const CostModel costs = UniformCosts(1, 1, 1);
    Plan plan = Compile("1f1b", 2, 2, costs);
    std::swap(plan.programs[0][0], plan.programs[0][4]);
    CHECK(Failure([&] { Simulate(plan, costs); }) ==
          "cannot simulate: rank 0 never gets past instruction 1 (SEND_F s0 m0 to=1); verify the "
          "plan first");
  }
}

}  // namespace
}  // namespace contraflow::simulate_test
