// R of the first layers of a stage: what it takes and lets go follows from the layers, plans of it
// are sound, run right and come back from files, and what is damaged is caught.

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "compiler/bound/bound.h"
#include "compiler/files/cost_io.h"
#include "compiler/files/plan_io.h"
#include "compiler/lower/interleave.h"
#include "compiler/lower/lower.h"
#include "compiler/plan/recompute_cost.h"
#include "compiler/simulate/memory.h"
#include "compiler/simulate/simulate.h"
#include "compiler/verify/verify.h"
#include "schedules/published/placement.h"
#include "schedules/recompute/recompute.h"
#include "schedules/registry.h"
#include "tests/support/exact_instance.h"
#include "tests/support/exact_search.h"
#include "tests/support/failure.h"
#include "tests/support/lane_run.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"

namespace contraflow::recompute_layers_test {
namespace {

using Shares = std::vector<std::vector<LayerShare>>;

Instruction FirstLayers(int layers) { return RecomputeOp(0, 0, {RecomputePart::kFull, layers}); }

/// Costs of three MoE layers a stage.
CostModel LayerCosts(std::mt19937_64* random) {
  CostModel costs;
  const auto draw = [&] { return std::vector<Time>{1 + static_cast<Time>((*random)() % 9)}; };
  costs.moe.emplace().layers_per_stage = 3;
  for (const ComponentCost& component : kComponentCosts) (*costs.moe).*component.times = draw();
  DeriveChunkCosts(&costs, Overlap::kAll);
  costs.memory = MemoryCost{};
  costs.memory->values.assign(kValueCount, 64);
  costs.memory->activation_bytes = 7 * 64 * 3;
  costs.memory->w_stash_bytes = 3 * 64 * 3;
  return costs;
}

/// Any layers for any stages of a plan, none of all of them.
std::vector<RecomputedStage> DrawStages(std::mt19937_64* random, const Plan& plan, int layers) {
  std::vector<RecomputedStage> stages;
  for (int s = 0; s < plan.stages; ++s) {
    const auto k = static_cast<int>((*random)() % static_cast<uint64_t>(layers + 1));
    if (k > 0) stages.push_back({s, {RecomputePart::kFull, k == layers ? 0 : k}});
  }
  if (stages.empty()) stages.push_back({0, {RecomputePart::kFull, 1}});
  return stages;
}

/// The most that each rank holds at once, layer by layer, in the order of its program.
std::vector<int64_t> PeaksByLayer(const Plan& plan, const CostModel& costs) {
  std::vector<int64_t> peaks;
  for (const Program& program : plan.programs) {
    int64_t held = 0, peak = 0;
    const auto again = [&](int s, int m) {
      const auto at = std::ranges::find_if(program, [&](const Instruction& i) {
        return i.op == Op::R && i.stage == s && i.microbatch == m;
      });
      const auto layers = static_cast<int>(costs.shares[static_cast<size_t>(s)].size());
      return at == program.end() ? 0 : at->layers == 0 ? layers : int{at->layers};
    };
    // Bytes that these layers hold, but for the input of the stage if it stays.
    const auto layers = [&](int s, int count) {
      int64_t bytes = 0;
      for (int l = 0; l < count; ++l) {
        bytes += costs.shares[static_cast<size_t>(s)][static_cast<size_t>(l)].activation_bytes;
      }
      return std::max<int64_t>(0, bytes - costs.memory->input_bytes);
    };
    for (const Instruction& i : program) {
      if (HasForward(i.op)) held += costs.memory->activation(i.stage);
      if (i.op == Op::R) held += layers(i.stage, again(i.stage, i.microbatch));
      peak = std::max(peak, held);
      if (HasForward(i.op)) {
        if (const int k = again(i.stage, i.microbatch); k > 0) held -= layers(i.stage, k);
      }
      const int s = BackStage(i);
      if (HasBackward(i.op)) held -= costs.memory->activation(s) - costs.memory->stash(s);
      if (HasWeight(i.op)) held -= costs.memory->stash(s);
    }
    CHECK(held == 0);
    peaks.push_back(peak);
  }
  return peaks;
}

/// Stages of unlike layers: the bytes of a stage are those of its layers.
void DrawShares(std::mt19937_64* random, int stages, CostModel* costs) {
  costs->memory = MemoryCost{.input_bytes = 1};
  costs->shares.clear();
  costs->stages.resize(static_cast<size_t>(stages), costs->stages.front());
  for (int s = 0; s < stages; ++s) {
    std::vector<LayerShare>& shares = costs->shares.emplace_back(1 + (*random)() % 4);
    int64_t bytes = 0;
    for (LayerShare& layer : shares) {
      layer = {static_cast<int64_t>((*random)() % 4), 1 + static_cast<int64_t>((*random)() % 6)};
      bytes += layer.activation_bytes;
    }
    shares.front().f = 1;
    costs->memory->activation_of.push_back(bytes);
    costs->memory->stash_of.push_back(static_cast<int64_t>((*random)() % 3) % bytes);
  }
  costs->memory->activation_bytes = std::ranges::min(costs->memory->activation_of);
  costs->memory->w_stash_bytes = std::ranges::min(costs->memory->stash_of);
}

TEST_SUITE("unit") {
  TEST_CASE("layers: R of the first ones takes their time and lets go what they hold") {
    CostModel costs = UniformCosts(80, 90, 70);
    costs.memory = MemoryCost{.activation_bytes = 800, .w_stash_bytes = 80, .input_bytes = 50};
    costs.shares = {std::vector<LayerShare>(4)};
    for (int k = 1; k < 4; ++k) {
      CHECK(costs.Duration(FirstLayers(k)) == 20 * k);
      const CellBytes bytes = BytesOfCell(costs, 0, true, {RecomputePart::kFull, k});
      CHECK(bytes.activation == 800);
      CHECK(bytes.input == 800 - 200 * k + 50);
      CHECK(bytes.kept_stash == 80 - 20 * k);
    }
    CHECK(costs.Duration(FirstLayers(0)) == 80);
    CHECK(costs.Duration(FirstLayers(4)) == 80);
    CHECK(BytesOfCell(costs, 0, true).input == 50);
    CHECK(BytesOfCell(costs, 0, true, {RecomputePart::kFull, 4}).input == 50);
    // Unlike ones, and R that takes half as long as F.
    costs.shares = {{{10, 500}, {0, 100}, {70, 200}}};
    CHECK(costs.Duration(FirstLayers(1)) == 10);
    CHECK(BytesOfCell(costs, 0, true, {RecomputePart::kFull, 1}).input == 350);
    costs.stages[0].r = 40;
    CHECK(costs.Duration(FirstLayers(2)) == 5);
    // A layer that holds no more than the input lets nothing go.
    costs.shares = {{{1, 30}, {1, 770}}};
    CHECK(BytesOfCell(costs, 0, true, {RecomputePart::kFull, 1}).input == 800);
  }

  TEST_CASE("layers: R of components takes theirs") {
    CostModel costs;
    costs.moe = MoeCost{2, {3}, {5}, {7, 70}, {11}, {1}, {1}, {1}, {1}, {1}, {1}};
    DeriveChunkCosts(&costs, Overlap::kAll);
    costs.memory = MemoryCost{.activation_bytes = 1000, .w_stash_bytes = 100};
    costs.memory->values.assign(kValueCount, 0);
    costs.memory->values[static_cast<size_t>(Value::gate)] = 100;
    costs.memory->values[static_cast<size_t>(Value::input)] = 40;
    CHECK(costs.Duration(FirstLayers(1)) == 3 + 5 + 7 + 11);
    CHECK(BytesOfCell(costs, 0, true, {RecomputePart::kFull, 1}).input == 540);
    CHECK(costs.Duration(RecomputeOp(0, 0, {RecomputePart::kExperts, 1})) == 7);
    CHECK(BytesOfCell(costs, 0, true, {RecomputePart::kExperts, 1}).input == 900);
  }

  TEST_CASE("layers: spelling, and what is none") {
    const Instruction r = RecomputeOp(3, 7, {RecomputePart::kFull, 2});
    CHECK(ToString(r) == "R s3 m7 layers=2");
    CHECK(ParseInstruction("R s3 m7 layers=2") == r);
    CHECK(ToString(RecomputeOp(3, 7, {RecomputePart::kExperts, 1})) ==
          "R s3 m7 part=experts layers=1");
    CHECK(ToString(RecomputeExtent(RecomputePart::kExperts, 1)) == "experts of the first layer");
    for (const std::string text : {"R s0 m0 layers=0", "R s0 m0 layers=32768", "F s0 m0 layers=1",
                                   "R s0 m0 layers=1 layers=1", "ATTN_R s0 l0 m0 layers=1"}) {
      CAPTURE(text);
      CHECK(Failure([&] { ParseInstruction(text); }) != "accepted");
    }
    CHECK(Failure([] { ParseInstruction("R s0 m0 layer=1"); }) ==
          "instruction \"R s0 m0 layer=1\": unknown or misplaced key \"layer\" (did you mean "
          "\"layers\"?)");
  }

  TEST_CASE("layers: in cost files") {
    const auto read = [](const std::string& stage) {
      return ReadCosts(R"({"unit": "ms", "stage": )" + stage + "}", "c.json");
    };
    const CostModel even = read(R"({"f": 1, "b": 1, "w": 1, "layers": 4})");
    CHECK(even.LayersIn(7) == 4);
    CHECK(even.shares == Shares{std::vector<LayerShare>(4)});
    const CostModel unlike = read(
        R"({"f": 1, "b": 1, "w": 1, "layers": {"f": [0.25, 0.5], "activation_bytes": [7, 0]}})");
    CHECK(unlike.shares == Shares{{{250'000, 7}, {500'000, 0}}});
    for (const CostModel& costs : {even, unlike}) {
      CHECK(ReadCosts(WriteCosts(costs), "again.json") == costs);
    }
    const auto error = [&](const std::string& layers) {
      return Failure([&] { read(R"({"f": 1, "b": 1, "w": 1, "layers": )" + layers + "}"); });
    };
    CHECK(error("0") ==
          "c.json: /stage/layers: must be an object with lists of what each layer has, or a number "
          "of layers in 1..4096, is 0");
    CHECK(error("{}") ==
          "c.json: /stage/layers: give \"f\" or \"activation_bytes\", or a number of layers");
    CHECK(error(R"({"f": [1], "activation_bytes": [1, 2]})") ==
          "c.json: /stage/layers: \"f\" is of 1 layers and \"activation_bytes\" of 2; give one "
          "entry of both for each layer");
    CHECK(Failure([] {
            ReadCosts(R"({"unit": "ms", "stages": [{"f": 1, "b": 1, "w": 1, "layers": 2},
                                                   {"f": 1, "b": 1, "w": 1}]})",
                      "c.json");
          }) ==
          "c.json: /stages: some say their \"layers\" and some do not; give them of each stage or "
          "of none");
  }

  TEST_CASE("layers: what the costs do not say, and more than there are") {
    CostModel costs = UniformCosts(8, 9, 7);
    costs.memory = MemoryCost{.activation_bytes = 800, .w_stash_bytes = 80, .input_bytes = 50};
    const Plan plan = InsertRecompute(GeneratePlan(MakeSpec("1f1b", 2, 4, costs)), {1},
                                      {RecomputePart::kFull, 3});
    CHECK(Failure([&] { Simulate(plan, costs); }) ==
          "the costs do not say which layers stage 1 has, so that R of its first ones has no "
          "bytes; give \"layers\", of the stage their number or of the model their costs");
    costs.shares = {std::vector<LayerShare>(2)};
    Plan with = plan;
    with.costs = costs;
    REQUIRE(Verify(with).size() == 4);
    CHECK(Verify(with).front().message ==
          "R s1 m0 layers=3 runs more layers again than the stage has by the costs, 2; name at "
          "most so many");
    // A chunk holds all that it keeps.
    CostModel larger = costs;
    CHECK(InputBytes(larger, 0) == 50);
    larger.memory->input_bytes = 900;
    CHECK(InputBytes(larger, 0) == 800);
    // All layers, and no more.
    with.costs->shares = {std::vector<LayerShare>(3)};
    CHECK(Verify(with).empty());
    Spec spec = MakeSpec("1f1b", 2, 4, costs);
    spec.recompute = ParseRecompute("layers=3:1");
    CHECK(Failure([&] { GeneratePlan(spec); }) == "`recompute`: stage 1 has 2 layers, not 3");
    // The extent is of every stage as many as it has.
    spec.recompute = ParseRecompute("layers=3");
    CHECK(RecomputedCells(GeneratePlan(spec)).extent(0).whole());
    spec.recompute = ParseRecompute("layers=0,1");
    CHECK(RecomputedCells(GeneratePlan(spec)).extent(1) ==
          RecomputeExtent(RecomputePart::kFull, 1));
    CHECK_FALSE(RecomputedCells(GeneratePlan(spec)).HasStage(0));
    spec.ranks = 4;
    CHECK(Failure([&] { GeneratePlan(spec); }) ==
          "`recompute`: layers of 2 stages are given, and 1f1b makes 4; give a number for each, 0 "
          "for none");
    spec.ranks = 2;
    spec.costs.shares.clear();
    CHECK(Failure([&] { GeneratePlan(spec); }) ==
          "`recompute` layers: the costs do not say how many layers a stage has; give \"stage\": "
          "{.., \"layers\": N}, \"layers\" of the model, or components (\"moe\")");
    CHECK(Failure([] { ParseRecompute("layers=2,1:3"); }) ==
          "`recompute`: names stages and has a number for each stage; give one number, or no "
          "stages, is \"layers=2,1:3\"");
    CHECK(Failure([] { ParseRecompute("layers=x"); }) ==
          "`recompute`: must be layers=N, layers=N:STAGES or layers=N,N,.. with a number for each "
          "stage, each 0..4096, is \"layers=x\"");
    CHECK(ParseRecompute("layers=2:0,3-4") ==
          Recompute{.choice = Recompute::Choice::kStages, .stages = {0, 3, 4}, .layers = {2}});
  }
}

TEST_SUITE("property") {
  TEST_CASE("layers: plans are sound, run right, and come back from files") {
    std::mt19937_64 random(21);
    for (const std::string schedule : {"1f1b", "zb-1p", "zb-v", "dualpipe", "interleaved-1f1b"}) {
      const CostModel costs = LayerCosts(&random);
      const Plan order = GeneratePlan(MakeSpec(schedule, 2, 4, costs));
      const std::vector<RecomputedStage> stages = DrawStages(&random, order, 3);
      const Plan with = RecomputeStages(order, stages);
      CAPTURE(schedule);
      REQUIRE(FindingsText(with) == "");
      for (const Level level : {Level::kComm, Level::kComponent, Level::kBuffer}) {
        const Plan plan = Lower(with, costs, {.target = level});
        CHECK(FindingsText(plan) == "");
        CHECK(ReadPlan(WritePlan(plan), "plan.json").programs == plan.programs);
        CHECK(ReadPlan(WritePlanBinary(plan), "plan.cbor").programs == plan.programs);
        const RecomputedCells cells(plan);
        for (const RecomputedStage& chosen : stages) {
          CHECK(cells.extent(chosen.stage) == chosen.extent);
        }
        CHECK(RunAtAnyPace(plan, &random) == "");
        for (const Program& program : plan.programs) {
          for (const Instruction& i : program) {
            if (!IsRecompute(i.op) || i.op == Op::R) continue;
            CHECK(cells.extent(i.stage).Has(i.op, i.layer, plan.KindOf(i.stage, i.layer)));
          }
        }
      }
    }
  }

  TEST_CASE("layers: memory is that of the layers, and no less of them holds less") {
    std::mt19937_64 random(22);
    for (int round = 0; round < CasesToDraw(60); ++round) {
      const std::string schedule = std::vector<std::string>{"1f1b", "zb-1p", "zb-v", "gpipe",
                                                            "interleaved-1f1b"}[random() % 5];
      Spec spec =
          MakeSpec(schedule, 2 + static_cast<int>(random() % 3), 6, UniformCosts(20, 30, 10));
      const Plan order = GeneratePlan(spec);
      DrawShares(&random, order.stages, &spec.costs);
      std::vector<RecomputedStage> stages;
      for (int s = 0; s < order.stages; ++s) {
        const int layers = spec.costs.LayersIn(s);
        const auto k = static_cast<int>(random() % static_cast<uint64_t>(layers + 1));
        if (k > 0) stages.push_back({s, {RecomputePart::kFull, k == layers ? 0 : k}});
      }
      const Plan plan = HoistRecompute(RecomputeStages(order, stages), spec.costs, {});
      CAPTURE(schedule);
      const std::vector<int64_t> peaks = PeaksByLayer(plan, spec.costs);
      const std::vector<MemoryFigures> figures = MemoryOf(plan, spec.costs);
      const Simulation simulation = Simulate(plan, spec.costs);
      for (size_t r = 0; r < peaks.size(); ++r) {
        CHECK(figures[r].peak == peaks[r]);
        CHECK(simulation.ranks[r].peak_bytes == peaks[r]);
        const int64_t plain = MemoryOf(order, spec.costs)[r].peak;
        CHECK(peaks[r] <= plain);
      }
    }
  }

  TEST_CASE("layers: mutants of what runs again are rejected or run right") {
    std::mt19937_64 random(23);
    const auto below = [&](size_t size) { return static_cast<size_t>(random() % size); };
    std::vector<Plan> sound;
    for (const std::string schedule : {"1f1b", "zb-v", "dualpipe", "zb-1p"}) {
      for (int k = 1; k < 3; ++k) {
        const CostModel costs = LayerCosts(&random);
        const Plan order = InsertRecompute(GeneratePlan(MakeSpec(schedule, 2, 4, costs)), {0, 1},
                                           {RecomputePart::kFull, k});
        for (const Level level : {Level::kComm, Level::kComponent, Level::kBuffer}) {
          sound.push_back(Lower(order, costs, {.target = level}));
        }
      }
    }
    int made = 0, rejected = 0;
    while (made < CasesToDraw(1200)) {
      const Plan& before = sound[below(sound.size())];
      Plan plan = before;
      const size_t r = below(plan.programs.size());
      Program& program = plan.programs[r];
      std::vector<size_t> again;
      for (size_t k = 0; k < program.size(); ++k) {
        if (IsRecompute(program[k].op)) again.push_back(k);
      }
      const size_t at = again[below(again.size())];
      Instruction& i = program[at];
      const size_t kind = below(6);
      const bool whole = plan.level == Level::kComm;
      if (kind == 0) {
        // Too few, too many, or all; of components that of another layer.
        if (whole) {
          i.layers = static_cast<int16_t>(below(5));
        } else {
          i.layer = static_cast<int16_t>(below(3));
        }
      } else if (kind == 1) {
        i.stage = static_cast<int>(below(static_cast<size_t>(plan.stages)));
        i.microbatch = static_cast<int>(below(static_cast<size_t>(plan.microbatches)));
      } else if (kind == 2 && i.after_count > 0) {
        i.after[--i.after_count] = 0;
      } else if (kind == 3 && !plan.slots.empty()) {
        std::vector<Slot>& slots = plan.slots[r];
        slots[below(slots.size())].offset = 64 * static_cast<int64_t>(below(40));
      } else if (whole) {
        // R is missing, comes twice, or stands elsewhere.
        const Instruction moved = i;
        if (kind != 2) program.erase(program.begin() + static_cast<std::ptrdiff_t>(at));
        if (kind != 4) {
          program.insert(program.begin() + static_cast<std::ptrdiff_t>(below(program.size() + 1)),
                         moved);
        }
      } else if (plan.level == Level::kComponent && kind >= 4) {
        // A component of R is missing: nothing waits for it any more.
        program.erase(program.begin() + static_cast<std::ptrdiff_t>(at));
        for (Instruction& w : program) {
          int kept = 0;
          for (int a = 0; a < w.after_count; ++a) {
            const int on = w.after[static_cast<size_t>(a)];
            if (std::cmp_equal(on, at)) continue;
            w.after[static_cast<size_t>(kept++)] = std::cmp_greater(on, at) ? on - 1 : on;
          }
          while (w.after_count > kept) w.after[--w.after_count] = 0;
        }
      }
      if (plan == before) continue;
      ++made;
      CAPTURES(plan.schedule, Name(plan.level), kind);
      if (!Verify(plan).empty()) {
        ++rejected;
        continue;
      }
      CHECK(RunAtAnyPace(plan, &random) == "");
      if (whole) {
        // Every cell of a stage that runs again does so in as many layers.
        for (const Program& each : plan.programs) {
          for (const Instruction& other : each) {
            if (other.op != Op::R) continue;
            CHECK(ExtentOf(other) == RecomputedCells(plan).extent(other.stage));
            CHECK(other.layers <= 3);
          }
        }
      }
    }
    MESSAGE(rejected << " of " << made << " rejected");
    CHECK(2 * rejected > made);
  }

  TEST_CASE("layers: no bound is above the optimum with layers that run again") {
    ExactInstances instances(24);
    std::mt19937_64 random(24);
    int cases = 0, layered = 0, limited = 0;
    while (cases < CasesToDraw(150)) {
      ExactInstance instance = instances.Next();
      CostModel& costs = instance.costs;
      const Plan& frame = instance.plan;
      if (costs.stages.size() != 1 && std::cmp_not_equal(costs.stages.size(), frame.stages))
        continue;
      DrawShares(&random, frame.stages, &costs);
      Plan plan = SerialOrder(frame);
      std::vector<RecomputedStage> stages;
      for (int s = 0; s < frame.stages; ++s) {
        const int layers = costs.LayersIn(s);
        const auto k = static_cast<int>(random() % static_cast<uint64_t>(layers + 1));
        if (k > 0) stages.push_back({s, {RecomputePart::kFull, k == layers ? 0 : k}});
      }
      plan = RecomputeStages(plan, stages);
      std::optional<int64_t> limit;
      const int64_t least = std::ranges::max(MemoryOf(plan, costs), {}, &MemoryFigures::peak).peak;
      if (random() % 4 != 0) limit = least + static_cast<int64_t>(random() % 12);
      const ExactResult exact = ExactMakespan(plan, costs, limit, 4'000);
      if (!exact.finished) continue;
      REQUIRE(exact.makespan);
      CAPTURE(instance.Describe());
      CHECK(ProveBound(plan, costs, limit).value <= *exact.makespan);
      ++cases;
      layered += RecomputedCells(plan).in_layers();
      limited += limit.has_value();
    }
    CHECK(layered > cases / 4);
    CHECK(limited > cases / 4);
  }
}

}  // namespace
}  // namespace contraflow::recompute_layers_test
