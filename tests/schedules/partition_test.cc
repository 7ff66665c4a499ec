// Layers that become stages: what stages cost and hold, which partition is chosen, and what `auto`
// makes of layers. More tiny cases against the exact search, and others: CONTRAFLOW_EXACT=2000
// CONTRAFLOW_SEED=2 contraflow_schedules_test -tc="no bound for any partition is above*".

#include "schedules/partition/partition.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <random>

#include "compiler/files/cost_io.h"
#include "compiler/plan/error.h"
#include "compiler/simulate/simulate.h"
#include "compiler/verify/verify.h"
#include "schedules/compare.h"
#include "schedules/compile.h"
#include "schedules/published/placement.h"
#include "schedules/registry.h"
#include "tests/support/exact_search.h"
#include "tests/support/failure.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"

namespace contraflow::partition_test {
namespace {

using Kind = PartitionChoice::Kind;

/// A model of `layers` layers of some kinds.
CostModel RandomLayers(std::mt19937_64* random, int layers, bool bytes) {
  const auto draw = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(*random);
  };
  CostModel costs;
  costs.comm.latency = draw(0, 3);
  int left = layers;
  while (left > 0) {
    LayerCost layer = {.name = "layer " + std::to_string(costs.layers.size()),
                       .repeat = draw(1, left),
                       .cost = {.f = draw(1, 9), .b = draw(1, 9), .w = draw(1, 9)}};
    layer.cost.bw = layer.cost.b + layer.cost.w;
    layer.cost.fb = layer.cost.f + layer.cost.bw;
    if (bytes) {
      layer.activation_bytes = draw(1, 9);
      layer.w_stash_bytes = draw(0, static_cast<int>(layer.activation_bytes));
      layer.parameter_bytes = draw(0, 9);
    }
    left -= layer.repeat;
    costs.layers.push_back(layer);
  }
  return costs;
}

/// Makes a layer one of components, each with some ticks.
void GiveComponents(std::mt19937_64* random, LayerCost* layer) {
  layer->moe.emplace().layers_per_stage = 1;
  for (const ComponentCost& component : kComponentCosts) {
    (*layer->moe.*component.times) = {1 + static_cast<Time>((*random)() % 4)};
  }
}

/// Every way to put `layers` layers in a row into so many stages.
std::vector<Partition> AllPartitions(int layers, int stages) {
  if (stages == 1) return {{layers}};
  std::vector<Partition> all;
  for (int first = 1; first <= layers - stages + 1; ++first) {
    for (Partition rest : AllPartitions(layers - first, stages - 1)) {
      rest.insert(rest.begin(), first);
      all.push_back(rest);
    }
  }
  return all;
}

int FromEnvironment(const char* name, int otherwise) {
  const char* const value = std::getenv(name);
  return value == nullptr ? otherwise : std::atoi(value);
}

Time StepOf(Spec spec, const Partition& partition) {
  spec.partition = PartitionChoice{.kind = Kind::kList, .layers = partition};
  const Plan plan = Compile(spec);
  return Simulate(plan, *plan.costs).makespan;
}

TEST_SUITE("property") {
  TEST_CASE("stages have all of the model, and plans of them are sound and fit") {
    std::mt19937_64 random(11);
    int made = 0;
    for (int round = 0; round < Draws(60); ++round) {
      const int ranks = 1 + static_cast<int>(random() % 4),
                layers = 8 + static_cast<int>(random() % 12);
      Spec spec = MakeSpec("", ranks, 2 * ranks + 2 * static_cast<int>(random() % 3),
                           RandomLayers(&random, layers, round % 2 == 0));
      spec.search.budget = 1'000'000;
      int64_t activations = 0, parameters = 0;
      Time f = 0;
      for (const LayerCost& layer : spec.costs.layers) {
        f += layer.repeat * layer.cost.f;
        activations += layer.repeat * layer.activation_bytes;
        parameters += layer.repeat * layer.parameter_bytes.value_or(0);
      }
      for (const Schedule* schedule : Schedules()) {
        spec.schedule = schedule->name;
        spec.partition.reset();
        if (random() % 3 == 0) spec.partition = PartitionChoice{.kind = Kind::kEven};
        if (!schedule->reject(spec).empty()) continue;
        CAPTURE(spec.schedule);
        CAPTURE(round);
        const Plan plan = Compile(spec);
        ++made;
        CHECK(Verify(plan).empty());
        const CostModel& costs = *plan.costs;
        CHECK(costs.layers.empty());
        REQUIRE(costs.partition.size() == static_cast<size_t>(plan.stages));
        CHECK(std::accumulate(costs.partition.begin(), costs.partition.end(), 0) == layers);
        Time sum = 0;
        for (int s = 0; s < plan.stages; ++s) sum += costs.stage(s).f;
        CHECK(sum == f);
        if (activations == 0) continue;
        CHECK(costs.memory->ActivationOfAll(plan.stages) == activations);
        const std::vector<int64_t>& bytes = costs.memory->parameter_bytes;
        CHECK(std::accumulate(bytes.begin(), bytes.end(), int64_t{0}) == parameters);
        // The costs that a plan brings can be read again.
        CHECK(Compile({.schedule = spec.schedule,
                       .ranks = ranks,
                       .microbatches = spec.microbatches,
                       .chunks = plan.stages / ranks,
                       .costs = costs,
                       .memory_limit = {},
                       .search = spec.search})
                  .stages == plan.stages);
      }
    }
    CHECK(made > Draws(300));
  }

  TEST_CASE("a partition is no worse than an even one, and mostly the best there is") {
    std::mt19937_64 random(5);
    int best_found = 0, cases = 0, better = 0;
    for (int round = 0; round < 40; ++round) {
      const int ranks = 2 + static_cast<int>(random() % 2);
      const int layers = 2 * ranks + static_cast<int>(random() % 4);
      for (const char* name : {"1f1b", "zb-1p", "interleaved-1f1b", "zb-v", "dualpipe"}) {
        Spec spec = MakeSpec(name, ranks, 2 * ranks, RandomLayers(&random, layers, false));
        const Schedule& schedule = FindSchedule(name);
        if (!schedule.reject(spec).empty()) continue;
        CAPTURE(name);
        CAPTURE(round);
        const Plan plan = Compile(spec);
        const Time found = Simulate(plan, *plan.costs).makespan;
        const int stages = schedule.stages(spec);
        const Time even = StepOf(spec, EvenPartition(layers, stages));
        Time least = found;
        for (const Partition& partition : AllPartitions(layers, stages)) {
          least = std::min(least, StepOf(spec, partition));
        }
        CHECK(found <= even);
        CHECK(StepOf(spec, plan.costs->partition) == found);
        better += found < even;
        best_found += found == least;
        ++cases;
      }
    }
    MESSAGE("the best partition in " << best_found << " of " << cases << " cases, better than an "
                                     << "even one in " << better);
    CHECK(best_found >= cases * 8 / 10);
    CHECK(better > cases / 6);
  }

  TEST_CASE("a balanced partition of one stage a rank is the best by what it looks at") {
    std::mt19937_64 random(3);
    for (int round = 0; round < 60; ++round) {
      const int ranks = 1 + static_cast<int>(random() % 4);
      const int layers = ranks + static_cast<int>(random() % 6),
                count = 1 + static_cast<int>(random() % 9);
      const CostModel costs = RandomLayers(&random, layers, false);
      const Plan frame = SingleRoutePlan(MakeSpec("", ranks, count, UniformCosts(1, 1, 1)),
                                         LinearPlacement(ranks));
      LayerStages stages(costs, Overlap::kAll);
      const auto value = [&](const Partition& partition) {
        Time most = 0;
        int first = 0;
        for (size_t s = 0; s < partition.size(); ++s) {
          const int last = first + partition[s];
          const Time before = stages.forward_before(first) + stages.backward_before(first) +
                              2 * static_cast<Time>(s) * costs.comm.latency;
          const StageCost& own = stages.CostOf(first, last);
          most = std::max(most, before + count * (own.f + own.bw));
          first = last;
        }
        return most;
      };
      Time least = std::numeric_limits<Time>::max();
      for (const Partition& partition : AllPartitions(layers, ranks)) {
        least = std::min(least, value(partition));
      }
      CHECK(value(StartingPartitions(stages, frame, costs).front()) == least);
    }
  }

  TEST_CASE("no bound for any partition is above the best of all partitions and orders") {
    std::mt19937_64 random(static_cast<uint64_t>(FromEnvironment("CONTRAFLOW_SEED", 77)));
    const int wanted = FromEnvironment("CONTRAFLOW_EXACT", Draws(500));
    int cases = 0, reached = 0, limited = 0, unlike = 0, deep = 0, components = 0;
    for (int round = 0; cases < wanted && round < 3 * wanted; ++round) {
      const int kind = static_cast<int>(random() % 5);
      const int ranks = kind == 4 ? 2 : 2 + static_cast<int>(random() % 2);
      const int chunks = kind < 2 ? 1 : kind == 4 ? 3 : 2;
      const int layers = ranks * chunks + static_cast<int>(random() % 3);
      const int few = kind == 4 ? 1 : 2;
      Spec spec = MakeSpec("", ranks, kind == 1 ? 2 : few + static_cast<int>(random() % 2),
                           RandomLayers(&random, layers, true));
      const bool moe = random() % 3 == 0;
      for (LayerCost& layer : spec.costs.layers) {
        if (moe && random() % 2 == 0) GiveComponents(&random, &layer);
      }
      for (LayerCost& layer : spec.costs.layers) {
        if (random() % 3 == 0) layer.cost.fb -= layer.cost.fb / 4;
        layer.cost.fb = std::max({layer.cost.fb, layer.cost.f, layer.cost.b, layer.cost.w});
        if (layer.moe) layer.cost = {};
      }
      if (kind == 0 && random() % 2 == 0) {
        spec.memory_limit = 10 + static_cast<int64_t>(random() % 40);
      }
      if (kind != 1 && random() % 3 == 0) {
        for (int r = 0; r < ranks; ++r) {
          const double speed = 0.5 + 0.3 * static_cast<double>(random() % 4);
          spec.costs.ranks.push_back({.speed = speed, .memory_bytes = {}});
        }
      }
      Plan frame = kind == 1   ? BidirectionalPlan(spec)
                   : kind == 2 ? SingleRoutePlan(spec, VPlacement(ranks))
                               : SingleRoutePlan(spec, LinearPlacement(ranks));
      if (kind >= 3) {
        std::vector<int> owners;
        for (int s = 0; s < chunks * ranks; ++s) owners.push_back(s % ranks);
        frame = SingleRoutePlan(spec, owners);
      }
      LayerStages stages(spec.costs, Overlap::kAll);
      std::optional<Time> best;
      bool all = true;
      for (const Partition& partition : AllPartitions(layers, ranks * chunks)) {
        const CostModel costs = OnRanks(stages.Make(partition), frame);
        if (spec.memory_limit && SerialPeak(frame, costs, false) > *spec.memory_limit) continue;
        const ExactResult exact = ExactMakespan(frame, costs, spec.memory_limit, 3'000);
        all = all && exact.finished;
        if (exact.makespan && (!best || *exact.makespan < *best)) best = exact.makespan;
      }
      if (!all || !best) continue;
      CAPTURE(round);
      CAPTURE(kind);
      const Time bound = BoundOfPartitions(spec, &stages, frame, *best + 1'000).value;
      CHECK(bound <= *best);
      CHECK(BoundOfPartitions(spec, &stages, frame, *best / 2).value <= *best / 2);
      ++cases;
      reached += bound == *best;
      limited += spec.memory_limit.has_value();
      unlike += !spec.costs.ranks.empty();
      deep += kind == 4;
      components += moe;
    }
    MESSAGE("the bound for any partition is the optimum of " << reached << " of " << cases);
    CHECK(cases == wanted);
    CHECK(deep > cases / 20);
    CHECK(components > cases / 5);
    CHECK(limited > cases / 50);
    CHECK(unlike > cases / 20);
    CHECK(reached > cases / 10);
  }

  TEST_CASE("no bound for any partition into pairs that save is above what a search finds") {
    std::mt19937_64 random(78);
    for (int round = 0; round < Draws(24); ++round) {
      const int ranks = 2 + round % 3, layers = 3 * ranks + static_cast<int>(random() % 3);
      Spec spec = MakeSpec("auto", ranks, 6 * ranks, RandomLayers(&random, layers, false));
      for (LayerCost& layer : spec.costs.layers) {
        StageCost& cost = layer.cost;
        if (round % 2 == 0) cost = {.f = 4, .b = 4, .w = 4, .bw = 8, .fb = 0};
        cost.fb = std::max(cost.f, cost.bw);
      }
      spec.search.placement = round % 4 < 2 ? Placement::kInterleaved : Placement::kV;
      spec.chunks = round % 4 < 2 ? 3 : 0;
      spec.search.budget = 20'000'000;
      CAPTURE(round);
      const Plan plan = Compile(spec);
      const Time found = Simulate(plan, *plan.costs).makespan;
      LayerStages stages(spec.costs, Overlap::kAll);
      CHECK(BoundOfPartitions(spec, &stages, plan, 2 * found).value <= found);
    }
  }

  TEST_CASE("auto is no longer than any published schedule of the same layers") {
    std::mt19937_64 random(21);
    for (int round = 0; round < Draws(8); ++round) {
      const int ranks = round == 0 ? 1 : 2 + 2 * static_cast<int>(random() % 2);
      CompareRequest request;
      request.spec = MakeSpec("", ranks, 2 * ranks, RandomLayers(&random, 4 * ranks, true));
      request.spec.costs.comm.bytes = 1;
      request.spec.search.placement = Placement::kAny;
      request.spec.search.budget = 20'000'000;
      const std::vector<CompareRow> rows = Compare(request);
      REQUIRE(rows.back().report);
      int64_t least = std::numeric_limits<int64_t>::max(), most = 0;
      for (const CompareRow& row : rows) {
        CAPTURE(row.schedule);
        CAPTURE(round);
        if (!row.report) continue;
        CHECK(rows.back().makespan() <= row.makespan());
        least = std::min(least, *row.total);
        most = std::max(most, *row.total);
      }
      // In devices that some fit, with and without recompute.
      for (const char* recompute : {"none", "auto"}) {
        request.spec.recompute = ParseRecompute(recompute);
        request.spec.device_memory = (least + most) / 2;
        const std::vector<CompareRow> limited = Compare(request);
        REQUIRE(limited.back().report);
        CHECK(limited.back().fits);
        for (const CompareRow& row : limited) {
          CAPTURE(row.schedule);
          CAPTURE(round);
          CAPTURE(recompute);
          if (row.report && row.fits) CHECK(limited.back().makespan() <= row.makespan());
        }
      }
    }
  }
}

TEST_SUITE("unit") {
  TEST_CASE("layers with components cost what they do interleaved") {
    CostModel costs;
    LayerCost moe = {.name = "moe", .repeat = 3, .cost = {}};
    moe.moe = MoeCost{.layers_per_stage = 1,
                      .attn_f = {4},
                      .dispatch_f = {3},
                      .mlp_f = {5},
                      .combine_f = {3},
                      .combine_b = {3},
                      .mlp_b = {5},
                      .dispatch_b = {3},
                      .attn_b = {4},
                      .mlp_w = {5},
                      .attn_w = {4}};
    LayerCost head = {.name = "head", .cost = {.f = 2, .b = 3, .w = 1, .bw = 4, .fb = 6}};
    costs.layers = {moe, head};
    LayerStages stages(costs, Overlap::kPublished);
    const StageCost one = stages.CostOf(0, 1), whole = stages.CostOf(0, 4);
    CHECK(one.f == 15);
    CHECK(one.bw == one.b + one.w);
    CHECK(one.fb < one.f + one.bw);
    CHECK(whole.f == 3 * 15 + 2);
    CHECK(whole.b == 3 * 15 + 3);
    CHECK(whole.w == 3 * 9 + 1);
    CHECK(whole.fb <= 3 * one.fb + 6);
    CHECK(whole.fb >= 3 * 27 + 6);  // the compute lane alone
    LayerStages overlapped(costs, Overlap::kAll);
    CHECK(overlapped.CostOf(0, 4).bw < whole.bw);
  }

  TEST_CASE("messages are as large as what a stage ends with, and a tied layer has its own copy") {
    CostModel costs = ReadCosts(R"({"unit": "us", "comm": {"bytes": 1, "bandwidth": 2},
      "layers": [
        {"name": "embedding", "f": 1, "b": 1, "w": 1, "tied": "head", "output_bytes": 40},
        {"name": "block", "repeat": 2, "f": 1, "b": 1, "w": 1, "output_bytes": 30, "parameter_bytes": 5},
        {"name": "head", "f": 1, "b": 1, "w": 1, "parameter_bytes": 70}]})",
                                "c.json");
    LayerStages stages(costs, Overlap::kAll);
    CostModel made = stages.Make({1, 3});
    CHECK(made.comm.bytes == 40);
    CHECK(made.comm.occupancy == 20'000);
    CHECK(made.memory->parameter_bytes == std::vector<int64_t>{70, 80});
    made = stages.Make({2, 2});
    CHECK(made.comm.bytes == 30);
    CHECK(made.memory->parameter_bytes == std::vector<int64_t>{75, 75});
    CHECK(stages.Make({4}).memory->parameter_bytes == std::vector<int64_t>{80});
    CHECK(ReadCosts(WriteCosts(costs), "again") == costs);
    CHECK(ReadCosts(WriteCosts(made), "again") == made);
  }

  TEST_CASE("partitions in words") {
    CHECK(ParsePartition("auto") == PartitionChoice{});
    CHECK(ParsePartition("even").kind == Kind::kEven);
    CHECK(ParsePartition("5,4x3,2").layers == Partition{5, 4, 4, 4, 2});
    for (const Partition& partition : {Partition{1}, {4, 4}, {4, 4, 4, 1}, {1, 2, 2, 2, 2, 3}}) {
      CHECK(ParsePartition(FormatPartition(partition)).layers == partition);
    }
    CHECK(FormatPartition({5, 4, 4, 4, 2}) == "5,4x3,2");
    const char* const kForm =
        "`partition`: must be auto, even or the layers of each stage as in \"4,4,5,3\" or "
        "\"4x15,1\", is \"";
    for (const char* text : {"", "4,", ",4", "4;4", "x3", "4x", "4x3x2", "-1", "4.5", "evenly"}) {
      CHECK(Failure([&] { ParsePartition(text); }) == kForm + std::string(text) + "\"");
    }
    CHECK(Failure([] { ParsePartition("0,4"); }) ==
          "`partition`: a number must be in 1..4096, is \"0,4\"");
    CHECK(Failure([] { ParsePartition("1x4096,1"); }) ==
          "`partition`: has more than 4096 stages, is \"1x4096,1\"");
  }

  TEST_CASE("what does not fit the model says so") {
    std::mt19937_64 random(1);
    Spec spec = MakeSpec("zb-v", 4, 8, RandomLayers(&random, 7, false));
    CHECK(Failure([&] { Compile(spec); }) ==
          "zb-v makes 8 stages, and the model has 7 layers; use fewer `ranks` or `chunks`");
    spec.schedule = "1f1b";
    spec.partition = ParsePartition("2,2,2,2");
    CHECK(Failure([&] { Compile(spec); }) ==
          "1f1b has a `partition` of 8 layers, and the model has 7");
    spec.partition = ParsePartition("3,4");
    CHECK(Failure([&] { Compile(spec); }) ==
          "1f1b makes 4 stages, `partition` is of 2; give one number of layers for each stage");
    spec.partition.reset();
    CHECK(Failure([&] { Compile(spec, {.level = Level::kComponent}); }) ==
          "level component needs the costs of the components of a layer; give costs with \"moe\", "
          "such as `costs` deepseek-v3-h800");
    spec.costs = UniformCosts(2, 2, 2);
    spec.partition = ParsePartition("1,1,1,1");
    CHECK(Failure([&] { Compile(spec); }) ==
          "`partition`: says how many layers each stage has, and these costs are of stages; give "
          "costs with \"layers\", or even");
    spec.partition = ParsePartition("even");
    spec.schedule = "zb-v";
    CHECK(Compile(spec).costs->stage(0).f == 1);
  }

  TEST_CASE("what no stages could do is an error for each schedule, whatever the partition") {
    std::mt19937_64 random(2);
    Spec spec = MakeSpec("", 3, 4, RandomLayers(&random, 8, false));
    spec.search.placement = Placement::kAny;
    spec.search.budget = 1'000'000;
    // Micro-batches that differ on an odd number of ranks have no two directions.
    spec.costs.microbatch_scale = {2, 1, 2, 1};
    for (const Schedule* schedule : Schedules()) {
      spec.schedule = schedule->name;
      CAPTURE(spec.schedule);
      if (schedule->reject(spec).empty()) CHECK(Verify(Compile(spec)).empty());
    }
    spec.schedule = "auto";
    spec.search.placement = Placement::kBidirectional;
    CHECK(Failure([&] { Compile(spec); }).find("needs an even number of ranks") !=
          std::string::npos);
    spec.search.placement = Placement::kAny;
    spec.costs.microbatch_scale = {1, 2};
    for (const Schedule* schedule : Schedules()) {
      spec.schedule = schedule->name;
      if (!schedule->reject(spec).empty()) continue;
      CHECK(Failure([&] { Compile(spec); }) ==
            "\"microbatch_scale\" has 2 entries, this plan has 4 micro-batches");
    }
  }

  TEST_CASE("limits below what some stages hold end in an error and in nothing else") {
    std::mt19937_64 random(31);
    int fitted = 0, refused = 0;
    for (int round = 0; round < Draws(40); ++round) {
      Spec spec = MakeSpec("", 2 + round % 3, 4, RandomLayers(&random, 12, true));
      spec.search.placement = Placement::kAny;
      spec.search.budget = 1'000'000;
      for (LayerCost& layer : spec.costs.layers) {
        if (random() % 3 == 0) layer.activation_bytes = layer.w_stash_bytes = 0;
        if (random() % 3 == 0) layer.activation_bytes += 50;
      }
      for (const Schedule* schedule : Schedules()) {
        spec.schedule = schedule->name;
        spec.memory_limit = 1 + static_cast<int64_t>(random() % 400);
        CAPTURE(spec.schedule);
        CAPTURE(round);
        try {
          const Plan plan = Compile(spec);
          for (const RankFigures& rank : Simulate(plan, *plan.costs).ranks) {
            CHECK(rank.peak_bytes <= *spec.memory_limit);
          }
          ++fitted;
        } catch (const Error&) {
          ++refused;
        }
      }
    }
    CHECK(fitted > Draws(50));
    CHECK(refused > Draws(50));
  }

  TEST_CASE("costs by layer take the stages of a plan that exists") {
    CostModel costs = UniformCosts(1, 1, 1);
    costs.stages.clear();
    const auto layer = [](const char* name, int repeat, Time f) {
      LayerCost cost;
      cost.name = name;
      cost.repeat = repeat;
      cost.cost = {.f = f, .b = f, .w = f, .bw = 2 * f, .fb = 3 * f};
      return cost;
    };
    costs.layers = {layer("embedding", 1, 1), layer("block", 4, 10), layer("head", 1, 5)};
    Spec spec = MakeSpec("1f1b", 2, 4, costs);
    spec.partition = {.kind = PartitionChoice::Kind::kList, .layers = {4, 2}};
    Plan plan = Compile(spec);
    CHECK(StagesForPlan(costs, plan, Overlap::kAll) == *plan.costs);
    CostModel unlike = costs;
    unlike.ranks = {{.speed = 1}, {.speed = 0.5}};
    spec.costs = unlike;
    plan = Compile(spec);
    CHECK(OnRanks(StagesForPlan(unlike, plan, Overlap::kAll), plan) == *plan.costs);
    // Of a plan that says nothing about layers.
    const Plan other = Compile(MakeSpec("1f1b", 2, 4, UniformCosts(1, 1, 1)));
    CostModel even = StagesForPlan(costs, other, Overlap::kAll);
    CHECK(even.partition == Partition{3, 3});
    CHECK(even.stages[1].f == 25);
    costs.layers[1].repeat = 3;
    CHECK(Failure([&] { StagesForPlan(costs, plan, Overlap::kAll); }) ==
          "the plan was made for 6 layers, and the costs have 5; give the costs of the model that "
          "the plan was compiled for");
    costs.layers.resize(1);
    CHECK(Failure([&] { StagesForPlan(costs, other, Overlap::kAll); }) ==
          "the plan has 2 stages, and the costs have 1 layer; give costs with at least one for "
          "each stage");
  }

  TEST_CASE("layers with components become stages alike for a plan of components") {
    CostModel costs = ReadCosts(R"({"unit": "us", "layers": [
      {"name": "embedding", "f": 2, "b": 0, "w": 4, "parameter_bytes": 100, "step": 8},
      {"name": "block", "repeat": 4, "parameter_bytes": 10, "output_bytes": 64, "step": 1,
       "moe": {"attn_f": 1, "dispatch_f": 1, "mlp_f": 1, "combine_f": 1, "combine_b": 1,
               "mlp_b": 1, "dispatch_b": 1, "attn_b": 1, "mlp_w": 1, "attn_w": 1}},
      {"name": "head", "f": 6, "b": 8, "w": 10, "parameter_bytes": 200}]})",
                                "c.json");
    const CostModel made = AlikeStages(costs, 2, Overlap::kAll);
    CHECK(made.layers.empty());
    CHECK(made.partition.empty());
    REQUIRE(made.moe);
    CHECK(made.moe->layers_per_stage == 2);
    CHECK(made.moe->attn_f == std::vector<Time>{1'000, 5'000});  // half of 2 + 6
    CHECK(made.moe->attn_b == std::vector<Time>{1'000, 5'000});
    CHECK(made.moe->attn_w == std::vector<Time>{1'000, 8'000});
    CHECK(made.moe->mlp_f == std::vector<Time>{1'000});
    REQUIRE(made.stages.size() == 1);
    CHECK(made.stages[0].f == 12'000);
    CHECK(made.stages[0].step == 10'000);
    CHECK(made.memory->parameter_bytes == std::vector<int64_t>{120, 220});
    const Plan plan = Compile(MakeSpec("zb-1p", 2, 4, made), {.level = Level::kComponent});
    CHECK(StagesForPlan(costs, plan, Overlap::kAll) == made);
    CHECK(Failure([&] { AlikeStages(costs, 3, Overlap::kAll); }) ==
          "a plan of components needs as many layers in each of the 3 stages, and the costs have "
          "4 layers with \"moe\"; compile to level comm, or for another number of stages");
    costs.layers[1].repeat = 8;
    CHECK(Failure([&] { StagesForPlan(costs, plan, Overlap::kAll); }) ==
          "the plan has components of 2 layers a stage, and the costs make it 4; give the costs of "
          "the model that the plan was compiled for");
    costs.ranks = {{.speed = 1}, {.speed = 0.5}};
    CHECK(Failure([&] { AlikeStages(costs, 2, Overlap::kAll); }) ==
          "a plan of components needs ranks alike, and the costs give some another \"speed\"; "
          "compile to level comm, or leave \"ranks\" out");
    costs.layers[1].moe.reset();
    CHECK(Failure([&] { AlikeStages(costs, 2, Overlap::kAll); }) ==
          "a plan of components needs layers with \"moe\", all alike, and others only before and "
          "behind them; compile to level comm, or give costs with \"moe\" alone");
  }

  TEST_CASE("stages of unlike layers get the components of their own") {
    const CostModel costs = ReadCosts(R"({"unit": "us", "layers": [
      {"name": "embedding", "f": 2, "b": 0, "w": 4, "parameter_bytes": 100, "tied": "head"},
      {"name": "dense", "dense": {"attn_f": 3, "mlp_f": 4, "mlp_b": 5, "attn_b": 6, "mlp_w": 7,
                                  "attn_w": 8}},
      {"name": "block", "repeat": 3, "parameter_bytes": 10, "activation_bytes": 7,
       "moe": {"attn_f": 1, "dispatch_f": 2, "mlp_f": 3, "combine_f": 4, "combine_b": 5,
               "mlp_b": 6, "dispatch_b": 7, "attn_b": 8, "mlp_w": 9, "attn_w": 10}},
      {"name": "head", "f": 6, "b": 8, "w": 10, "parameter_bytes": 200}]})",
                                      "c.json");
    CHECK(ReadCosts(WriteCosts(costs), "c.json") == costs);
    Spec spec = MakeSpec("dualpipe", 2, 4, costs);
    spec.partition = {.kind = PartitionChoice::Kind::kList, .layers = {3, 3}};
    const Plan plan = Compile(spec, {.level = Level::kComponent});
    REQUIRE(plan.stage_layers.size() == 2);
    CHECK(ToString(plan.stage_layers[0]) == "pdm");
    CHECK(ToString(plan.stage_layers[1]) == "mmp");
    REQUIRE(plan.costs->stage_moe.size() == 2);
    const MoeCost& first = plan.costs->stage_moe[0];
    CHECK(first.attn_f == std::vector<Time>{2'000, 3'000, 1'000});
    CHECK(first.mlp_w == std::vector<Time>{0, 7'000, 9'000});
    CHECK(first.combine_b == std::vector<Time>{0, 0, 5'000});
    CHECK(plan.costs->stages[0].f == 19'000);
    CHECK(StagesForPlan(costs, plan, Overlap::kAll) == *plan.costs);
    // Slower ranks take longer for components as well.
    spec.costs.ranks = {{.speed = 0.5}, {.speed = 1}};
    spec.schedule = "1f1b";
    CHECK(Compile(spec, {.level = Level::kComponent}).costs->stage_moe[0].attn_f ==
          std::vector<Time>{4'000, 6'000, 2'000});
    // A partition that is searched is never longer than an even one, nor `auto` than 1F1B.
    spec = MakeSpec("1f1b", 2, 4, costs);
    const auto step = [&] {
      const Plan made = Compile(spec, {.level = Level::kComponent});
      return Simulate(made, *made.costs).makespan;
    };
    const Time best = step();
    spec.partition = {.kind = PartitionChoice::Kind::kEven, .layers = {}};
    CHECK(best <= step());
    spec = MakeSpec("auto", 2, 4, costs);
    spec.search.placement = Placement::kLinear;
    spec.search.budget = 10'000'000;
    CHECK(step() <= best);
  }

  TEST_CASE("the ends of a model become part of the layers beside them") {
    CostModel costs = ReadCosts(R"({"unit": "us", "layers": [
      {"name": "embedding", "f": 2, "b": 1, "w": 4, "parameter_bytes": 100, "step": 3},
      {"name": "block", "repeat": 4, "parameter_bytes": 10, "activation_bytes": 7, "step": 1,
       "moe": {"attn_f": 1, "dispatch_f": 1, "mlp_f": 1, "combine_f": 1, "combine_b": 1,
               "mlp_b": 1, "dispatch_b": 1, "attn_b": 1, "mlp_w": 1, "attn_w": 1}},
      {"name": "head", "f": 6, "b": 8, "w": 10, "parameter_bytes": 200, "activation_bytes": 9}]})",
                                "c.json");
    const CostModel folded = FoldEnds(costs);
    REQUIRE(folded.layers.size() == 3);
    CHECK(folded.LayerCount() == 4);
    CHECK(folded.layers[0].repeat == 1);
    CHECK(folded.layers[1].repeat == 2);
    CHECK(folded.layers[0].moe->attn_f == std::vector<Time>{3'000});
    CHECK(folded.layers[0].moe->attn_w == std::vector<Time>{5'000});
    CHECK(folded.layers[0].parameter_bytes == 110);
    CHECK(folded.layers[0].cost.step == 4'000);
    CHECK(folded.layers[1] == LayerCost{.name = "block",
                                        .repeat = 2,
                                        .cost = {.step = 1'000},
                                        .moe = costs.layers[1].moe,
                                        .parameter_bytes = 10,
                                        .activation_bytes = 7});
    CHECK(folded.layers[2].moe->attn_b == std::vector<Time>{9'000});
    CHECK(folded.layers[2].activation_bytes == 16);
    Spec spec = MakeSpec("1f1b", 2, 4, folded);
    spec.partition = {.kind = PartitionChoice::Kind::kList, .layers = {1, 3}};
    const Plan plan = Compile(spec, {.level = Level::kComponent});
    CHECK(plan.AllMoe());
    CHECK(StagesForPlan(costs, plan, Overlap::kAll) == *plan.costs);
    costs.layers[1].moe.reset();
    CHECK(Failure([&] { FoldEnds(costs); }) ==
          "contraflow-run has layers with \"moe\" alone, and others only before and behind them; "
          "compile without `model`, or give costs with such layers");
  }

  TEST_CASE("a file of layers that does not hold says where") {
    const auto failure = [](const std::string& layers, const std::string& more = "") {
      return Failure(
          [&] { ReadCosts("{\"unit\": \"us\", \"layers\": " + layers + more + "}", "c.json"); });
    };
    CHECK(failure("[]") == "c.json: /layers: must have 1..4096 layers, has 0");
    CHECK(failure(R"([{"name": "a", "repeat": 4097, "f": 1, "b": 1, "w": 1}])") ==
          "c.json: /layers/0/repeat: must be a number of layers in 1..4096, is 4097");
    CHECK(failure(R"([{"name": "a", "repeat": 4096, "f": 1, "b": 1, "w": 1},
                      {"name": "b", "f": 1, "b": 1, "w": 1}])") ==
          "c.json: /layers: must have 1..4096 layers, has 4097");
    CHECK(failure(R"([{"name": "a", "f": 1, "b": 1}])") ==
          "c.json: /layers/0: the key \"w\" is missing; add it");
    CHECK(failure(R"([{"name": "a", "f": 1, "b": 1, "w": 1, "tied": "a"}])") ==
          "c.json: /layers/0/tied: must be the name of one other layer, is \"a\"");
    CHECK(
        failure(R"([{"name": "a", "f": 1, "b": 1, "w": 1, "w_stash_bytes": 1}])") ==
        "c.json: /layers/0: \"w_stash_bytes\" is part of \"activation_bytes\" and must be at most "
        "0, is 1");
    CHECK(failure(R"([{"name": "a", "f": 1, "b": 1, "w": 1}])", R"(, "moe": {})") ==
          "c.json: has \"layers\", which stages are made of, and \"moe\", which is about stages; "
          "keep one");
    CHECK(failure(R"([{"name": "a", "f": 1, "b": 1, "w": 1}])",
                  R"(, "memory": {"activation_bytes": 1})") ==
          "c.json: /memory: unknown key \"activation_bytes\"; known are: zero, workspace_bytes");
  }
}

}  // namespace
}  // namespace contraflow::partition_test
