// Recompute: R runs the forward of a chunk again, so that its activations need not be held from F
// to B. Here: what a plan with R may be, what its chunks hold, that no bound is above it, and that
// a choice of stages fits a limit and is no larger than it need be.

#include "schedules/recompute/recompute.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <tuple>

#include "compiler/bound/bound.h"
#include "compiler/files/cost_io.h"
#include "compiler/lower/interleave.h"
#include "compiler/lower/lower.h"
#include "compiler/plan/plan.h"
#include "compiler/plan/recompute_cost.h"
#include "compiler/simulate/memory.h"
#include "compiler/simulate/simulate.h"
#include "schedules/registry.h"
#include "tests/support/failure.h"
#include "tests/support/lane_run.h"
#include "tests/support/naive.h"
#include "tests/support/support.h"

namespace contraflow::recompute_test {
namespace {

constexpr Time kOne = 1'000'000;

CostModel CostsWith(int64_t activation, int64_t stash, int64_t input) {
  CostModel costs = UniformCosts(kOne, kOne, kOne);
  costs.memory =
      MemoryCost{.activation_bytes = activation, .w_stash_bytes = stash, .input_bytes = input};
  return costs;
}

/// Any stages, now and then none or all.
std::vector<int> RandomStages(std::mt19937_64* random, int stages) {
  const uint64_t kind = (*random)() % 4;
  std::vector<int> chosen;
  for (int s = 0; s < stages; ++s) {
    if (kind == 0 || (kind != 1 && (*random)() % 2 == 0)) chosen.push_back(s);
  }
  return chosen;
}

/// The most that each rank holds of activations, told from the spans alone: what is taken at a time
/// is there before what is given back at that time is gone, if the same rank's program has it so.
std::vector<int64_t> PeaksOf(const Plan& plan, const Timeline& timeline, const CellBytes& bytes) {
  std::vector<int64_t> peaks;
  for (size_t r = 0; r < plan.programs.size(); ++r) {
    std::vector<std::tuple<Time, size_t, int, int64_t>> changes;  // time, index, begin or end
    const Program& program = plan.programs[r];
    const auto has_r = [&](int stage, int m) {
      return std::ranges::count(program, CellOp(Op::R, stage, m)) > 0;
    };
    for (size_t k = 0; k < program.size(); ++k) {
      const Instruction& i = program[k];
      const auto [start, end] = timeline.ranks[r][k];
      if (HasForward(i.op)) {
        changes.emplace_back(start, k, 0, bytes.activation);
        if (has_r(i.stage, i.microbatch)) {
          changes.emplace_back(end, k, 1, bytes.input - bytes.activation);
        }
      }
      if (i.op == Op::R) changes.emplace_back(start, k, 0, bytes.activation - bytes.input);
      if (HasBackward(i.op)) changes.emplace_back(end, k, 1, bytes.stash - bytes.activation);
      if (HasWeight(i.op)) changes.emplace_back(end, k, 1, -bytes.stash);
    }
    std::ranges::sort(changes, [](const auto& a, const auto& b) {
      return std::tie(std::get<1>(a), std::get<2>(a)) < std::tie(std::get<1>(b), std::get<2>(b));
    });
    int64_t held = 0, peak = 0;
    for (const auto& change : changes) peak = std::max(peak, held += std::get<3>(change));
    CHECK(held == 0);
    peaks.push_back(peak);
  }
  return peaks;
}

TEST_SUITE("unit") {
  TEST_CASE("recompute: stages are read from text") {
    using Choice = Recompute::Choice;
    CHECK(ParseRecompute("none") == Recompute{});
    CHECK(ParseRecompute("full") == Recompute{.choice = Choice::kFull});
    CHECK(ParseRecompute("auto") == Recompute{.choice = Choice::kAuto});
    CHECK(ParseRecompute("3") == Recompute{.choice = Choice::kStages, .stages = {3}});
    CHECK(ParseRecompute("0,3,5-7") ==
          Recompute{.choice = Choice::kStages, .stages = {0, 3, 5, 6, 7}});
    const auto failure = [](const char* text) { return Failure([&] { ParseRecompute(text); }); };
    for (const char* text : {"", "some", "1,", ",1", "1,,2", "-1", "1-", "a-b", "1 2", "0x1"}) {
      CAPTURE(text);
      CHECK(failure(text) ==
            "`recompute`: must be none, full, auto, attention, experts, all-but-attention, "
            "layers=N or stages as in \"0,3,5-7\", is \"" +
                std::string(text) + "\"");
    }
    for (const char* text : {"3,1", "1,1", "1-3,3", "7-5"}) {
      CAPTURE(text);
      CHECK(failure(text) ==
            "`recompute`: stages must ascend, each named once, is \"" + std::string(text) + "\"");
    }
    CHECK(failure("0-99999") == "`recompute`: a stage must be below 32768, is \"0-99999\"");
  }

  TEST_CASE("recompute: R stands once between F and the backward on the rank of its stage") {
    const auto findings = [](const char* first, const char* second) {
      return FindingsText(PlanFromText(std::string("level compute\nroute 0 1 : 0\nrank\n") + first +
                                       "\nrank\n" + second));
    };
    const char* const last = "F s1 m0\nB s1 m0\nW s1 m0";
    CHECK(findings("F s0 m0\nR s0 m0\nBW s0 m0", last) == "");
    CHECK(findings("F s0 m0\nR s0 m0\nB s0 m0\nW s0 m0", "F s1 m0\nR s1 m0\nBW s1 m0") == "");
    CHECK(findings("R s0 m0\nF s0 m0\nBW s0 m0", last) ==
          "order: rank 0, instruction 0: R s0 m0 stands before 1 (F s0 m0), the forward that it "
          "runs again; move it after\n");
    CHECK(findings("F s0 m0\nBW s0 m0\nR s0 m0", last) ==
          "order: rank 0, instruction 2: R s0 m0 stands after 1 (BW s0 m0), which needs the "
          "activations that it makes; move it before, or drop it\n");
    CHECK(findings("F s0 m0\nR s0 m0\nR s0 m0\nBW s0 m0", last) ==
          "complete: rank 0, instruction 2: R s0 m0 repeats the recomputation of stage 0, "
          "micro-batch 0, done at 1 (R s0 m0); drop one\n");
    CHECK(findings("F s0 m0\nR s1 m0\nBW s0 m0", last) ==
          "owner: rank 0, instruction 1: R s1 m0 runs the forward of stage 1, micro-batch 0 on "
          "rank 0; route 0 has it on rank 1\n");
    CHECK(findings("R s0 m0\nBW s0 m0", last) ==
          "complete: rank 0: no forward of stage 0, micro-batch 0; rank 0 must run F s0 m0 once\n");
  }

  TEST_CASE("recompute: a chunk holds its input from F to R and its activation from R to B") {
    const Plan plan = InsertRecompute(
        PlanFromText("level compute\nrank\nF s0 m0\nF s0 m1\nB s0 m0\nW s0 m0\nBW s0 m1"), {0});
    const CostModel costs = CostsWith(100, 40, 10);
    CHECK(ToString(plan.programs[0][2]) == "R s0 m0");
    CHECK(ToString(plan.programs[0][5]) == "R s0 m1");
    const Simulation simulation = Simulate(plan, costs);
    CHECK(simulation.makespan == 8 * kOne);
    CHECK(simulation.ranks[0].busy == 8 * kOne);
    // F of 1 with the input of 0 held, and R of 0 with that of 1.
    CHECK(simulation.ranks[0].peak_bytes == 110);
    CHECK(simulation.ranks[0].peak_index == 1);
    CHECK(simulation.ranks[0].peak_activations == 1);
    const MemoryFigures figures = MemoryOf(plan, costs)[0];
    CHECK(figures.peak == 110);
    CHECK(figures.peak_index == 1);
    CHECK(figures.arenas == std::array<int64_t, kArenaCount>{70, 40, 0, 0});
    CHECK(ProveBound(plan, costs).value == 8 * kOne);
  }

  TEST_CASE("recompute: R costs what the costs say and else as much as F") {
    CostModel costs = CostsWith(100, 40, 10);
    costs.stages[0].f = 7;
    CHECK(costs.Duration(CellOp(Op::R, 0, 0)) == 7);
    costs.stages[0].r = 3;
    CHECK(costs.Duration(CellOp(Op::R, 0, 0)) == 3);
    costs.microbatch_scale = {2};
    CHECK(costs.Duration(CellOp(Op::R, 0, 0)) == 6);
    CHECK(ReadCosts(WriteCosts(costs), "c.json") == costs);
    costs.stages[0].r = 0;
    CHECK(ReadCosts(WriteCosts(costs), "c.json").stages[0].recompute() == 0);
  }

  TEST_CASE("recompute: what a chunk holds meanwhile is known or asked for") {
    CostModel costs = CostsWith(100, 40, 10);
    CHECK(InputBytes(costs) == 10);
    costs.memory->input_bytes = -1;
    CHECK_FALSE(InputBytes(costs).has_value());
    const Plan plan = PlanFromText("level compute\nrank\nF s0 m0\nR s0 m0\nBW s0 m0");
    CHECK(Failure([&] { Simulate(plan, costs); }) ==
          "the costs do not say what a recomputed cell holds between F and R, its stage input; "
          "give \"memory\": {\"input_bytes\": ..}, or \"bytes\" under \"comm\"");
    costs.comm.bytes = 30;
    CHECK(InputBytes(costs) == 30);
    costs.comm.bytes = 300;
    CHECK(InputBytes(costs) == 100);
    // The first stage keeps 8 bytes a token, if their number is known.
    costs.tokens = 4;
    CHECK(InputBytes(costs, 0) == 32);
    CHECK(InputBytes(costs, 1) == 100);
    CHECK(BytesOfCell(costs, 0, true).input == 32);
    costs.comm.bytes = 0;
    CHECK_FALSE(InputBytes(costs, 0).has_value());
    costs.memory->values.assign(kValueCount, 5);
    CHECK(InputBytes(costs) == 5);
    // Activations alone are counted without bytes.
    costs.memory.reset();
    CHECK(Simulate(plan, costs).ranks[0].peak_activations == 1);
    CHECK(
        Failure([] {
          ReadCosts(R"({"unit": "unit", "stage": {"f": 1, "b": 1, "w": 1},
                          "memory": {"activation_bytes": 5, "input_bytes": 6}})",
                    "c.json");
        }) ==
        "c.json: /memory/input_bytes: is part of \"activation_bytes\" and must be at most 5, is 6");
  }

  TEST_CASE("recompute: specs that cannot be are refused") {
    Spec spec = MakeSpec("1f1b", 4, 8, CostsWith(100, 40, 10));
    spec.recompute = ParseRecompute("2-4");
    CHECK(Failure([&] { GeneratePlan(spec); }) ==
          "`recompute`: there is no stage 4, 1f1b makes 4 stages (0..3)");
    spec.recompute = ParseRecompute("full");
    spec.costs.memory.reset();
    CHECK(InstructionCount(GeneratePlan(spec)) == 3 * 4 * 8);
    spec.memory_limit = 4;
    CHECK(
        Failure([&] { GeneratePlan(spec); }) ==
        "`recompute` with `memory_limit`: the costs give no bytes, and what a recomputed cell "
        "holds is no activation; give \"memory\": {\"activation_bytes\": .., \"input_bytes\": ..}");
  }

  TEST_CASE("recompute: auto takes the fewest stages that make 1F1B fit") {
    Spec spec = MakeSpec("1f1b", 4, 8, CostsWith(100, 40, 10));
    spec.recompute = ParseRecompute("auto");
    const auto stages = [&](int64_t limit) {
      spec.memory_limit = limit;
      const RecomputedCells chunks(GeneratePlan(spec));
      std::string text;
      for (int s = 0; s < 4; ++s) text += chunks.HasStage(s) ? std::to_string(s) : "";
      return text;
    };
    // Ranks hold 4, 3, 2 and 1 activations; recomputed one and 3, 2, 1 and 0 inputs.
    CHECK(stages(400) == "");
    CHECK(stages(399) == "0");
    CHECK(stages(299) == "01");
    CHECK(stages(199) == "012");
    CHECK(stages(130) == "012");
    spec.memory_limit.reset();
    CHECK(GeneratePlan(spec) == GeneratePlan(MakeSpec("1f1b", 4, 8, spec.costs)));
  }

  TEST_CASE("recompute: a schedule that heeds costs and memory is made for those of recompute") {
    CostModel costs = CostsWith(100, 40, 10);
    costs.stages[0] = {
        .f = 10 * kOne, .b = 12 * kOne, .w = 8 * kOne, .bw = 20 * kOne, .fb = 30 * kOne};
    Spec spec = MakeSpec("zb-2p", 4, 12, costs);
    const auto made = [&](int64_t limit) {
      spec.memory_limit = limit;
      const Plan plan = GeneratePlan(spec);
      const Simulation simulation = Simulate(plan, costs);
      for (const RankFigures& rank : simulation.ranks) CHECK(rank.peak_bytes <= limit);
      CHECK(Verify(plan).empty());
      return simulation.makespan;
    };
    // Two activations a rank are few without recompute; one and some inputs go far with it.
    const Time without = made(200);
    spec.recompute = ParseRecompute("auto");
    CHECK(made(1000) == Simulate(GeneratePlan(MakeSpec("zb-2p", 4, 12, costs)), costs).makespan);
    CHECK(made(200) < without);
    spec.recompute = ParseRecompute("full");
    CHECK(made(200) < without);
  }

  TEST_CASE("recompute: R moves into the bubble before what stands before it") {
    // Rank 0 waits for its first B and could run both R before it, but for their memory.
    const Plan plan = PlanFromText(R"(level compute
        rank
         F s0 m0
         F s0 m1
         R s0 m0
         B s0 m0
         R s0 m1
         B s0 m1
         W s0 m0
         W s0 m1
        rank
         F s1 m0
         F s1 m1
         R s1 m0
         B s1 m0
         R s1 m1
         B s1 m1
         W s1 m0
         W s1 m1)");
    CostModel costs = CostsWith(100, 40, 10);
    costs.comm.latency = 3 * kOne;
    costs.stages.push_back(costs.stages[0]);
    costs.stages[1].r = 0;
    const Simulation before = Simulate(plan, costs);
    CHECK(before.makespan == 15 * kOne);
    CHECK(before.ranks[0].peak_bytes == 140);
    CHECK(HoistRecompute(plan, costs, std::nullopt) == plan);
    CHECK(HoistRecompute(plan, costs, 199) == plan);
    const Plan hoisted = HoistRecompute(plan, costs, 200);
    CHECK(Verify(hoisted).empty());
    CHECK(ToString(hoisted.programs[0][3]) == "R s0 m1");
    const Simulation after = Simulate(hoisted, costs);
    CHECK(after.makespan == 14 * kOne);
    CHECK(after.ranks[0].peak_bytes == 200);
  }

  TEST_CASE("recompute: for Megatron-LM each R is directly before its backward") {
    // Counts the R that stand elsewhere.
    const auto apart = [](const Plan& plan) {
      size_t count = 0;
      for (const Program& program : plan.programs) {
        for (size_t at = 0; at + 1 < program.size(); ++at) {
          if (program[at].op != Op::R) continue;
          const Instruction& next = program[at + 1];
          count += !HasBackward(next.op) || BackMicrobatch(next) != program[at].microbatch ||
                   BackStage(next) != program[at].stage;
        }
      }
      return count;
    };
    std::mt19937_64 random(7);
    size_t of_any = 0;
    for (int i = 0; i < 20; ++i) {
      const char* const schedule = i % 2 == 0 ? "1f1b" : "interleaved-1f1b";
      CostModel costs = CostsWith(100, 40, 10);
      costs.stages.resize(i % 2 == 0 ? 4 : 8, costs.stages[0]);
      for (StageCost& stage : costs.stages) {
        stage.f = static_cast<Time>(1 + random() % 4) * kOne;
        stage.b = stage.w = static_cast<Time>(1 + random() % 4) * kOne;
        stage.bw = stage.b + stage.w;
        stage.fb = stage.f + stage.bw;
      }
      Spec spec = MakeSpec(schedule, 4, 8, costs);
      spec.recompute.choice = Recompute::Choice::kFull;
      spec.memory_limit = 100000;
      of_any += apart(GeneratePlan(spec));
      spec.target = Target::kMegatron;
      CAPTURE(i);
      CHECK(apart(GeneratePlan(spec)) == 0);
    }
    CHECK(of_any > 0);
  }
}

TEST_SUITE("property") {
  TEST_CASE("recompute: every schedule with any stages is sound and holds what its spans say") {
    std::mt19937_64 random(6);
    const auto draw = [&](int64_t low, int64_t high) {
      return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
    };
    int recomputed = 0, moved = 0;
    for (Spec& spec : RandomSpecs(&random, 300, 6, 12)) {
      const Plan plain = GeneratePlan(spec);
      const int64_t stash = draw(0, 50), activation = stash + draw(1, 60);
      CostModel costs = spec.costs;
      costs.memory = MemoryCost{.activation_bytes = activation,
                                .w_stash_bytes = stash,
                                .input_bytes = draw(0, activation)};
      for (StageCost& cost : costs.stages) cost.r = draw(0, 2) == 0 ? -1 : draw(0, 30);
      const std::vector<int> stages = RandomStages(&random, plain.stages);
      Plan plan = InsertRecompute(plain, stages);
      if (draw(0, 1) == 0) {
        const int64_t limit = draw(1, 10 * activation);
        const Plan hoisted = HoistRecompute(plan, costs, limit);
        const Simulation before = Simulate(plan, costs), after = Simulate(hoisted, costs);
        CHECK(after.makespan <= before.makespan);
        for (size_t r = 0; r < before.ranks.size(); ++r) {
          CHECK(after.ranks[r].peak_bytes <= std::max(limit, before.ranks[r].peak_bytes));
        }
        moved += hoisted == plan ? 0 : 1;
        plan = hoisted;
      }
      CAPTURES(spec.schedule, WriteCosts(costs), stages);
      recomputed += stages.empty() ? 0 : 1;
      CHECK(FindingsText(plan) == "");
      CHECK(RunSymbolically(plan) == "");
      const Plan comm = Lower(plan, costs, {.target = Level::kComm});
      CHECK(RunSymbolically(comm) == "");
      const Simulation before = Simulate(plan, costs), after = Simulate(comm, costs);
      CHECK(after.makespan >= before.makespan);
      CHECK(after.timeline.ranks == FixpointTimes(comm, costs).ranks);
      const std::vector<int64_t> peaks =
          PeaksOf(comm, after.timeline, BytesOfCell(costs, 0, !stages.empty()));
      const std::vector<MemoryFigures> figures = MemoryOf(comm, costs);
      for (size_t r = 0; r < peaks.size(); ++r) {
        CHECK(after.ranks[r].peak_bytes == peaks[r]);
        CHECK(before.ranks[r].peak_bytes == peaks[r]);
        CHECK(figures[r].peak == peaks[r]);
      }
      // The plan itself is a schedule that fits what it holds.
      const int64_t most = *std::ranges::max_element(peaks);
      for (const std::optional<int64_t> limit : {std::optional<int64_t>(), std::optional(most)}) {
        const Bound bound = ProveBound(plan, costs, limit);
        CHECK(bound.value <= before.makespan);
        CHECK(bound.value >= ProveBound(plain, costs).value);
      }
    }
    CHECK(recomputed > 150);
    CHECK(moved > 20);
  }

  TEST_CASE(
      "recompute: a choice of stages fits where all do and each is needed on one's own rank") {
    std::mt19937_64 random(7);
    int fits = 0;
    for (Spec& spec : RandomSpecs(&random, 300, 6, 12)) {
      const Plan plan = GeneratePlan(spec);
      CostModel costs = spec.costs;
      const auto stash = static_cast<int64_t>(random() % 50);
      const int64_t activation = stash + 1 + static_cast<int64_t>(random() % 60);
      costs.memory = MemoryCost{.activation_bytes = activation,
                                .w_stash_bytes = stash,
                                .input_bytes = static_cast<int64_t>(random() % 20) % activation};
      std::vector<int> all(static_cast<size_t>(plan.stages));
      for (int s = 0; s < plan.stages; ++s) all[static_cast<size_t>(s)] = s;
      const auto peak = [&](const std::vector<int>& stages) {
        int64_t most = 0;
        const Simulation simulation = Simulate(InsertRecompute(plan, stages), costs);
        for (const RankFigures& rank : simulation.ranks) most = std::max(most, rank.peak_bytes);
        return most;
      };
      const int64_t least = peak(all), most = peak({});
      CHECK(least <= most);
      const int64_t limit =
          least + static_cast<int64_t>(random() % static_cast<uint64_t>(most - least + 1));
      std::vector<int> stages;
      for (const RecomputedStage& chosen : StagesToFit(plan, costs, limit)) {
        CHECK(chosen.extent.whole());
        stages.push_back(chosen.stage);
      }
      CAPTURES(spec.schedule, stages);
      CHECK(peak(stages) <= limit);
      fits += stages.empty() ? 0 : 1;
      // With one stage a rank none of them can be spared.
      if (plan.stages != plan.ranks || plan.routes.size() > 1) continue;
      for (size_t k = 0; k < stages.size(); ++k) {
        std::vector<int> fewer = stages;
        fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(k));
        CHECK(peak(fewer) > limit);
      }
    }
    CHECK(fits > 100);
  }

  TEST_CASE("recompute: components and buffers of recomputed chunks run at any pace") {
    std::mt19937_64 random(8);
    int runs = 0, equal = 0;
    for (Spec& spec : RandomSpecs(&random, 60, 4, 6)) {
      const Overlap overlap = random() % 2 == 0 ? Overlap::kAll : Overlap::kPublished;
      const bool opaque = random() % 4 == 0;
      const Plan plain = GeneratePlan(spec);
      CostModel costs = spec.costs;
      if (!opaque) costs = RandomMoeCosts(&random, 3, overlap);
      MemoryCost memory{.activation_bytes = 640, .w_stash_bytes = 200, .input_bytes = 64};
      for (size_t v = 0; v < kValueCount; ++v) {
        memory.values.push_back(static_cast<int64_t>(random() % 3) * 100);
      }
      costs.memory = memory;
      const std::vector<int> stages = RandomStages(&random, plain.stages);
      const Plan plan = InsertRecompute(plain, stages);
      CAPTURES(spec.schedule, stages, opaque);
      if (!opaque) {
        const Plan parts = Lower(plan, costs, {.target = Level::kComponent, .overlap = overlap});
        const Simulation simulation = Simulate(parts, costs);
        const std::vector<MemoryFigures> figures = MemoryOf(parts, costs);
        for (size_t r = 0; r < figures.size(); ++r) {
          CHECK(figures[r].peak >= simulation.ranks[r].peak_bytes);
          if (overlap == Overlap::kPublished) {
            CHECK(figures[r].peak == simulation.ranks[r].peak_bytes);
          }
        }
      }
      Plan lowered = Lower(plan, costs, {.target = Level::kBuffer, .overlap = overlap});
      CHECK(RunInLanes(lowered, {{Pace::kRandom, random()}, {Pace::kGreedyLane, random()}}) == "");
      const Simulation simulation = Simulate(lowered, costs);
      CHECK(simulation.makespan >= ProveBound(lowered, costs).value);
      // REDUCE has a lane of its own here, and need not keep the chunks after it waiting.
      if (!opaque && overlap == Overlap::kPublished &&
          costs.stage(0).reduce + costs.stage(0).step == 0) {
        const Simulation chunks = Simulate(Lower(plan, costs, {}), costs);
        CHECK(simulation.makespan == chunks.makespan);
        for (size_t r = 0; r < chunks.ranks.size(); ++r) {
          CHECK(simulation.ranks[r].peak_activations == chunks.ranks[r].peak_activations);
        }
        ++equal;
      }
      runs += stages.empty() ? 0 : 1;
    }
    CHECK(runs > 30);
    CHECK(equal > 5);
  }
}

}  // namespace
}  // namespace contraflow::recompute_test
