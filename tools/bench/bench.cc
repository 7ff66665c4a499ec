#include "tools/bench/bench.h"

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <span>
#include <string_view>
#include <utility>

#include "compiler/files/profiles.h"
#include "compiler/plan/error.h"
#include "compiler/plan/layer_cost.h"
#include "compiler/simulate/simulate.h"
#include "schedules/partition/partition.h"
#include "schedules/published/placement.h"
#include "schedules/registry.h"
#include "tools/cli/options.h"

namespace contraflow {
namespace {

/// F, B, W and a hop of one stage, what it holds of a micro-batch up to B and of that up to W.
struct CostSet {
  std::string_view name;
  double f, b, w, hop;
  int64_t held, stash;
};

/// Abstract costs, and those of the models of "Zero Bubble Pipeline Parallelism" (ICLR 2024),
/// table 6, in milliseconds; memory per layer is (34h + 5as) : 32h.
constexpr CostSet kSets[] = {
    {"U0", 1, 1, 1, 0, 1, 1},
    {"U1", 1, 1, 1, 0.1, 1, 1},
    {"1.5B", 18.522, 18.086, 9.337, 0.601, 2729, 1000},
    {"6.2B", 29.718, 29.444, 19.927, 0.527, 2312, 1000},
    {"14.6B", 11.347, 11.248, 8.132, 0.377, 2312, 1000},
    {"28.3B", 10.419, 10.207, 7.715, 0.408, 2312, 1000},
    {"HC", 1, 1, 1, 0.5, 1, 1},
    {"LC", 1, 1.4, 0.6, 0.05, 1, 1},
    {"RC", 1, 2, 1, 0.05, 1, 1},
};

constexpr int kRanks[] = {4, 8, 16};

Time Ticks(double cost) { return std::llround(cost * 1e6); }

StageCost StageOf(const CostSet& set, double share) {
  StageCost cost;
  cost.f = Ticks(set.f * share);
  cost.b = Ticks(set.b * share);
  cost.w = Ticks(set.w * share);
  cost.bw = cost.b + cost.w;
  cost.fb = cost.f + cost.bw;
  return cost;
}

CostModel CostsOf(const CostSet& set, std::vector<StageCost> stages) {
  CostModel costs;
  costs.unit = Unit::kMilliseconds;
  costs.stages = std::move(stages);
  costs.comm.latency = Ticks(set.hop);
  costs.memory = MemoryCost{.activation_bytes = set.held, .w_stash_bytes = set.stash};
  return costs;
}

/// The last stage a quarter slower, the first a little.
CostModel LateCosts(int ranks) {
  const CostSet& set = kSets[4];
  std::vector<StageCost> stages(static_cast<size_t>(ranks), StageOf(set, 1));
  stages.front() = StageOf(set, 1.08);
  stages.back() = StageOf(set, 1.25);
  return CostsOf(set, std::move(stages));
}

/// DeepSeek-V3: four layers a stage; on the last one, the multi-token head and the head.
CostModel DeepSeekCosts(int ranks) {
  constexpr CostSet kLayer = {"DS3", 1, 1.189, 0.874, 0.12, 1000, 450};
  constexpr double kLast = 1 + 2.54 + 1.39;
  std::vector<StageCost> stages(static_cast<size_t>(ranks), StageOf(kLayer, 4));
  stages.back() = StageOf(kLayer, kLast);
  return CostsOf(kLayer, std::move(stages));
}

std::vector<Plan> SeedsOf(const Plan& frame, const CostModel& costs, int64_t limit) {
  std::vector<Plan> seeds;
  for (const Schedule* schedule : Schedules()) {
    if (schedule->name == "auto") continue;
    Spec spec;
    spec.schedule = schedule->name;
    spec.ranks = frame.ranks;
    spec.microbatches = frame.microbatches;
    spec.costs = costs;
    spec.memory_limit = limit;
    if (static_cast<size_t>(schedule->stages(spec)) != costs.stages.size() &&
        costs.stages.size() > 1) {
      continue;
    }
    if (!schedule->reject(spec).empty()) continue;
    Plan plan = schedule->generate(spec);
    if (plan.routes == frame.routes) seeds.push_back(std::move(plan));
  }
  return seeds;
}

/// The order that a schedule has where every instruction takes the same time and messages none.
Plan AtUnitCost(const std::string& schedule, const Plan& frame, const CostModel& costs) {
  CostModel unit = UniformCosts(1, 1, 1, 0);
  unit.memory = costs.memory;
  Spec spec;
  spec.schedule = schedule;
  spec.ranks = frame.ranks;
  spec.microbatches = frame.microbatches;
  spec.costs = unit;
  return GeneratePlan(spec);
}

std::string Label(std::string_view set, int ranks, int microbatches) {
  return std::string(set) + " P=" + std::to_string(ranks) + " M=" + std::to_string(microbatches);
}

std::string Times(double factor) {
  std::string text = std::to_string(factor);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text + "x";
}

Spec SpecOf(int ranks, int microbatches) {
  Spec spec;
  spec.ranks = ranks;
  spec.microbatches = microbatches;
  return spec;
}

BenchInstance Make(std::string group, std::string name, Plan frame, const CostModel& costs,
                   double limit) {
  BenchInstance instance;
  instance.group = std::move(group);
  instance.name = std::move(name);
  instance.limit = static_cast<int64_t>(limit);
  frame.programs.assign(static_cast<size_t>(frame.ranks), {});
  instance.seeds = SeedsOf(frame, costs, instance.limit);
  instance.frame = std::move(frame);
  instance.costs = costs;
  return instance;
}

/// Most that a rank holds in a published schedule.
double PeakOf(const std::string& schedule, int ranks, int microbatches, const CostModel& costs) {
  Spec spec = SpecOf(ranks, microbatches);
  spec.schedule = schedule;
  spec.costs = costs;
  int64_t peak = 0;
  for (const RankFigures& rank : Simulate(GeneratePlan(spec), costs).ranks) {
    peak = std::max(peak, rank.peak_bytes);
  }
  return static_cast<double>(peak);
}

void AddLinear(std::string_view group, std::string_view set, const CostModel& costs, int ranks,
               std::span<const int> microbatches, std::span<const double> memory,
               std::vector<BenchInstance>* instances) {
  for (const int times : microbatches) {
    const int m = times * ranks;
    const Plan frame = SingleRoutePlan(SpecOf(ranks, m), LinearPlacement(ranks));
    const double once = PeakOf("1f1b", ranks, m, costs);
    for (const double factor : memory) {
      instances->push_back(Make(std::string(group) + " " + Times(factor), Label(set, ranks, m),
                                frame, costs, factor * once));
    }
  }
}

}  // namespace

std::vector<BenchInstance> LinearInstances(int max_ranks) {
  constexpr int kMicrobatches[] = {1, 2, 4, 8};
  constexpr double kMemory[] = {1, 1.5, 2};
  std::vector<BenchInstance> instances;
  for (const int ranks : kRanks) {
    if (ranks > max_ranks) continue;
    const auto add = [&](std::string_view name, const CostModel& costs) {
      AddLinear("linear", name, costs, ranks, kMicrobatches, kMemory, &instances);
    };
    for (const CostSet& set : kSets) add(set.name, CostsOf(set, {StageOf(set, 1)}));
    add("LAST", LateCosts(ranks));
    add("DS3", DeepSeekCosts(ranks));
  }
  return instances;
}

std::vector<BenchInstance> VInstances(int max_ranks) {
  std::vector<BenchInstance> instances;
  for (const CostSet& set : kSets) {
    const CostModel costs = CostsOf(set, {StageOf(set, 0.5)});
    const auto each = static_cast<double>(set.held);
    for (const int ranks : kRanks) {
      if (ranks > max_ranks) continue;
      for (const int times : {2, 4}) {
        const int m = times * ranks;
        const Plan frame = SingleRoutePlan(SpecOf(ranks, m), VPlacement(ranks));
        const std::string name = Label(set.name, ranks, m);
        struct Memory {
          const char* group;
          double limit;
          const char* published;
        };
        const Memory memory[] = {{"v 1.5x", 1.5 * 2 * ranks * each, "zb-v"},
                                 {"v 1x", 1.0 * 2 * ranks * each, "zb-v"},
                                 {"v V-Half", PeakOf("v-half", ranks, m, costs), "v-half"},
                                 {"v V-Min", PeakOf("v-min", ranks, m, costs), "v-min"}};
        for (const auto& [group, limit, published] : memory) {
          instances.push_back(Make(group, name, frame, costs, limit));
          instances.back().published = {AtUnitCost(published, frame, costs)};
        }
      }
    }
  }
  return instances;
}

std::vector<BenchInstance> BidirectionalInstances(int max_ranks) {
  std::vector<BenchInstance> instances;
  for (const CostSet& set : kSets) {
    const CostModel costs = CostsOf(set, {StageOf(set, 1)});
    for (const int ranks : kRanks) {
      if (ranks > max_ranks) continue;
      for (const int times : {2, 4, 8}) {
        const int m = times * ranks;
        const Plan frame = BidirectionalPlan(SpecOf(ranks, m));
        for (const double factor : {1.0, 1.5}) {
          instances.push_back(Make("bidirectional " + Times(factor), Label(set.name, ranks, m),
                                   frame, costs,
                                   factor * (ranks + 1) * static_cast<double>(set.held)));
        }
      }
    }
  }
  return instances;
}

std::vector<BenchInstance> RealInstances(const std::vector<std::string>& files) {
  constexpr int kMicrobatches[] = {1, 2, 4};
  constexpr double kMemory[] = {1, 1.25, 1.5, 2};
  std::vector<BenchInstance> instances;
  for (const std::string& file : files) {
    CostModel costs = ReadCostsOrProfile(file);
    const size_t slash = file.find_last_of('/');
    const std::string name = file.substr(slash == std::string::npos ? 0 : slash + 1);
    int ranks = static_cast<int>(costs.stages.size());
    if (!costs.layers.empty()) {
      // Balanced, on as many ranks as the name says.
      Spec spec;
      spec.ranks = name.find("pp16") != std::string::npos ? 16 : 8;
      spec.microbatches = spec.ranks;
      LayerStages layers(costs, Overlap::kAll);
      const Plan frame = SingleRoutePlan(spec, LinearPlacement(spec.ranks));
      costs = layers.Make(StartingPartitions(layers, frame, costs).front());
      ranks = spec.ranks;
    }
    AddLinear("real", name, costs, ranks, kMicrobatches, kMemory, &instances);
  }
  return instances;
}

double CpuMilliseconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec) * 1e3 +
         static_cast<double>(usage.ru_utime.tv_usec) / 1e3;
}

double Percent(Time value, Time of) {
  return 100 * static_cast<double>(value - of) / static_cast<double>(of);
}

double Exponent(const std::vector<std::pair<double, double>>& points) {
  double sx = 0, sy = 0, sxx = 0, sxy = 0;
  const auto n = static_cast<double>(points.size());
  for (const auto& [x, y] : points) {
    const double u = std::log(x), v = std::log(y);
    sx += u;
    sy += v;
    sxx += u * u;
    sxy += u * v;
  }
  return (n * sxy - sx * sy) / (n * sxx - sx * sx);
}

SearchOptions BenchOptions::search() const {
  SearchOptions search;
  search.budget = static_cast<int64_t>(budget * 1e9);
  search.seed = static_cast<uint64_t>(seed.value_or(0));
  return search;
}

std::vector<BenchInstance> BenchOptions::Select(std::vector<BenchInstance> instances) const {
  std::erase_if(instances, [&](const BenchInstance& instance) {
    return (instance.group + " " + instance.name).find(only) == std::string::npos;
  });
  if (instances.empty()) throw Error("no instance has \"" + only + "\" in its name");
  return instances;
}

void AddBudget(CLI::App* app, BenchOptions* options) {
  std::string text = std::to_string(options->budget);
  text.resize(text.find('.'));
  AddNumber(app, "--budget", &options->budget, "S",
            "seconds of search for each figure (default: " + text + ")");
  AddInteger(app, "--seed", &options->seed, "N", "seed of the search (default: 0)");
}

void AddSelection(CLI::App* app, BenchOptions* options) {
  AddInteger(app, "--ranks", &options->ranks, "MOST",
             "leave out instances with more ranks (default: 16)");
  AddText(app, "--only", &options->only, "TEXT", "only instances with TEXT in their class or name");
  AddFlag(app, "--each", &options->each, "print a line for each instance");
}

}  // namespace contraflow
