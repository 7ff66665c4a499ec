// Which partition is chosen of a model's layers, and what `auto` makes of them.

#include "schedules/partition/partition.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <random>
#include <utility>

#include "compiler/plan/error.h"
#include "compiler/plan/layer_cost.h"
#include "compiler/simulate/memory.h"
#include "compiler/simulate/simulate.h"
#include "compiler/verify/verify.h"
#include "schedules/compare.h"
#include "schedules/compile.h"
#include "schedules/published/placement.h"
#include "schedules/registry.h"
#include "schedules/report.h"
#include "tests/support/failure.h"
#include "tests/support/random_layers.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"

namespace contraflow::partition_test {
namespace {

using Kind = PartitionChoice::Kind;

Time StepOf(Spec spec, const Partition& partition) {
  spec.partition = PartitionChoice{.kind = Kind::kList, .layers = partition};
  const Plan plan = Compile(spec);
  return Simulate(plan, *plan.costs).makespan;
}

/// Blocks whose activations fill the first rank, and a head.
CostModel LayersOfOneKind(int blocks) {
  CostModel costs = UniformCosts(1, 1, 1);
  costs.stages.clear();
  LayerCost block;
  block.repeat = blocks;
  block.cost = {.f = 40, .b = 40, .w = 40, .bw = 80, .fb = 120};
  block.activation_bytes = 1000;
  block.parameter_bytes = 100;
  LayerCost head = block;
  head.repeat = 1;
  head.activation_bytes = 10;
  costs.layers = {block, head};
  return costs;
}

int64_t HeldByFullest(const Plan& plan) {
  int64_t most = 0;
  for (const MemoryFigures& rank : MemoryOf(plan, *plan.costs)) most = std::max(most, rank.total());
  return most;
}

TEST_SUITE("unit") {
  TEST_CASE("1x is what 1F1B's fullest rank holds, for limits, rows and reports alike") {
    const Spec spec = MakeSpec("", 8, 16, LayersOfOneKind(44));
    CompareRequest request;
    request.spec = spec;
    request.schedules = {"1f1b", "zb-1p", "zb-v", "v-half"};
    request.assumed_limit = true;
    request.memory_limit = "1x";
    request.keep_plans = true;
    const double held = HeldBy1F1B(spec);
    int fit = 0, over = 0;
    for (const CompareRow& row : Compare(request)) {
      if (!row.report) continue;
      CAPTURE(row.schedule);
      CHECK(row.memory * held == doctest::Approx(static_cast<double>(row.report->peak_bytes())));
      Spec one = spec;
      one.schedule = row.schedule;
      CHECK(MemoryLimitOf(one, "1x") == static_cast<int64_t>(held));
      CHECK(MemoryLimitOf(one, "0.5x", held) == static_cast<int64_t>(held / 2));
      if (row.schedule == "1f1b") {
        CHECK(row.memory == 1);
        CHECK(MemoryOf1F1B(*row.plan, *row.plan->costs, row.report->simulation) == 1);
      }
      ++(row.fits ? fit : over);
      one.memory_limit = MemoryLimitOf(one, "1x");
      if (!row.fits) continue;
      CHECK(Failure([&] { Compile(one); }) == "accepted");
    }
    CHECK(fit >= 2);
    CHECK(over >= 1);
  }

  TEST_CASE("a schedule that fits a limit only with a much longer step is rejected") {
    CompareRequest request;
    request.spec = MakeSpec("", 8, 16, UniformCosts(2, 2, 1));
    request.schedules = {"zb-2p"};
    request.memory_limit = "6";
    const std::vector<CompareRow> rows = Compare(request);
    REQUIRE(rows.size() == 1);
    CHECK(rows[0].rejected ==
          "does not fit `memory_limit`: within it the step takes 126.60 % longer; raise it, or "
          "take auto");
    CHECK_FALSE(rows[0].report);
    request.memory_limit = "2x";
    CHECK(Compare(request)[0].rejected.empty());
  }

  TEST_CASE("of partitions within 1 % of the shortest step the one that holds least is taken") {
    int lighter = 0, saved = 0;
    for (const int microbatches : {8, 16, 32}) {
      for (const char* name : {"1f1b", "zb-1p"}) {
        CAPTURES(name, microbatches);
        Spec spec = MakeSpec(name, 8, microbatches, LayersOfOneKind(80));
        spec.partition = PartitionChoice{.longer = 1};
        const Plan shortest = Compile(spec);
        spec.partition.reset();
        const Plan chosen = Compile(spec);
        const auto step = [](const Plan& of) {
          return static_cast<double>(Simulate(of, *of.costs).makespan);
        };
        CHECK(step(chosen) <= 1.01 * step(shortest));
        CHECK(HeldByFullest(chosen) <= HeldByFullest(shortest));
        saved += HeldByFullest(chosen) < HeldByFullest(shortest) ? 1 : 0;
        if (const std::optional<Plan> other = LighterPlan(spec, chosen, {})) {
          CHECK(step(*other) <= 1.05 * step(chosen));
          CHECK(HeldByFullest(*other) * 10 < HeldByFullest(chosen) * 9);
          CHECK(StepOf(spec, other->costs->partition) == Simulate(*other, *other->costs).makespan);
          ++lighter;
        }
        // A partition that was asked for is taken as it is.
        spec.partition = PartitionChoice{.kind = Kind::kEven};
        CHECK_FALSE(LighterPlan(spec, Compile(spec), {}));
      }
    }
    CHECK(saved > 0);
    CHECK(lighter > 0);
  }

  TEST_CASE("a schedule that fits its device only with a far longer step is shown as it is") {
    CompareRequest request;
    request.spec = MakeSpec("", 4, 16, LayersOfOneKind(43));
    request.no_auto = true;
    const std::vector<CompareRow> any = Compare(request);
    int squeezed = 0, fit = 0;
    for (const int64_t device : {24'000, 36'000, 50'000}) {
      request.spec.device_memory = device;
      const std::vector<CompareRow> rows = Compare(request);
      for (size_t i = 0; i < rows.size(); ++i) {
        if (!rows[i].report) continue;
        CAPTURE(rows[i].schedule);
        CHECK(rows[i].fits == (*rows[i].total <= device));
        CHECK(rows[i].makespan() * 20 <= any[i].makespan() * 21);
        if (!rows[i].fits) CHECK(rows[i].makespan() == any[i].makespan());
        (rows[i].fits ? fit : squeezed)++;
      }
    }
    CHECK(squeezed > 5);
    CHECK(fit > 5);
  }
}

TEST_SUITE("property") {
  TEST_CASE("stages have all of the model, and plans of them are sound and fit") {
    std::mt19937_64 random(11);
    int made = 0;
    for (int round = 0; round < CasesToDraw(60); ++round) {
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
        CAPTURES(spec.schedule, round);
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
    CHECK(made > CasesToDraw(300));
  }

  TEST_CASE("a partition is no worse than an even one, and mostly the best there is") {
    std::mt19937_64 random(5);
    int best_found = 0, cases = 0, better = 0;
    for (int round = 0; round < CasesToDraw(40); ++round) {
      const int ranks = 2 + static_cast<int>(random() % 2);
      const int layers = 2 * ranks + static_cast<int>(random() % 4);
      for (const char* name : {"1f1b", "zb-1p", "interleaved-1f1b", "zb-v", "dualpipe"}) {
        Spec spec = MakeSpec(name, ranks, 2 * ranks, RandomLayers(&random, layers, false));
        const Schedule& schedule = FindSchedule(name);
        if (!schedule.reject(spec).empty()) continue;
        CAPTURES(name, round);
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

  TEST_CASE("what may be recomputed or offloaded is never worse than without, nor than even") {
    std::mt19937_64 random(17);
    int compared = 0, freed = 0;
    for (int round = 0; round < CasesToDraw(40); ++round) {
      const int ranks = 2 + static_cast<int>(random() % 3);
      Spec spec = MakeSpec("", ranks, 2 * ranks,
                           RandomLayers(&random, 2 * ranks + static_cast<int>(random() % 9), true));
      spec.costs.host = HostCost{.latency = 3};
      int64_t all = 0;
      for (LayerCost& layer : spec.costs.layers) {
        layer.activation_bytes += 2;
        layer.output_bytes = 1;
        all += layer.repeat * layer.activation_bytes;
      }
      // From what one micro-batch needs to what 1F1B does.
      spec.memory_limit = all * static_cast<int64_t>(4 + random() % 10) / 10;
      for (const char* schedule : {"1f1b", "interleaved-1f1b", "zb-v"}) {
        spec.schedule = schedule;
        if (!FindSchedule(schedule).reject(spec).empty()) continue;
        const auto step = [&](bool recompute, bool offload, Kind kind) -> std::optional<Time> {
          Spec one = spec;
          one.partition = PartitionChoice{.kind = kind};
          if (recompute) one.recompute.choice = Recompute::Choice::kAuto;
          if (offload) one.offload.choice = Offload::Choice::kAuto;
          try {
            const Plan plan = Compile(one);
            return Simulate(plan, *plan.costs).makespan;
          } catch (const InternalError&) {
            throw;
          } catch (const Error&) {
            return std::nullopt;  // does not fit
          }
        };
        CAPTURES(schedule, round);
        const std::optional<Time> plain = step(false, false, Kind::kAuto);
        for (const auto& [recompute, offload] : {std::pair(true, false), {false, true}}) {
          const std::optional<Time> free = step(recompute, offload, Kind::kAuto);
          const std::optional<Time> even = step(recompute, offload, Kind::kEven);
          for (const std::optional<Time>& other : {plain, even}) {
            if (!other) continue;
            ++compared;
            REQUIRE(free);
            CHECK(*free <= *other);
          }
          freed += free && !plain;
        }
        const std::optional<Time> copied = step(false, true, Kind::kAuto);
        const std::optional<Time> both = step(true, true, Kind::kAuto);
        if (copied) {
          REQUIRE(both);
          CHECK(*both <= *copied);
        }
      }
    }
    CHECK(compared > 0);
    CHECK((kSanitized || freed > 0));
  }

  TEST_CASE(
      "with full recompute no partition that is chosen without it does better, nor an even one") {
    std::mt19937_64 random(29);
    int better = 0;
    for (int round = 0; round < CasesToDraw(30); ++round) {
      const int ranks = 2 + static_cast<int>(random() % 4);
      Spec spec = MakeSpec("", ranks, 2 * ranks,
                           RandomLayers(&random, 2 * ranks + static_cast<int>(random() % 9), true));
      for (LayerCost& layer : spec.costs.layers) layer.output_bytes = 1;
      for (const char* schedule : {"1f1b", "zb-1p", "zb-v"}) {
        spec.schedule = schedule;
        CAPTURES(schedule, round);
        const std::vector<int> without = Compile(spec).costs->partition;
        const auto step = [&](const PartitionChoice& partition) {
          Spec full = spec;
          full.partition = partition;
          full.recompute.choice = Recompute::Choice::kFull;
          const Plan plan = Compile(full);
          return Simulate(plan, *plan.costs).makespan;
        };
        const Time free = step({.kind = Kind::kAuto});
        CHECK(free <= step({.kind = Kind::kList, .layers = without}));
        const Time even = step({.kind = Kind::kEven});
        CHECK(free <= even);
        better += free < even;
      }
    }
    CHECK(better > 0);
  }

  TEST_CASE("a balanced partition of one stage a rank is the best by what it looks at") {
    std::mt19937_64 random(3);
    for (int round = 0; round < CasesToDraw(60); ++round) {
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

  TEST_CASE("auto is no longer than any published schedule of the same layers") {
    std::mt19937_64 random(21);
    for (int round = 0; round < CasesToDraw(8); ++round) {
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
        CAPTURES(row.schedule, round);
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
          CAPTURES(row.schedule, round, recompute);
          if (row.report && row.fits) CHECK(limited.back().makespan() <= row.makespan());
        }
      }
    }
  }
}

TEST_SUITE("unit") {
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
    CHECK(Contains(Failure([&] { Compile(spec); }), "needs an even number of ranks"));
    spec.search.placement = Placement::kAny;
    spec.costs.microbatch_scale = {1, 2};
    for (const Schedule* schedule : Schedules()) {
      spec.schedule = schedule->name;
      if (!schedule->reject(spec).empty()) continue;
      CHECK(Failure([&] { Compile(spec); }) ==
            "`costs`: /microbatch_scale: has 2 entries, this plan has 4 micro-batches; give one "
            "factor for each");
    }
  }

  TEST_CASE("limits below what some stages hold end in an error and in nothing else") {
    std::mt19937_64 random(31);
    int fitted = 0, refused = 0;
    for (int round = 0; round < CasesToDraw(40); ++round) {
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
        CAPTURES(spec.schedule, round);
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
    CHECK(fitted > CasesToDraw(50));
    CHECK(refused > CasesToDraw(50));
  }
}

}  // namespace
}  // namespace contraflow::partition_test
