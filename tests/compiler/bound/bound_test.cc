#include "compiler/bound/bound.h"

#include <doctest/doctest.h>

#include <random>

#include "compiler/bound/work.h"
#include "compiler/lower/interleave.h"
#include "compiler/lower/passes.h"
#include "compiler/simulate/simulate.h"
#include "schedules/registry.h"
#include "tests/support/failure.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"

namespace contraflow::bound_test {
namespace {

/// A plan of level comm, of the schedules in turn, with random components.
Plan RandomCommPlan(std::mt19937_64* random, int round, Overlap overlap) {
  const auto draw = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(*random);
  };
  const Schedule& schedule = *Schedules()[static_cast<size_t>(round) % Schedules().size()];
  for (;;) {
    Spec spec = MakeSpec(schedule.name, draw(1, 6), draw(1, 12), {});
    if (!schedule.reject(spec).empty()) continue;
    spec.costs = RandomMoeCosts(random, 3, overlap);
    if (draw(0, 2) == 0) {
      for (int m = 0; m < spec.microbatches; ++m) {
        spec.costs.microbatch_scale.push_back(draw(1, 30) / 10.0);
      }
    }
    Plan plan = InsertCommunication(GeneratePlan(spec), spec.costs);
    plan.costs = spec.costs;
    return plan;
  }
}

/// Components of `layers` layers: c each on the compute lane, x each on the all-to-all lane.
CostModel TwoCosts(int layers, Time c, Time x) {
  CostModel costs;
  costs.moe = MoeCost{};
  costs.moe->layers_per_stage = layers;
  for (const ComponentCost& component : kComponentCosts) {
    const bool all_to_all = WorkOf(component.op) == Work::kAllToAll;
    (*costs.moe.*component.times) = {all_to_all ? x : c};
  }
  DeriveChunkCosts(&costs, Overlap::kAll);
  return costs;
}

Plan Components(const Spec& spec) {
  return ExpandComponents(InsertCommunication(GeneratePlan(spec), spec.costs), spec.costs,
                          Overlap::kAll, {});
}

TEST_SUITE("property") {
  TEST_CASE("no simulated plan of components is shorter than its bound") {
    std::mt19937_64 random(41);
    int reached = 0, cases = 0;
    double gap = 0;
    for (int round = 0; round < CasesToDraw(400); ++round) {
      const Overlap overlap = round % 2 == 0 ? Overlap::kAll : Overlap::kPublished;
      const Plan chunks = RandomCommPlan(&random, round / 2, overlap);
      const CostModel& costs = *chunks.costs;
      CAPTURES(round, chunks.schedule);
      CHECK(LowerBound(chunks, costs) <= Simulate(chunks, costs).makespan);
      // Memory enough that it is not what keeps a plan from its bound.
      const Plan plan = ExpandComponents(
          chunks, costs, overlap, std::vector<int64_t>(chunks.programs.size(), int64_t{1} << 40));
      const Time makespan = Simulate(plan, costs).makespan;
      const Time bound = LowerBound(plan, costs);
      CHECK(bound <= makespan);
      if (overlap == Overlap::kPublished || bound == 0) continue;
      ++cases;
      reached += bound == makespan;
      gap += static_cast<double>(makespan - bound) / static_cast<double>(bound);
    }
    MESSAGE("the bound is reached by " << reached << " of " << cases << " plans, and "
                                       << 100 * gap / cases << " % below on average");
    // A bound that is never near could be far too low without anybody noticing.
    CHECK((kSanitized || reached > 2));
    CHECK(gap / cases < 0.3);
  }

  TEST_CASE("no schedule is shorter than the bound for the memory that it holds") {
    std::mt19937_64 random(43);
    int cases = 0, reached = 0;
    for (const Spec& spec : RandomSpecs(&random, 500, 9, 40)) {
      const Plan plan = GeneratePlan(spec);
      const Simulation simulation = Simulate(plan, spec.costs);
      const bool bytes = spec.costs.memory && spec.costs.memory->activation_bytes > 0;
      int64_t limit = 0;
      for (const RankFigures& rank : simulation.ranks) {
        limit = std::max(limit, bytes ? rank.peak_bytes : rank.peak_activations);
      }
      CAPTURES(spec.schedule, spec.ranks, spec.microbatches);
      const Bound bound = ProveBound(plan, spec.costs, limit);
      CAPTURE(Name(bound.kind));
      CHECK(bound.value <= simulation.makespan);
      ++cases;
      reached += bound.value == simulation.makespan;
    }
    MESSAGE(reached << " of " << cases << " schedules are proven optimal");
    CHECK(reached > 0);
  }
}

TEST_SUITE("unit") {
  TEST_CASE("the bound of a plan of components by hand") {
    // One micro-batch and one rank: both chains, then the weight part of the first attention.
    CostModel costs = TwoCosts(2, 3, 5);
    Plan plan = Components(MakeSpec("gpipe", 1, 1, costs));
    CHECK(LowerBound(plan, costs) == 4 * (3 + 5) + 4 * (3 + 5) + 3);
    CHECK(Simulate(plan, costs).makespan == LowerBound(plan, costs));
    // Two ranks: all of that on either, and a hop both ways.
    costs.comm.latency = 7;
    plan = Components(MakeSpec("gpipe", 2, 1, costs));
    CHECK(LowerBound(plan, costs) == 2 * 64 + 3 + 2 * 7);
    // Two stages of one rank: no hop between them.
    plan = PlanFromText("route 0 0 : 0\nrank\n F s0 m0\n F s1 m0\n BW s1 m0\n BW s0 m0\n");
    plan = ExpandComponents(InsertCommunication(plan, costs), costs, Overlap::kAll, {});
    CHECK(LowerBound(plan, costs) == 2 * 64 + 3);
    // Many micro-batches: the all-to-all lane of the last rank is never idle, but for the forward
    // of stage 0 and its own first attention, and its last attention gradient and the way back.
    costs.comm.latency = 0;
    plan = Components(MakeSpec("1f1b", 2, 100, costs));
    CHECK(LowerBound(plan, costs) == (32 + 3) + 100 * 8 * 5 + (3 + 32 + 3));
    // Compute-heavy: the compute lane of the last rank, with no tail after its weight parts.
    costs = TwoCosts(2, 5, 1);
    plan = Components(MakeSpec("1f1b", 2, 100, costs));
    CHECK(LowerBound(plan, costs) == 24 + 100 * 12 * 5);
  }

  TEST_CASE("the bound at the memory of 1F1B is what ZB-1P reaches") {
    // Zero Bubble (arXiv 2401.10241), Table 6 (milliseconds; activation and stash of a layer are
    // 34 h + 5 a s and 32 h) and the bubble rates of ZB-1p in Table 5.
    struct Row {
      int ranks, microbatches;
      double f, b, w, comm;
      int64_t activation, stash;
      double bubble;
    };
    constexpr Row kRows[] = {
        {8, 24, 18.522, 18.086, 9.337, 0.601, 2729, 1000, .1585},
        {8, 32, 18.513, 18.086, 9.331, 0.626, 2729, 1000, .1242},
        {8, 64, 18.546, 18.097, 9.321, 0.762, 2729, 1000, .0674},
        {8, 24, 29.718, 29.444, 19.927, 0.527, 2312, 1000, .1323},
        {8, 32, 29.802, 29.428, 19.530, 0.577, 2312, 1000, .1045},
        {8, 64, 29.935, 29.621, 19.388, 0.535, 2312, 1000, .0554},
        {16, 48, 11.347, 11.248, 8.132, 0.377, 2312, 1000, .1397},
        {16, 64, 11.307, 11.254, 8.101, 0.379, 2312, 1000, .1088},
        {16, 128, 11.325, 11.308, 8.109, 0.378, 2312, 1000, .0576},
        {32, 96, 10.419, 10.207, 7.715, 0.408, 2312, 1000, .1421},
        {32, 128, 10.408, 10.204, 7.703, 0.408, 2312, 1000, .1106},
        {32, 256, 10.402, 10.248, 7.698, 0.460, 2312, 1000, .0594},
    };
    for (const Row& row : kRows) {
      const auto ticks = [](double time) { return ToTicks(time, Unit::kMilliseconds, "row"); };
      CostModel costs = UniformCosts(ticks(row.f), ticks(row.b), ticks(row.w), ticks(row.comm));
      costs.memory = MemoryCost{.activation_bytes = row.activation, .w_stash_bytes = row.stash};
      const Plan plan = GeneratePlan(MakeSpec("1f1b", row.ranks, row.microbatches, costs));
      const Bound bound = ProveBound(plan, costs, row.ranks * row.activation);
      const double work = row.microbatches * (row.f + row.b + row.w);
      const double makespan = FromTicks(bound.value, Unit::kMilliseconds);
      CAPTURE(row.microbatches);
      CHECK((makespan - work) / makespan == doctest::Approx(row.bubble).epsilon(0.001));
      // More memory, more room.
      CHECK(ProveBound(plan, costs, 2 * row.ranks * row.activation).value < bound.value);
    }
  }

  TEST_CASE("what a bound rests on by hand") {
    const auto prove = [](const char* schedule, int ranks, int microbatches, const CostModel& costs,
                          std::optional<int64_t> limit) {
      return ProveBound(GeneratePlan(MakeSpec(schedule, ranks, microbatches, costs)), costs, limit);
    };
    // The last of four ranks waits for three forwards and then always has work.
    Bound bound = prove("1f1b", 4, 8, UniformCosts(1, 1, 1), std::nullopt);
    CHECK(Name(bound.kind) == "busy rank");
    CHECK(bound.rank == 3);
    CHECK(bound.head == 3);
    CHECK(bound.work == 24);
    CHECK(bound.value == 27);
    // One micro-batch has nothing to overlap with.
    bound = prove("1f1b", 4, 1, UniformCosts(1, 2, 3, 10), std::nullopt);
    CHECK(Name(bound.kind) == "critical path");
    CHECK(bound.value == 4 * 3 + 6 * 10 + 3);
    // With one activation the first rank does one micro-batch after the other: forward, there and
    // back, backward and weight gradient.
    bound = prove("1f1b", 4, 8, UniformCosts(1, 1, 1), 1);
    CHECK(bound.value == 8 * 9);
    // Messages of ten fill the way down, sixteen times; then one way up to go, before and after
    // which are a forward, and two backwards and a weight gradient.
    CostModel costs = UniformCosts(1, 1, 1);
    costs.comm.bandwidth = 1;
    costs.comm.occupancy = 10;
    bound = prove("1f1b", 2, 16, costs, std::nullopt);
    CHECK(Name(bound.kind) == "link");
    CHECK(bound.head == 1);
    CHECK(bound.work == 160);
    CHECK(bound.tail == 1 + 1 + 10 + 1 + 1);
    CHECK((bound.rank == 0 && bound.peer == 1));
    // Pairs save 30 each. The first backward of rank 3 cannot start before 4 more forwards have
    // come up to it, 660, and 700 pass after its last forward: 8 forwards of 60 and 8 backwards of
    // 100 in no pair fill both windows, and 8 savings are not made.
    costs = UniformCosts(60, 60, 40);
    costs.stages[0].fb = 130;
    bound = prove("dualpipe", 8, 32, costs, std::nullopt);
    CHECK(Name(bound.kind) == "pairs");
    CHECK(bound.rank == 3);
    CHECK(bound.head == 3 * 60);
    CHECK(bound.work == 32 * 130 + 8 * 30);
    CHECK(bound.idle == 0);
    CHECK(bound.value == 4580);
  }

  TEST_CASE("where a pair saves more than a lone backward takes the least saving is the one lost") {
    // On rank 0 every backward of stage 2 is in a pair, the last one with a forward of stage 1.
    // That forward lets it save all that it can, though its own backward is short.
    const Plan plan = PlanFromText(
        "route 1 0 1 : 0\nroute 0 1 0 : 1 2\n"
        "rank\n F s0 m1\n F s0 m2\n F s2 m1\n FB s2 m2 + s2 m1\n FB s1 m0 + s2 m2\n"
        " B s0 m1\n W s0 m1\n B s1 m0\n W s1 m0\n B s0 m2\n W s0 m2\n"
        "rank\n F s0 m0\n F s1 m1\n F s1 m2\n B s1 m1\n W s1 m1\n B s1 m2\n W s1 m2\n"
        " F s2 m0\n B s2 m0\n W s2 m0\n B s0 m0\n W s0 m0\n");
    CHECK(FindingsText(plan) == "");
    CostModel costs;
    costs.stages = {{.f = 1, .b = 1, .w = 200, .bw = 201, .fb = 202},
                    {.f = 2, .b = 1, .w = 1, .bw = 51, .fb = 2},
                    {.f = 1, .b = 50, .w = 50, .bw = 100, .fb = 50}};
    CHECK(Simulate(plan, costs).makespan == 510);
    CHECK(LowerBound(plan, costs) == 506);
  }

  TEST_CASE("windows of a lane that some chunks of its rank do not use may be one") {
    // Rank 0 has an MoE stage at the beginning and a plain one at the end; between them is a long
    // way through other ranks, which both micro-batches go at once.
    CostModel costs;
    for (int s = 0; s < 5; ++s) {
      MoeCost moe;
      moe.layers_per_stage = 1;
      moe.kinds = {s == 0 ? LayerKind::kMoe : LayerKind::kPlain};
      for (const ComponentCost& component : kComponentCosts) {
        const bool chain = component.op == Op::ATTN_F || component.op == Op::ATTN_B;
        const Time time = s == 0 || s == 4 ? 1 : chain ? 100 : 0;
        (moe.*component.times) = {Has(moe.kinds[0], component.op) ? time : 0};
      }
      CostModel stage;
      stage.moe = moe;
      DeriveChunkCosts(&stage, Overlap::kAll);
      costs.stages.push_back(stage.stages.front());
      costs.stage_moe.push_back(moe);
    }
    costs.derived = Overlap::kAll;
    std::string text =
        "route 0 1 2 3 0 : 0 1\nrank\n F s0 m0\n F s0 m1\n F s4 m0\n BW s4 m0\n F s4 m1\n"
        " BW s4 m1\n BW s0 m0\n BW s0 m1\n";
    for (const char* const s : {"1", "2", "3"}) {
      text += "rank\n";
      for (const char* const cell : {" F s# m0\n", " F s# m1\n", " BW s# m0\n", " BW s# m1\n"}) {
        text += cell;
        text[text.rfind('#')] = *s;
      }
    }
    const Plan plan =
        ExpandComponents(InsertCommunication(PlanFromText(text), costs), costs, Overlap::kAll, {});
    const Simulation simulation = Simulate(plan, costs);
    CHECK(simulation.ranks[0].peak_activations == 3);
    CHECK(ProveBound(plan, costs, 3).value <= simulation.makespan);
  }

  TEST_CASE("a memory limit that nothing fits is refused") {
    CostModel costs = UniformCosts(1, 1, 1);
    const Plan plan = GeneratePlan(MakeSpec("dualpipe-v", 2, 4, costs));
    CHECK(Failure([&] { ProveBound(plan, costs, 1); }) ==
          "no schedule fits a memory limit of 1: rank 1 holds at least 2 (one micro-batch on all "
          "of its stages); raise the limit");
    costs.memory = MemoryCost{.activation_bytes = 10, .w_stash_bytes = 4};
    CHECK(Failure([&] { ProveBound(plan, costs, 19); }) ==
          "no schedule fits a memory limit of 19: rank 1 holds at least 20 (one micro-batch on all "
          "of its stages); raise the limit");
    CHECK(ProveBound(plan, costs, 20).value > LowerBound(plan, costs));
  }

  TEST_CASE("less memory never lowers a bound and twice the costs double it") {
    std::mt19937_64 random(17);
    for (const Spec& spec : RandomSpecs(&random, 60, 6, 12)) {
      const Plan plan = GeneratePlan(spec);
      const int visits = plan.stages / plan.ranks;
      Time last = LowerBound(plan, spec.costs);
      CAPTURE(spec.schedule);
      const bool bytes = spec.costs.memory && spec.costs.memory->activation_bytes > 0;
      const int64_t unit = bytes ? spec.costs.memory->activation_bytes : 1;
      for (int slots = 3 * plan.stages; slots >= std::max(visits, 1); --slots) {
        const Bound bound = ProveBound(plan, spec.costs, slots * unit);
        CHECK(bound.value >= last);
        last = bound.value;
      }
    }
    for (const char* schedule : {"1f1b", "dualpipe", "dualpipe-v"}) {
      CostModel costs = UniformCosts(11, 13, 7, 3);
      costs.stages[0].fb = 25;
      const Plan plan = GeneratePlan(MakeSpec(schedule, 4, 12, costs));
      const Time once = ProveBound(plan, costs, 6).value;
      costs.comm.latency *= 2;
      costs.stages[0] = {.f = 22, .b = 26, .w = 14, .bw = 40, .fb = 50};
      CHECK(ProveBound(plan, costs, 6).value == 2 * once);
    }
  }

  TEST_CASE("micro-batches taken together never prove more") {
    std::mt19937_64 random(23);
    int less = 0;
    for (const Spec& spec : RandomSpecs(&random, 200, 5, 12)) {
      const BoundInput input = MakeBoundInput(GeneratePlan(spec), spec.costs, std::nullopt);
      Bound each;
      RaiseByChunks(input, &each, 12);
      CAPTURE(spec.schedule);
      for (const size_t most : {1, 2, 5}) {
        Bound together;
        RaiseByChunks(input, &together, most);
        CHECK(together.value <= each.value);
        CHECK(together.value >= each.value / 2);
        less += together.value < each.value;
      }
    }
    CHECK(less > 0);
  }

  TEST_CASE("a bound of other layers than the plan's is refused") {
    const CostModel costs = TwoCosts(2, 3, 5);
    const Plan plan = Components(MakeSpec("1f1b", 2, 4, costs));
    CHECK(Failure([&] { LowerBound(plan, TwoCosts(3, 3, 5)); }) ==
          "`costs`: /moe/layers_per_stage: is 3, this plan has 2 layers a stage");
    CHECK(Failure([&] { LowerBound(plan, UniformCosts(1, 1, 1)); }) ==
          "this plan has 2 layers a stage, and the costs have no components; give costs with "
          "\"moe\"");
  }
}

}  // namespace
}  // namespace contraflow::bound_test
