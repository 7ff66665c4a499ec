// Costs by layer that say what the parts of a layer hold: the file, and the memory and the time of
// plans that run one part again of unlike stages.

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "compiler/files/cost_io.h"
#include "compiler/files/plan_io.h"
#include "compiler/lower/lower.h"
#include "compiler/plan/layer_cost.h"
#include "compiler/plan/recompute_cost.h"
#include "compiler/simulate/simulate.h"
#include "compiler/verify/verify.h"
#include "schedules/compile.h"
#include "schedules/partition/stages.h"
#include "tests/support/failure.h"
#include "tests/support/support.h"

namespace contraflow::layer_values_test {
namespace {

constexpr const char* kEmbedding =
    R"({"name": "embedding", "f": 0.5, "b": 0, "w": 0.5, "activation_bytes": 100, "output_bytes": 7})";
constexpr const char* kDense =
    R"({"name": "dense", "repeat": 2, "output_bytes": 7,
        "dense": {"attn_f": 3, "mlp_f": 5, "mlp_b": 6, "attn_b": 4, "mlp_w": 5, "attn_w": 2},
        "values": {"input": 50, "attention": 90, "scores": 150, "gate": 210, "hidden": 110}})";
constexpr const char* kMoe =
    R"({"name": "moe", "repeat": 4, "output_bytes": 7, "activation_bytes": 1000,
        "w_stash_bytes": 300,
        "moe": {"attn_f": 2, "dispatch_f": 1, "mlp_f": 4, "combine_f": 1.5, "combine_b": 1,
                "mlp_b": 5, "dispatch_b": 1.5, "attn_b": 3, "mlp_w": 4, "attn_w": 2},
        "values": {"input": 55, "attention": 95, "scores": 155, "rows": 80, "gate": 310, "hidden": 160, "combined": 70}})";
constexpr const char* kValuesOfMoe =
    R"({"input": 55, "attention": 95, "scores": 155, "rows": 80, "gate": 310, "hidden": 160, "combined": 70})";
constexpr const char* kHead =
    R"({"name": "head", "f": 2, "b": 2, "w": 2, "activation_bytes": 400, "w_stash_bytes": 40})";

std::string File(const std::vector<std::string>& layers) {
  std::string text = R"({"unit": "ms", "comm": {"time": 0.1}, "layers": [)";
  for (size_t i = 0; i < layers.size(); ++i) text += (i == 0 ? "" : ",\n") + layers[i];
  return text + "]}";
}

CostModel Read(const std::string& text) { return ReadCosts(text, "c.json"); }

CostModel MixedCosts() { return Read(File({kEmbedding, kDense, kMoe, kHead})); }

std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

/// A stage by hand: what a cell holds, how much of that goes for R, and how long R takes.
struct ByHand {
  int64_t activation = 0, stash = 0, dropped = 0;
  Time again = 0;
};

/// The mixed model, a letter a layer.
ByHand StageOf(const std::string& letters, RecomputePart part) {
  ByHand sum;
  char before = ' ';
  for (const char letter : letters) {
    const bool moe = letter == 'm';
    const std::map<char, std::pair<int64_t, int64_t>> holds = {
        {'e', {100, 0}}, {'d', {610, 200}}, {'m', {1000, 300}}, {'h', {400, 40}}};
    sum.activation += holds.at(letter).first;
    sum.stash += holds.at(letter).second;
    if (moe || letter == 'd') {
      if (part == RecomputePart::kAttention) {
        sum.dropped += moe ? 95 + 155 : 90 + 150;
        sum.again += moe ? 2'000'000 : 3'000'000;
      } else {
        sum.dropped += moe ? 310 + 160 : 210 + 110;
        sum.again += moe ? 4'000'000 : 5'000'000;
        if (part == RecomputePart::kAllButAttention && moe) {
          sum.dropped += 80 + 70 + (before == 'm' ? 55 : 0);
          sum.again += 2'500'000;
        }
      }
    }
    before = letter;
  }
  return sum;
}

/// The most that each rank holds, walking its program.
std::vector<int64_t> PeaksByHand(const Plan& plan, const std::vector<ByHand>& stages) {
  std::vector<int64_t> peaks;
  for (const Program& program : plan.programs) {
    int64_t held = 0, peak = 0;
    for (const Instruction& i : program) {
      const ByHand& own = stages[static_cast<size_t>(i.stage)];
      const ByHand& back = stages[static_cast<size_t>(BackStage(i))];
      if (HasForward(i.op)) held += own.activation;
      if (i.op == Op::R) held += own.dropped;
      peak = std::max(peak, held);
      if (HasForward(i.op)) held -= own.dropped;
      if (HasBackward(i.op)) held -= back.activation - back.stash;
      if (HasWeight(i.op)) held -= back.stash;
    }
    peaks.push_back(peak);
  }
  return peaks;
}

std::vector<int64_t> Peaks(const Simulation& simulation) {
  std::vector<int64_t> peaks;
  for (const RankFigures& rank : simulation.ranks) peaks.push_back(rank.peak_bytes);
  return peaks;
}

TEST_SUITE("unit") {
  TEST_CASE("layer values: a file says them, and what a layer holds follows from them") {
    const CostModel costs = MixedCosts();
    CHECK(costs.layers[1].activation_bytes == 610);
    CHECK(costs.layers[1].w_stash_bytes == 200);
    CHECK(costs.layers[2].activation_bytes == 1000);
    CHECK(costs.layers[2].w_stash_bytes == 300);
    const ValueBytes& values = costs.layers[2].moe->ValuesOf(0);
    CHECK(values[static_cast<size_t>(Value::rows)] == 80);
    CHECK(Read(WriteCosts(costs)) == costs);
    CHECK(WriteCosts(Read(WriteCosts(costs))) == WriteCosts(costs));
  }

  TEST_CASE("layer values: what is wrong is named with its place") {
    const struct {
      std::vector<std::string> layers;
      std::string message;
    } rows[] = {
        {{kEmbedding, Replaced(kDense, "\"gate\": 210", "\"gate\": -1")},
         "c.json: /layers/1/values/gate: must be a number of bytes in 0..1099511627776, is -1"},
        {{Replaced(kDense, "scores", "score")},
         "c.json: /layers/0/values: unknown key \"score\" (did you mean \"scores\"?); known are: "
         "input, attention, scores, rows, gate, hidden, combined"},
        {{Replaced(kMoe, "\"rows\"", "\"drows\"")},
         "c.json: /layers/0/values: unknown key \"drows\" (did you mean \"rows\"?); known are: "
         "input, attention, scores, rows, gate, hidden, combined"},
        {{Replaced(kMoe, kValuesOfMoe, "{}")},
         "c.json: /layers/0/values: says nothing of any part; give one at least, or drop it"},
        {{kDense, Replaced(kMoe, "\"activation_bytes\": 1000", "\"activation_bytes\": 924")},
         "c.json: /layers/1/values: are parts of \"activation_bytes\", 924, and input, attention, "
         "scores, rows, gate, hidden and combined add up to 925"},
        {{Replaced(kHead, "\"f\": 2,", "\"values\": {\"gate\": 1}, \"f\": 2,")},
         "c.json: /layers/0/values: say what the parts of a layer hold, and this one has none; "
         "give \"moe\" or \"dense\" in place of \"f\", \"b\" and \"w\", or drop them"},
        {{kMoe, Replaced(kDense,
                         "\"values\": {\"input\": 50, \"attention\": 90, \"scores\": 150, "
                         "\"gate\": 210, \"hidden\": 110}",
                         "\"tied\": \"moe\"")},
         "c.json: /layers/1: has components and no \"values\", which other layers have; give them "
         "of each layer with components, or of none"},
    };
    for (const auto& row : rows) {
      CHECK(Failure([&] { Read(File(row.layers)); }) == row.message);
    }
  }

  TEST_CASE("layer values: what has no parts cannot run one again") {
    Spec spec = MakeSpec("1f1b", 4, 4, MixedCosts());
    spec.partition = ParsePartition("1,2,4,1");
    spec.recompute = ParseRecompute("attention:0,2");
    CHECK(Failure([&] { Compile(spec); }) ==
          "`recompute`: stage 0 has no layer with parts, \"moe\" or \"dense\", of which attention "
          "could run again; leave it out");
    spec.recompute = ParseRecompute("attention");
    CHECK(Failure([&] { Compile(spec, {.level = Level::kBuffer}); }) ==
          "`recompute` attention: `level` buffer has no values of a part that runs again; give "
          "`level` component, or `recompute` full");
    // The extent of every stage is of those that have some.
    const RecomputedCells cells(Compile(spec));
    CHECK_FALSE(cells.HasStage(0));
    CHECK(cells.HasStage(1));
    CHECK(cells.HasStage(2));
    CHECK_FALSE(cells.HasStage(3));
  }
}

TEST_SUITE("property") {
  TEST_CASE("layer values: plans hold and take what their unlike stages add up to") {
    const CostModel costs = MixedCosts();
    const char* const partitions[] = {"3,5", "5,3", "1,7", "7,1", "even", "auto"};
    for (const char* schedule :
         {"gpipe", "1f1b", "zb-1p", "interleaved-1f1b", "dualpipe-v", "chimera", "auto"}) {
      for (const char* partition : partitions) {
        const std::string name = schedule;
        const bool four = name == "interleaved-1f1b" || name == "dualpipe-v";
        if (four && std::string(partition).find(',') != std::string::npos) continue;
        for (const RecomputePart part : kParts) {
          if (part == RecomputePart::kFull) continue;
          CAPTURES(name, partition, std::string(Name(part)));
          Spec spec = MakeSpec(schedule, 2, 6, costs);
          spec.partition = ParsePartition(partition);
          spec.search.budget = 1'000'000;
          spec.recompute = {.choice = Recompute::Choice::kFull, .part = part};
          const Plan plan = Compile(spec, {.level = Level::kCompute});
          CHECK(Verify(plan).empty());
          std::string letters = "eddmmmmh";
          std::vector<ByHand> stages;
          for (const int size : plan.costs->partition) {
            stages.push_back(StageOf(letters.substr(0, static_cast<size_t>(size)), part));
            letters.erase(0, static_cast<size_t>(size));
          }
          for (size_t s = 0; s < stages.size(); ++s) {
            if (stages[s].dropped == 0) continue;
            CHECK(plan.costs->Duration(RecomputeOp(static_cast<int>(s), 0, part)) ==
                  stages[s].again);
          }
          const Simulation simulation = Simulate(plan, *plan.costs);
          CHECK(Peaks(simulation) == PeaksByHand(plan, stages));
          // The costs in the plan are enough for it, and those of the layers say the same.
          const Plan read = ReadPlan(WritePlan(plan), "p.json");
          CHECK(read == plan);
          const CostModel again = StagesForPlan(costs, read, Overlap::kAll);
          CHECK(Simulate(read, again).makespan == simulation.makespan);
          CHECK(Peaks(Simulate(read, again)) == Peaks(simulation));
          const Plan parts = Lower(plan, *plan.costs, {.target = Level::kComponent});
          CHECK(Verify(parts).empty());
          // There R may run concurrently with other chunks, and of each as much.
          const std::vector<CellBytes> cells =
              BytesOfCells(*parts.costs, RecomputedCells(parts), parts.stages);
          for (size_t s = 0; s < stages.size(); ++s) {
            CHECK(cells[s].activation == stages[s].activation);
            CHECK(cells[s].stash == stages[s].stash);
            CHECK(cells[s].input == stages[s].activation - stages[s].dropped);
          }
        }
      }
    }
  }

  TEST_CASE("layer values: a part is between nothing and everything in time and memory") {
    for (const char* schedule : {"1f1b", "zb-1p", "interleaved-1f1b"}) {
      for (const Level level : {Level::kComm, Level::kComponent}) {
        CAPTURE(schedule);
        Spec spec = MakeSpec(schedule, 2, 8, MixedCosts());
        spec.partition = ParsePartition("even");
        const auto made = [&](const char* recompute) {
          spec.recompute = ParseRecompute(recompute);
          const Plan plan = Compile(spec, {.level = level});
          const Simulation simulation = Simulate(plan, *plan.costs);
          return std::pair(simulation.makespan, std::ranges::max(Peaks(simulation)));
        };
        const auto none = made("none"), full = made("full");
        for (const char* part : {"attention", "experts", "all-but-attention"}) {
          CAPTURE(part);
          const auto some = made(part);
          CHECK(none.first < some.first);
          CHECK(some.first < full.first);
          CHECK(none.second > some.second);
          CHECK(some.second >= full.second);
        }
      }
    }
  }

  TEST_CASE("layer values: what fits without a part that runs again fits with it") {
    int fit = 0;
    for (const char* schedule : {"1f1b", "zb-1p", "interleaved-1f1b", "zb-v", "dualpipe"}) {
      for (const int ranks : {2, 4}) {
        for (int limit = 1500; limit < 7000; limit += 250) {
          CAPTURES(schedule, limit);
          Spec spec = MakeSpec(schedule, ranks, 8, MixedCosts());
          spec.memory_limit = limit;
          const auto refused = [&] { return Failure([&] { Compile(spec); }); };
          // The plan that holds least of all fits where any does.
          spec.recompute = ParseRecompute("full");
          const bool full = refused() == "accepted";
          spec.recompute = ParseRecompute("auto");
          if (full) CHECK(refused() == "accepted");
          spec.recompute = {};
          if (refused() != "accepted") continue;
          ++fit;
          for (const char* part : {"attention", "experts", "all-but-attention"}) {
            CAPTURE(part);
            spec.recompute = ParseRecompute(part);
            CHECK(refused() == "accepted");
          }
        }
      }
    }
    CHECK(fit > 20);
  }

  TEST_CASE("layer values: `auto` fits with parts, in less time than with whole stages") {
    CostModel silent = MixedCosts();
    for (LayerCost& layer : silent.layers) {
      if (layer.moe) layer.moe->values.clear();
    }
    Time with = 0, without = 0;
    for (const char* text : {"3400", "3600", "4000", "4400", "4800"}) {
      CAPTURE(text);
      const auto step = [&](const CostModel& costs) {
        Spec spec = MakeSpec("1f1b", 2, 8, costs);
        spec.partition = ParsePartition("5,3");
        spec.recompute = ParseRecompute("auto");
        spec.memory_limit = std::stoll(text);
        const Plan plan = Compile(spec);
        const Simulation simulation = Simulate(plan, *plan.costs);
        CHECK(std::ranges::max(Peaks(simulation)) <= *spec.memory_limit);
        return simulation.makespan;
      };
      const Time parts = step(MixedCosts()), stages = step(silent);
      CHECK(parts <= stages);
      with += parts;
      without += stages;
    }
    CHECK(with < without);
  }

  TEST_CASE(
      "layer values: at level buffer whole stages run again, of costs that know layers, too") {
    CostModel plain = MixedCosts();
    for (LayerCost& layer : plain.layers) {
      if (layer.moe) layer.moe->values.clear();
    }
    int chosen = 0;
    for (const char* schedule : {"1f1b", "zb-v", "dualpipe", "auto"}) {
      for (const CostModel& costs : {MixedCosts(), plain}) {
        CAPTURE(schedule);
        Spec spec = MakeSpec(schedule, 2, 6, costs);
        spec.search.budget = 1'000'000;
        spec.recompute = ParseRecompute("auto");
        for (const int64_t limit : {3000, 4500, 6000}) {
          spec.memory_limit = limit;
          std::optional<Plan> plan;
          const std::string why = Failure([&] { plan = Compile(spec, {.level = Level::kBuffer}); });
          if (!plan) {
            CHECK(Contains(why, "memory_limit"));
            continue;
          }
          CHECK(Verify(*plan).empty());
          const RecomputedCells cells(*plan);
          CHECK_FALSE(cells.in_layers());
          CHECK_FALSE(cells.in_parts());
          chosen += cells.any();
        }
        spec.memory_limit.reset();
        spec.recompute = ParseRecompute("layers=1");
        CHECK(Failure([&] { Compile(spec, {.level = Level::kBuffer}); }) ==
              "`recompute`: at `level` buffer a chunk has no values of some of its layers; give "
              "`level` comm, or `recompute` full");
      }
    }
    CHECK(chosen > 0);
  }

  TEST_CASE("layer values: each placement of `auto` finds a partition with parts") {
    for (const char* placement : {"linear", "v", "interleaved", "wave", "bidirectional", "any"}) {
      CAPTURE(placement);
      Spec spec = MakeSpec("auto", 2, 6, MixedCosts());
      spec.search.placement = ParsePlacement(placement);
      spec.search.budget = 1'000'000;
      spec.recompute = ParseRecompute("attention");
      spec.memory_limit = 6000;
      CHECK(Failure([&] { Compile(spec); }) == "accepted");
    }
  }

  TEST_CASE("layer values: plans that run no part again do not have them") {
    Spec spec = MakeSpec("1f1b", 2, 4, MixedCosts());
    spec.partition = ParsePartition("even");
    CHECK(!Contains(WritePlan(Compile(spec)), "values"));
    CHECK(!Contains(WritePlan(Compile(spec)), "\"moe\": ["));
    CHECK(!Contains(WritePlan(Compile(spec, {.level = Level::kComponent})), "values"));
  }
}

}  // namespace
}  // namespace contraflow::layer_values_test
