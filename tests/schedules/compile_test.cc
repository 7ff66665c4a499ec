#include "schedules/compile.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <string>
#include <vector>

#include "compiler/bound/bound.h"
#include "compiler/files/cost_io.h"
#include "compiler/lower/interleave.h"
#include "compiler/plan/layer_cost.h"
#include "compiler/plan/spec.h"
#include "compiler/plan/value.h"
#include "compiler/simulate/memory.h"
#include "compiler/simulate/simulate.h"
#include "schedules/compare.h"
#include "schedules/registry.h"
#include "schedules/report.h"
#include "tests/support/failure.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"

namespace contraflow::compile_test {
namespace {

/// Layers with and without components, whose overlap bounds of cells as blocks do not know.
constexpr const char* kUnlikeLayers = R"({"unit": "us", "layers": [
{"name": "embed", "f": 1, "b": 0, "w": 3, "activation_bytes": 4, "w_stash_bytes": 1,
"parameter_bytes": 7, "gradient_bytes": 4, "optimizer_bytes": 6, "output_bytes": 3},
{"name": "x0", "moe": {"attn_f": 5, "dispatch_f": 3, "mlp_f": 3, "combine_f": 3, "combine_b": 2,
"mlp_b": 5, "dispatch_b": 4, "attn_b": 1, "mlp_w": 1, "attn_w": 1}, "repeat": 2,
"activation_bytes": 14, "w_stash_bytes": 5, "parameter_bytes": 4, "gradient_bytes": 8,
"optimizer_bytes": 7, "output_bytes": 2},
{"name": "x1", "moe": {"attn_f": 1, "dispatch_f": 1, "mlp_f": 5, "combine_f": 3, "combine_b": 5,
"mlp_b": 4, "dispatch_b": 3, "attn_b": 5, "mlp_w": 2, "attn_w": 2}, "repeat": 2,
"activation_bytes": 11, "w_stash_bytes": 4, "parameter_bytes": 8, "gradient_bytes": 7,
"optimizer_bytes": 15, "output_bytes": 3},
{"name": "head", "f": 6, "b": 5, "w": 2, "activation_bytes": 15, "w_stash_bytes": 14,
"parameter_bytes": 0, "gradient_bytes": 6, "optimizer_bytes": 16, "output_bytes": 3, "tied":
"embed"}
], "comm": {"time": 2}})";

Plan CompileWithin(Spec spec, const std::string& memory_limit) {
  spec.memory_limit = MemoryLimitOf(spec, memory_limit);
  return Compile(spec);
}

TEST_SUITE("unit") {
  TEST_CASE("a limit that nothing fits says what would fit and that does") {
    CostModel costs = UniformCosts(1, 1, 1);
    costs.memory =
        MemoryCost{.activation_bytes = 1000, .w_stash_bytes = 400, .parameter_bytes = {5000}};
    const Spec spec = MakeSpec("dualpipe", 4, 8, costs);
    CHECK(Failure([&] { CompileWithin(spec, "1x"); }) ==
          "dualpipe does not fit `memory_limit`: rank 0 holds 5,000 bytes during instruction 7 of "
          "its compute order (FB s0 m3 + s3 m5), the limit is 4,000 bytes (activations without "
          "stashes 3,000, stashes 2,000; also parameters 10,000); raise it to 5,000, or "
          "take auto, which fits");
    CHECK(Failure([&] { CompileWithin(spec, "900"); }) ==
          "dualpipe does not fit `memory_limit`: rank 0 holds 5,000 bytes during instruction 7 of "
          "its compute order (FB s0 m3 + s3 m5), the limit is 900 bytes (activations without "
          "stashes 3,000, stashes 2,000; also parameters 10,000); raise it to 5,000, or to "
          "1,000 and take auto, which then fits");
    Spec forgetful = spec;
    forgetful.schedule = "gpipe";
    forgetful.costs.memory->input_bytes = 10;
    forgetful.costs.memory->parameter_bytes.clear();
    CHECK(Failure([&] { CompileWithin(forgetful, "2x"); }) == "accepted");
    CHECK(Failure([&] { CompileWithin(forgetful, "1x"); }) ==
          "gpipe does not fit `memory_limit`: rank 0 holds 8,000 bytes during instruction 7 of its "
          "compute order (F s0 m7), the limit is 4,000 bytes (activations without stashes 4,800, "
          "stashes 3,200); raise it to 8,000, give `recompute` auto, or take auto, which fits");
    forgetful.recompute = {.choice = Recompute::Choice::kAuto};
    CHECK(Failure([&] { CompileWithin(forgetful, "1x"); }) == "accepted");
    CHECK_FALSE(Failure([&] { CompileWithin(spec, "4999"); }) == "accepted");
    CHECK(Failure([&] { CompileWithin(spec, "5000"); }) == "accepted");
  }

  TEST_CASE("the limit to raise it to is the least with what is recomputed") {
    Spec spec = MakeSpec("1f1b", 2, 4, {});
    spec.costs.moe = MoeCost{2, {3}, {5}, {7}, {11}, {1}, {1}, {1}, {1}, {1}, {1}};
    DeriveChunkCosts(&spec.costs, Overlap::kAll);
    spec.costs.memory = MemoryCost{.activation_bytes = 1000, .w_stash_bytes = 400};
    spec.costs.memory->values.assign(kValueCount, 64);
    spec.search = {.placement = Placement::kAny, .budget = 1'000'000};
    const auto number_behind = [](const std::string& text, const std::string& words) {
      std::string digits;
      const size_t at = text.find(words);
      REQUIRE(at != std::string::npos);
      for (size_t i = at + words.size(); i < text.size() && text[i] != ' ' && text[i] != ';'; ++i) {
        if (text[i] != ',') digits += text[i];
      }
      return std::stoll(digits);
    };
    for (const char* schedule : {"1f1b", "zb-1p", "auto"}) {
      for (const char* recompute : {"auto", "full", "attention", "experts:0", "layers=1", "0"}) {
        CAPTURES(schedule, recompute);
        spec.schedule = schedule;
        spec.recompute = ParseRecompute(recompute);
        spec.memory_limit = 1;
        const std::string why = Failure([&] { Compile(spec); });
        spec.memory_limit = number_behind(why, "raise it to ");
        CHECK(Failure([&] { Compile(spec); }) == "accepted");
        spec.memory_limit = *spec.memory_limit - 1;
        const std::string short_of_it = Failure([&] { Compile(spec); });
        CHECK(number_behind(short_of_it, "raise it to ") == *spec.memory_limit + 1);
        if (!Contains(why, " and take auto, which then fits")) continue;
        spec.schedule = "auto";
        spec.memory_limit = number_behind(why, ", or to ");
        CHECK(Failure([&] { Compile(spec); }) == "accepted");
      }
    }
  }

  TEST_CASE("what does not fit a device is not told to do what it does") {
    CostModel costs = UniformCosts(1, 1, 1);
    costs.memory =
        MemoryCost{.activation_bytes = 1000, .w_stash_bytes = 400, .parameter_bytes = {5000}};
    costs.memory->input_bytes = 10;
    int64_t device = 5100;
    const auto advice = [&](const char* schedule, const char* recompute) {
      Spec spec = MakeSpec(schedule, 4, 8, costs);
      spec.recompute = ParseRecompute(recompute);
      spec.device_memory = device;
      const std::string text = Failure([&] { Compile(spec); });
      return text.substr(text.rfind("; ") + 2);
    };
    const std::string always = "use more `ranks`, `zero` with `data_parallel`";
    CHECK(advice("1f1b", "none") == always + ", `recompute`, or another schedule");
    CHECK(advice("1f1b", "0") == always + ", `recompute` auto, or another schedule");
    CHECK(advice("1f1b", "auto") == always + ", or another schedule");
    const std::string for_auto = "use more `ranks`, or `zero` with `data_parallel`";
    CHECK(advice("auto", "none") == always + ", or `recompute`");
    CHECK(advice("auto", "0") == always + ", or `recompute` auto");
    CHECK(advice("auto", "auto") == for_auto);
    CHECK(advice("auto", "full") == for_auto);
    // Less than the parameters alone, which no recompute lowers.
    device = 4900;
    CHECK(advice("1f1b", "none") == always + ", or another schedule");
    costs = {};
    LayerCost& layer = costs.layers.emplace_back();
    layer.repeat = 4;
    layer.cost = {.f = 1, .b = 1, .w = 1, .bw = 2, .fb = 3};
    layer.activation_bytes = 1000;
    layer.parameter_bytes = 5000;
    CHECK(advice("auto", "none") == for_auto);
    device = 5200;
    CHECK(advice("auto", "none") == always + ", or `recompute`");
    // Ranks without a device of their own have room for anything.
    Spec single = MakeSpec("auto", 6, 8, costs);
    single.costs.layers[0].repeat = 6;
    single.costs.ranks.resize(6);
    single.costs.ranks[1].memory_bytes = 20'000;
    CHECK(Failure([&] { Compile(single); }) == "accepted");
  }

  TEST_CASE("a limit that no plan of layers meets is refused with what may help") {
    Spec spec = MakeSpec("auto", 2, 6, {});
    LayerCost& layer = spec.costs.layers.emplace_back();
    layer.repeat = 5;
    layer.cost = {.f = 1, .b = 1, .w = 1, .bw = 2, .fb = 3};
    layer.activation_bytes = 400;
    layer.output_bytes = 16;
    spec.costs.host = HostCost{.latency = 1};
    spec.memory_limit = 100;
    spec.search.budget = 1'000'000;
    for (const bool even : {false, true}) {
      for (const char* recompute : {"none", "auto", "full"}) {
        for (const auto offload :
             {Offload::Choice::kNone, Offload::Choice::kAuto, Offload::Choice::kFull}) {
          CAPTURE(even);
          CAPTURE(recompute);
          spec.partition.emplace();
          if (even) spec.partition->kind = PartitionChoice::Kind::kEven;
          spec.recompute = ParseRecompute(recompute);
          spec.offload.choice = offload;
          const std::string text = Failure([&] { Compile(spec); });
          CHECK(text.starts_with("auto does not fit `memory_limit`"));
          CHECK(Contains(text, "raise it"));
        }
      }
    }
  }

  TEST_CASE("chunk costs follow from components where there are none") {
    std::mt19937_64 random(5);
    Spec spec = MakeSpec("dualpipe", 4, 8, RandomMoeCosts(&random, 2, Overlap::kAll));
    Spec bare = spec;
    bare.costs.stages.clear();
    for (const Overlap overlap : {Overlap::kAll, Overlap::kPublished}) {
      spec.costs.stages.clear();
      DeriveChunkCosts(&spec.costs, overlap);
      bare.costs.derived.reset();
      const Plan plan = Compile(bare, {.level = Level::kComponent, .overlap = overlap});
      CHECK(plan == Compile(spec, {.level = Level::kComponent}));
      CHECK(plan.costs->derived == overlap);
    }
    const std::vector<CompareRow> rows =
        Compare({.spec = bare, .memory_limit = "2x", .no_auto = true});
    CHECK(rows.size() + 1 == Schedules().size());
    CHECK(rows.front().report->components);
    CHECK(rows.front().published->simulation.makespan >= rows.front().makespan());
  }

  TEST_CASE("memory limits: a number of activations is the same limit as its multiple of 1F1B") {
    Spec uniform = MakeSpec("", 4, 8, UniformCosts(1, 1, 1));
    uniform.search.budget = 5'000'000;
    Spec listed = uniform;
    listed.costs.stages.assign(8, StageCost{.f = 1, .b = 1, .w = 1, .bw = 2, .fb = 3});
    Spec layered = MakeSpec("", 4, 8, {});
    layered.search.budget = 5'000'000;
    layered.costs.layers.emplace_back().repeat = 16;
    layered.costs.layers[0].cost = {.f = 1, .b = 1, .w = 1, .bw = 2, .fb = 3};
    const std::pair<const Spec*, const char*> same[] = {
        {&uniform, "4"}, {&listed, "8"}, {&layered, "4"}};
    for (const auto& [spec, number] : same) {
      CAPTURE(number);
      const std::vector<CompareRow> by_number = Compare({.spec = *spec, .memory_limit = number});
      const std::vector<CompareRow> by_factor = Compare({.spec = *spec, .memory_limit = "1x"});
      REQUIRE(by_number.size() == by_factor.size());
      for (size_t i = 0; i < by_number.size(); ++i) {
        CAPTURE(by_number[i].schedule);
        CHECK(by_number[i].rejected == by_factor[i].rejected);
        if (!by_number[i].report || !by_factor[i].report) continue;
        CHECK(by_number[i].makespan() == by_factor[i].makespan());
        const int64_t most = int64_t{by_number[i].stages};
        CHECK(by_number[i].report->peak_activations() <= most);
      }
      const auto row = [&](std::string_view name) {
        return std::ranges::find(by_number, name, &CompareRow::schedule);
      };
      for (const char* name : {"zb-v", "v-half", "v-min", "auto"}) CHECK(row(name)->report);
    }
    // The error names the limit in the activations that were asked for.
    Spec v = uniform;
    v.schedule = "zb-v";
    v.partition = PartitionChoice();
    v.memory_limit = MemoryLimitOf(v, "3");
    CHECK(*v.memory_limit == 6);
    const std::string text = Failure([&] { Compile(v); });
    CHECK(Contains(text,
                   "the limit is 6 activations of its stages, 2 for each of `memory_limit`; raise "
                   "`memory_limit` to 4, or take auto, which fits"));
    Spec merged = listed;
    merged.schedule = "1f1b";
    merged.partition = PartitionChoice();
    CHECK(MemoryLimitOf(merged, "5") == 2);
    CHECK(Failure([&] { MemoryLimitOf(merged, "1"); }) ==
          "`memory_limit`: has no room for one activation of a stage of 1f1b, which is 2 of those "
          "that the costs list; raise it to 2");
  }

  TEST_CASE("a multiple of 1F1B is rounded once, by the stages of each placement") {
    const std::pair<Placement, int> chunks[] = {
        {Placement::kLinear, 1}, {Placement::kV, 2}, {Placement::kInterleaved, 3}};
    for (const bool layered : {false, true}) {
      for (const int ranks : {2, 3, 5}) {
        for (const int percent : {50, 58, 90, 123}) {
          for (const auto& [placement, each] : chunks) {
            CAPTURE(layered);
            CAPTURE(ranks);
            CAPTURE(percent);
            CAPTURE(Name(placement));
            Spec spec = MakeSpec("auto", ranks, 2 * ranks, UniformCosts(1, 1, 1));
            if (layered) {
              spec.costs = {};
              spec.costs.layers.emplace_back().repeat = 6 * ranks;
              spec.costs.layers[0].cost = {.f = 1, .b = 1, .w = 1, .bw = 2, .fb = 3};
            }
            spec.search.budget = 1'000'000;
            spec.search.placement = placement;
            spec.chunks = placement == Placement::kInterleaved ? each : 0;
            const int digits = percent % 100;
            SetMemoryLimit(std::to_string(percent / 100) + (digits < 10 ? ".0" : ".") +
                               std::to_string(digits) + "x",
                           0, &spec);
            CHECK(Compile(spec).provenance->memory_limit == percent * ranks * each / 100);
          }
        }
      }
    }
  }

  TEST_CASE("a multiple may be less than one activation of a rank where copies wait on the host") {
    Spec spec = MakeSpec("auto", 3, 6, UniformCosts(1, 1, 1));
    spec.costs.host = HostCost{.latency = 1};
    spec.search.budget = 1'000'000;
    spec.search.placement = Placement::kV;
    spec.offload.choice = Offload::Choice::kAuto;
    SetMemoryLimit("0.2x", 0, &spec);
    CHECK(Compile(spec).provenance->memory_limit == 1);
    spec.offload.choice = Offload::Choice::kNone;
    CHECK(Contains(Failure([&] { Compile(spec); }), "raise it to 1"));
    spec.recompute.choice = Recompute::Choice::kAuto;
    CHECK(Contains(Failure([&] { Compile(spec); }), "raise it to 1"));
    SetMemoryLimit("0.01x", 0, &spec);
    CHECK(Failure([&] { Compile(spec); }) ==
          "auto cannot run: `memory_limit` has no room for one activation of a stage; raise it to "
          "1");
  }

  TEST_CASE("a search reports how far it is and ends when it is told to") {
    Spec spec = MakeSpec("auto", 4, 8, UniformCosts(1, 1, 1));
    int reports = 0;
    std::atomic<bool> stop{false};
    const auto report = [&](const SearchState&) {
      ++reports;
      stop = true;
    };
    const Plan plan = Compile(spec, {.control = {.stop = &stop, .report = report}});
    CHECK(reports > 0);
    CHECK(plan.provenance->interrupted);
    CHECK(Verify(plan).empty());
    // The last report says how much more than the budget the least took.
    double spent = 0;
    for (const int64_t budget : {1'000, 100'000'000}) {
      spec = MakeSpec("auto", 8, 32, UniformCosts(10, 13, 7, 1));
      spec.search.budget = budget;
      spec.memory_limit = 5;
      Compile(spec,
              {.control = {.report = [&](const SearchState& state) { spent = state.spent; }}});
      CAPTURES(budget, spent);
      CHECK((spent > 1.5) == (budget == 1'000));
    }
  }
}

TEST_SUITE("property") {
  TEST_CASE("the figures in the provenance of a plan are those of its level") {
    for (const Level level : {Level::kCompute, Level::kComm, Level::kComponent}) {
      Spec spec = MakeSpec("auto", 4, 4, ReadCosts(kUnlikeLayers, "costs.json"));
      spec.device_memory = 104;
      spec.search.budget = 10'000'000;
      const Plan plan = Compile(spec, {.level = level});
      const Provenance& provenance = plan.provenance.value();
      const Simulation simulation = Simulate(plan, *plan.costs);
      CAPTURE(std::string(Name(level)));
      CHECK(provenance.makespan == simulation.makespan);
      CHECK(provenance.bound <= simulation.makespan);
      if (level != Level::kComponent) continue;
      CHECK(plan.layers > 0);
      CHECK(provenance.bound == ProveBound(plan, *plan.costs, provenance.memory_limit).value);
      CHECK_FALSE(MakeReport(plan, *plan.costs).any_partition);
    }
    // So is the optimizer's part.
    Spec spec = MakeSpec("auto", 2, 4, UniformCosts(4, 4, 4));
    spec.costs.stages.front().step = 7;
    spec.search.budget = 1'000'000;
    const Plan plan = Compile(spec);
    CHECK(plan.provenance->makespan == Simulate(plan, *plan.costs).makespan);
  }

  TEST_CASE("what is searched is never longer than dualpipe and dualpipe-v in their memory") {
    std::mt19937_64 random(67);
    int compared = 0, shorter = 0;
    for (int round = 0; round < CasesToDraw(24); ++round) {
      const bool v = round % 2 == 1;
      const Overlap overlap = round / 2 % 2 == 0 ? Overlap::kAll : Overlap::kPublished;
      const int ranks = v ? 2 + static_cast<int>(random() % 3) : 4;
      const int microbatches = 2 * ranks + 2 * static_cast<int>(random() % 4);
      Spec spec = MakeSpec(v ? "dualpipe-v" : "dualpipe", ranks, microbatches,
                           RandomMoeCosts(&random, 2, overlap));
      const int most = FindSchedule(spec.schedule).peak_activations(spec, 0);
      Spec searched = spec;
      searched.schedule = "auto";
      searched.chunks = v ? 2 : 0;
      searched.search.placement = v ? Placement::kV : Placement::kBidirectional;
      searched.search.budget = 20'000'000;
      for (const Level level : {Level::kComm, Level::kComponent}) {
        const CompileOptions options = {.level = level, .overlap = overlap};
        spec.memory_limit = searched.memory_limit = most;
        const Plan published = Compile(spec, options), found = Compile(searched, options);
        CAPTURES(round, Name(level));
        CHECK(found.stages == published.stages);
        const Simulation theirs = Simulate(published, spec.costs);
        const Simulation ours = Simulate(found, *found.costs);
        CHECK(ours.makespan <= theirs.makespan);
        for (const RankFigures& rank : ours.ranks) CHECK(rank.peak_activations <= most);
        shorter += ours.makespan < theirs.makespan;
        ++compared;
      }
    }
    MESSAGE(shorter << " of " << compared << " shorter");
    CHECK(shorter > compared / 2);
  }

  TEST_CASE("overlap keeps to the memory limit that the order itself fits") {
    std::mt19937_64 random(63);
    for (Spec& spec : RandomSpecs(&random, 40, 5, 10)) {
      CAPTURE(spec.schedule);
      spec.costs = RandomMoeCosts(&random, 2, Overlap::kAll);
      spec.costs.memory = MemoryCost{.activation_bytes = 100, .w_stash_bytes = 30};
      const Plan order = GeneratePlan(spec);
      int64_t least = 0;
      for (const auto& figures : MemoryOf(order, spec.costs)) {
        least = std::max(least, figures.peak);
      }
      spec.memory_limit = least;
      const Plan plan = Compile(spec, {.level = Level::kComponent});
      for (const RankFigures& figures : Simulate(plan, spec.costs).ranks) {
        CHECK(figures.peak_bytes <= least);
      }
      for (const MemoryFigures& figures : MemoryOf(plan, spec.costs)) CHECK(figures.peak <= least);
    }
  }
}

}  // namespace
}  // namespace contraflow::compile_test
