// OFFLOAD and RELOAD: what the verifier says of them, when they run, what they save, and where
// their values lie.

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "compiler/bound/bound.h"
#include "compiler/files/cost_io.h"
#include "compiler/files/plan_io.h"
#include "compiler/lower/lower.h"
#include "compiler/simulate/memory.h"
#include "compiler/simulate/simulate.h"
#include "compiler/simulate/waits.h"
#include "compiler/verify/verify.h"
#include "schedules/registry.h"
#include "tests/support/failure.h"
#include "tests/support/held_at_any_pace.h"
#include "tests/support/lane_run.h"
#include "tests/support/offload_all.h"
#include "tests/support/support.h"

namespace contraflow::offload_test {
namespace {

/// Two forwards on one rank, then their backwards; the first is away in between.
constexpr const char* kTwo =
    "rank\n F s0 m0\n OFFLOAD s0 m0\n F s0 m1\n B s0 m1\n RELOAD s0 m0\n W s0 m1\n B s0 m0\n"
    " W s0 m0\n";

/// F = 4, B = 6, W = 2; a copy of 100 bytes takes 1 + 100 / 50 = 3.
CostModel CostsOfTwo() {
  const Time unit = TicksPerUnit(Unit::kUnit);
  CostModel costs = UniformCosts(4 * unit, 6 * unit, 2 * unit);
  costs.memory = MemoryCost{.activation_bytes = 100, .w_stash_bytes = 40};
  costs.host = HostCost{.latency = unit, .bandwidth = 50};
  return costs;
}

/// Moves copies past others and past the work of other cells: OFFLOAD later, RELOAD earlier.
void MoveCopies(std::mt19937_64* random, Program* program) {
  for (size_t moves = 4 * program->size(); moves > 0; --moves) {
    const size_t at = (*random)() % program->size();
    Instruction& i = (*program)[at];
    if (!IsHostCopy(i.op)) continue;
    const size_t to = i.op == Op::OFFLOAD ? at + 1 : at - 1;
    if (to >= program->size()) continue;
    Instruction& other = (*program)[to];
    if (other.stage == i.stage && other.microbatch == i.microbatch) continue;
    std::swap(i, other);
  }
}

/// Every cell away, with random times of copies.
Plan OffloadedPlan(const Schedule& schedule, const Spec& given, std::mt19937_64* random,
                   CostModel* costs) {
  Spec spec = given;
  spec.schedule = schedule.name;
  *costs = spec.costs;
  costs->host = HostCost{.latency = static_cast<Time>((*random)() % 4)};
  Plan plan = OffloadAll(GeneratePlan(spec));
  for (Program& program : plan.programs) {
    if ((*random)() % 2 == 0) MoveCopies(random, &program);
  }
  plan.costs.reset();
  plan.provenance.reset();
  return plan;
}

int64_t MostOf(const Plan& plan, const CostModel& costs) {
  int64_t most = 0;
  for (const RankFigures& rank : Simulate(plan, costs).ranks)
    most = std::max(most, rank.peak_bytes);
  return most;
}

TEST_SUITE("unit") {
  TEST_CASE("offload: figures of an example worked out by hand") {
    //  0    4     7    11      17 19   20      26
    //  F0         F1   B1      W1      B0      W0
    //       O0                 L0
    const Plan plan = PlanFromText(kTwo);
    CHECK(FindingsText(plan) == "");
    const CostModel costs = CostsOfTwo();
    const Simulation run = Simulate(plan, costs);
    const Time unit = TicksPerUnit(Unit::kUnit);
    std::vector<Time> starts;
    for (const Span& span : run.timeline.ranks[0]) starts.push_back(span.start / unit);
    CHECK(starts == std::vector<Time>{0, 4, 7, 11, 17, 17, 20, 26});
    CHECK(run.makespan == 28 * unit);
    CHECK(run.ranks[0].busy == 24 * unit);
    // F1 begins when m0 is gone; at 17 m0 comes back and m1 has left its stash.
    CHECK(run.ranks[0].peak_bytes == 140);
    CHECK(run.ranks[0].peak_activations == 2);
    const MemoryFigures memory = MemoryOf(plan, costs)[0];
    CHECK(memory.peak == 140);
    CHECK(memory.arenas[static_cast<size_t>(Arena::kStash)] == 80);
    CHECK(memory.peak_index == run.ranks[0].peak_index);
    // After F1, OFFLOAD does not keep it waiting: then both are there.
    const Plan later = PlanFromText(
        "rank\n F s0 m0\n F s0 m1\n OFFLOAD s0 m0\n B s0 m1\n RELOAD s0 m0\n W s0 m1\n B s0 m0\n"
        " W s0 m0\n");
    CHECK(Simulate(later, costs).timeline.ranks[0][2] == Span{4 * unit, 7 * unit});
    CHECK(Simulate(later, costs).makespan == 25 * unit);
    CHECK(Simulate(later, costs).ranks[0].peak_bytes == 200);
    CHECK(MemoryOf(later, costs)[0].peak == 200);
    // R takes memory, too, and begins when what stands before it has left.
    const Plan again = PlanFromText(
        "rank\n F s0 m1\n F s0 m0\n OFFLOAD s0 m0\n R s0 m1\n B s0 m1\n RELOAD s0 m0\n W s0 m1\n"
        " B s0 m0\n W s0 m0\n");
    CHECK(FindingsText(again) == "");
    CostModel inputs = costs;
    inputs.memory->input_bytes = 10;
    CHECK(Simulate(again, inputs).timeline.ranks[0][2] == Span{8 * unit, 11 * unit});
    const Simulation run_again = Simulate(again, inputs);
    CHECK(run_again.timeline.ranks[0][3].start == 11 * unit);
    const auto waited = Waits(again, inputs, run_again.timeline).Last({0, 3});
    REQUIRE(waited);
    CHECK(waited->on.index == 2);
    // And the bound of the link: F, both copies, B.
    CostModel slow = costs;
    slow.host = HostCost{.latency = 30 * unit};
    const Bound bound = ProveBound(plan, slow, 100);
    CHECK(bound.kind == BoundKind::kHostLink);
    CHECK(bound.value == (4 + 30 + 30 + 6) * unit);
    CHECK(bound.value <= Simulate(plan, slow).makespan);
  }

  TEST_CASE("offload: the link of a rank with two stages starts with the first of them") {
    CostModel costs = CostsOfTwo();
    const Time unit = TicksPerUnit(Unit::kUnit);
    costs.host = HostCost{.latency = 30 * unit};
    const Plan plan = PlanFromText(
        "route 0 0 : 0\nrank\n F s0 m0\n OFFLOAD s0 m0\n F s1 m0\n OFFLOAD s1 m0\n RELOAD s1 m0\n"
        " B s1 m0\n W s1 m0\n RELOAD s0 m0\n B s0 m0\n W s0 m0\n");
    CHECK(FindingsText(plan) == "");
    const Bound bound = ProveBound(plan, costs, 200);
    CHECK(bound.kind == BoundKind::kHostLink);
    CHECK(bound.head == 4 * unit);
    CHECK(bound.value <= Simulate(plan, costs).makespan);
  }

  TEST_CASE("offload: the verifier names what is wrong") {
    const auto findings = [](const std::string& text) {
      return FindingsText(PlanFromText("rank\n" + text));
    };
    const std::string rest = " W s0 m0\n";
    CHECK(findings(" F s0 m0\n OFFLOAD s0 m0\n B s0 m0\n" + rest) ==
          "complete: rank 0, instruction 1: OFFLOAD s0 m0 comes without RELOAD s0 m0: what it "
          "copies its backward needs on the device; add that, or drop this\n");
    CHECK(findings(" F s0 m0\n RELOAD s0 m0\n B s0 m0\n" + rest) ==
          "complete: rank 0, instruction 1: RELOAD s0 m0 comes without OFFLOAD s0 m0: what it "
          "copies is not in the memory of the host; add that, or drop this\n");
    CHECK(findings(" OFFLOAD s0 m0\n F s0 m0\n RELOAD s0 m0\n B s0 m0\n" + rest) ==
          "order: rank 0, instruction 0: OFFLOAD s0 m0 stands before 1 (F s0 m0), which it needs; "
          "move it after\n");
    CHECK(findings(" F s0 m0\n RELOAD s0 m0\n OFFLOAD s0 m0\n B s0 m0\n" + rest) ==
          "order: rank 0, instruction 1: RELOAD s0 m0 stands before 2 (OFFLOAD s0 m0), which it "
          "needs; move it after\n");
    CHECK(findings(" F s0 m0\n OFFLOAD s0 m0\n B s0 m0\n RELOAD s0 m0\n" + rest) ==
          "order: rank 0, instruction 2: B s0 m0 stands before 3 (RELOAD s0 m0), which it needs; "
          "move it after\n");
    CHECK(findings(" F s0 m0\n OFFLOAD s0 m0\n OFFLOAD s0 m0\n RELOAD s0 m0\n B s0 m0\n" + rest) ==
          "complete: rank 0, instruction 2: OFFLOAD s0 m0 repeats 1 (OFFLOAD s0 m0); drop one\n");
    CHECK(findings(" F s0 m0\n OFFLOAD s0 m0\n RELOAD s0 m0\n R s0 m0\n B s0 m0\n" + rest) ==
          "complete: rank 0, instruction 1 (OFFLOAD s0 m0): the cell is recomputed and offloaded, "
          "which does not go together; drop R, or OFFLOAD and RELOAD\n");
    CHECK(FindingsText(PlanFromText("level compute\nroute 0 1 : 0\nrank\n F s0 m0\n BW s0 m0\n "
                                    "OFFLOAD s1 m0\nrank\n F s1 m0\n BW s1 m0\n")) ==
          "owner: rank 0, instruction 2: OFFLOAD s1 m0 is on rank 0; route 0 has stage 1 on rank "
          "1\n");
  }

  TEST_CASE("offload: costs of the link to the host, read and written") {
    const auto read = [](const std::string& host) {
      return ReadCosts(
          "{\"unit\": \"us\", \"stage\": {\"f\": 1, \"b\": 1, \"w\": 1}, \"host\": " + host + "}",
          "costs.json");
    };
    for (const std::string host :
         {"{\"time\": 2.5}", "{\"bandwidth\": 25000}", "{\"latency\": 5, \"bandwidth\": 25000}"}) {
      const CostModel costs = read(host);
      REQUIRE(costs.host);
      CHECK(ReadCosts(WriteCosts(costs), "again") == costs);
    }
    CHECK(read("{\"time\": 2.5}").host->latency == 2500);
    CHECK(Failure([&] { read("{\"latency\": 1}"); }) ==
          "costs.json: /host: give \"time\", or \"bandwidth\" (bytes per unit)");
    CHECK(Failure([&] { read("{\"time\": 1, \"bandwidth\": 1}"); }) ==
          "costs.json: /host: \"time\" is the whole cost of a copy; give either it or \"latency\" "
          "and \"bandwidth\"");
    CHECK(Failure([&] { read("{\"bandwidth\": 0}"); }) ==
          "costs.json: /host/bandwidth: must be a bandwidth (bytes per unit) above 0 and up to "
          "1e18, is 0");
    CostModel costs = CostsOfTwo();
    CHECK(costs.Duration(CellOp(Op::OFFLOAD, 0, 0)) == 3 * TicksPerUnit(Unit::kUnit));
    costs.memory.reset();
    CHECK(Failure([&] { Simulate(PlanFromText(kTwo), costs); }) ==
          "\"host\" gives a bandwidth, and the costs do not say how many bytes are copied; give "
          "\"memory\": {\"activation_bytes\": ..}, or \"host\": {\"time\": ..}");
    costs.host.reset();
    CHECK(Failure([&] { Simulate(PlanFromText(kTwo), costs); }) ==
          "the plan copies activations to the host (OFFLOAD), and the costs do not say how long "
          "that takes; give \"host\": {\"bandwidth\": ..} or {\"time\": ..}");
    // A copy may not take longer than any cost.
    costs.host = HostCost{.latency = 0, .bandwidth = 1e-6};
    costs.memory = MemoryCost{.activation_bytes = int64_t{1} << 40};
    CHECK(Failure([&] { CheckCosts(costs, 1, 1); }) != "accepted");
  }
}

TEST_SUITE("property") {
  TEST_CASE(
      "offload: plans of every schedule and level are sound, run right, and come back from files") {
    std::mt19937_64 random(5);
    int plans = 0;
    for (const Schedule* schedule : Schedules()) {
      for (int round = 0; round < 4; ++round) {
        const bool layered = round % 2 == 0;
        CostModel costs =
            layered ? RandomMoeCosts(&random, 2, round == 0 ? Overlap::kAll : Overlap::kPublished)
                    : UniformCosts(3, 4, 2, 1);
        if (layered) {
          costs.memory = MemoryCost{.activation_bytes = 70, .w_stash_bytes = 30};
          for (size_t v = 0; v < kValueCount; ++v) {
            costs.memory->values.push_back(static_cast<int64_t>(64 * (v % 3)));
          }
        } else {
          costs.memory = MemoryCost{.activation_bytes = 700, .w_stash_bytes = 300};
          costs.comm.bytes = 100;
        }
        Spec spec = MakeSpec(schedule->name, 2 + 2 * (round / 2), 6 + 2 * (round / 2), costs);
        spec.search.budget = 10'000'000;
        if (!schedule->reject(spec).empty()) continue;
        const Plan order = OffloadedPlan(*schedule, spec, &random, &costs);
        CAPTURES(schedule->name, round);
        REQUIRE(FindingsText(order) == "");
        Plan comm;
        for (const Level level : {Level::kComm, Level::kComponent, Level::kBuffer}) {
          if (level == Level::kComponent && !layered) continue;
          const Plan plan = Lower(order, costs, {.target = level});
          const Plan again = ReadPlan(WritePlan(plan), "plan.json");
          CHECK(again.programs == plan.programs);
          CHECK(again.slots == plan.slots);
          CHECK(again.costs->host == costs.host);
          if (level == Level::kComm) comm = plan;
          if (level == Level::kComponent) CHECK(MostOf(plan, costs) <= MostOf(comm, costs));
          CHECK(RunAtAnyPace(plan, &random) == "");
          CHECK(HeldAtAnyPace(plan, costs, 10, &random) == "");
          ++plans;
        }
        // Its own order is one of those that the bound is about.
        const Time makespan = Simulate(comm, costs).makespan;
        CHECK(ProveBound(comm, costs).value <= makespan);
        CHECK(ProveBound(comm, costs, 1).value <= makespan);
        // The longest chain leads to the end.
        const Simulation run = Simulate(comm, costs);
        const std::vector<InstructionRef> path = CriticalPath(comm, costs, run.timeline);
        if (makespan > 0) {
          REQUIRE(!path.empty());
          const InstructionRef first = path.front();
          CHECK(
              run.timeline.ranks[static_cast<size_t>(first.rank)][static_cast<size_t>(first.index)]
                  .start == 0);
        }
      }
    }
    CHECK(plans >= 60);
  }

  TEST_CASE("offload: at level comm and without layers at level buffer times are the same") {
    std::mt19937_64 random(6);
    for (const std::string schedule : {"1f1b", "zb-1p", "zb-v", "gpipe"}) {
      CostModel costs = UniformCosts(300, 400, 200, 50);
      costs.comm.bytes = 10;
      costs.memory = MemoryCost{.activation_bytes = 700, .w_stash_bytes = 300};
      costs.host = HostCost{.latency = 150};
      const Plan order = OffloadAll(GeneratePlan(MakeSpec(schedule, 4, 8, costs)));
      const Plan comm = Lower(order, costs, {.target = Level::kComm});
      const Plan buffer = Lower(order, costs, {.target = Level::kBuffer});
      CAPTURE(schedule);
      CHECK(Simulate(comm, costs).makespan == Simulate(buffer, costs).makespan);
      const Simulation a = Simulate(comm, costs), b = Simulate(buffer, costs);
      for (size_t r = 0; r < a.ranks.size(); ++r) {
        CHECK(a.ranks[r].peak_bytes == b.ranks[r].peak_bytes);
      }
    }
  }

  TEST_CASE("offload: mutants of the copies are rejected or run right") {
    std::mt19937_64 random(7);
    const auto below = [&](size_t size) { return static_cast<size_t>(random() % size); };
    int made = 0, rejected = 0;
    std::vector<Plan> sound;
    for (const std::string schedule : {"1f1b", "zb-v", "dualpipe", "zb-1p"}) {
      for (const bool layered : {false, true}) {
        CostModel costs =
            layered ? RandomMoeCosts(&random, 2, Overlap::kAll) : UniformCosts(3, 4, 2, 1);
        costs.memory = MemoryCost{.activation_bytes = 700, .w_stash_bytes = 300};
        costs.memory->values.assign(kValueCount, layered ? 64 : 0);
        costs.comm.bytes = 64;
        costs.host = HostCost{.latency = 2};
        const Plan order = OffloadAll(GeneratePlan(MakeSpec(schedule, 2, 4, costs)));
        for (const Level level : {Level::kCompute, Level::kComm, Level::kBuffer}) {
          sound.push_back(level == Level::kCompute ? order
                                                   : Lower(order, costs, {.target = level}));
        }
      }
    }
    while (made < 2000) {
      Plan plan = sound[below(sound.size())];
      const size_t r = below(plan.programs.size());
      Program& program = plan.programs[r];
      std::vector<size_t> copies;
      for (size_t k = 0; k < program.size(); ++k) {
        if (IsHostCopy(program[k].op)) copies.push_back(k);
      }
      REQUIRE(!copies.empty());
      const size_t at = copies[below(copies.size())];
      const size_t kind = below(plan.level == Level::kBuffer ? 9 : 7);
      const Instruction i = program[at];
      const bool lanes = plan.level == Level::kBuffer;
      switch (kind) {
        case 0:
          program[at].op = i.op == Op::OFFLOAD ? Op::RELOAD : Op::OFFLOAD;
          break;
        case 1:
          program[at].stage = static_cast<int>(below(static_cast<size_t>(plan.stages)));
          break;
        case 2:
          program[at].microbatch = static_cast<int>(below(static_cast<size_t>(plan.microbatches)));
          break;
        case 3:  // events and slots name instructions by their place: only where there are none
          if (lanes) continue;
          program.erase(program.begin() + static_cast<std::ptrdiff_t>(at));
          break;
        case 4:
          if (lanes) continue;
          program.insert(program.begin() + static_cast<std::ptrdiff_t>(below(program.size() + 1)),
                         i);
          break;
        case 5: {
          if (lanes) continue;
          program.erase(program.begin() + static_cast<std::ptrdiff_t>(at));
          program.insert(program.begin() + static_cast<std::ptrdiff_t>(below(program.size() + 1)),
                         i);
          break;
        }
        case 6: {
          if (lanes) continue;
          program.erase(program.begin() + static_cast<std::ptrdiff_t>(at));
          Program& other = plan.programs[below(plan.programs.size())];
          other.insert(other.begin() + static_cast<std::ptrdiff_t>(below(other.size() + 1)), i);
          break;
        }
        case 7: {  // some instruction no longer waits for a copy, or a copy for something
          std::vector<size_t> waiting;
          for (size_t k = 0; k < program.size(); ++k) {
            const Instruction& w = program[k];
            const bool near =
                IsHostCopy(w.op) ||
                std::any_of(w.after.begin(), w.after.begin() + w.after_count, [&](int on) {
                  return IsHostCopy(program[static_cast<size_t>(on)].op);
                });
            if (near && w.after_count > 0) waiting.push_back(k);
          }
          Instruction& w = program[waiting[below(waiting.size())]];
          const size_t drop = below(w.after_count);
          for (size_t k = drop; k + 1 < w.after_count; ++k) w.after[k] = w.after[k + 1];
          w.after[--w.after_count] = 0;
          break;
        }
        default: {  // a slot elsewhere
          std::vector<Slot>& slots = plan.slots[r];
          slots[below(slots.size())].offset = 64 * static_cast<int64_t>(below(40));
          break;
        }
      }
      if (plan == sound[0]) continue;
      ++made;
      CAPTURES(plan.schedule, Name(plan.level), kind, ToString(i), FindingsText(plan));
      if (!Verify(plan).empty()) {
        ++rejected;
        continue;
      }
      CHECK(RunAtAnyPace(plan, &random) == "");
    }
    MESSAGE(made << " mutants, " << made - rejected << " of them sound");
    CHECK(rejected > made / 2);
  }
}

}  // namespace
}  // namespace contraflow::offload_test
