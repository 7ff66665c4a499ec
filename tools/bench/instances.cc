#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "compiler/files/profiles.h"
#include "compiler/plan/error.h"
#include "compiler/simulate/simulate.h"
#include "schedules/partition/partition.h"
#include "schedules/published/placement.h"
#include "schedules/registry.h"
#include "tools/bench/bench.h"

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

std::string Label(std::string_view set, int ranks, int microbatches) {
  return std::string(set) + " P=" + std::to_string(ranks) + " M=" + std::to_string(microbatches);
}

std::string Times(double factor) {
  std::string text = std::to_string(factor);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text + "x";
}

/// The most that a rank holds in a published schedule.
double PeakOf(const std::string& schedule, int ranks, int microbatches, const CostModel& costs) {
  const Plan plan = GeneratePlan(BenchSpec(schedule, ranks, microbatches, costs));
  int64_t peak = 0;
  for (const RankFigures& rank : Simulate(plan, costs).ranks) {
    peak = std::max(peak, rank.peak_bytes);
  }
  return static_cast<double>(peak);
}

/// The instances that the options leave.
class Selection {
 public:
  explicit Selection(const BenchOptions& options) : options_(options) {}

  std::vector<BenchInstance> instances;

  void Add(std::string group, std::string name, const Plan& frame, const CostModel& costs,
           double limit, const char* published = "") {
    if (!options_.Takes(group + " " + name)) return;
    instances.push_back({std::move(group), std::move(name), FrameOf(frame), costs,
                         static_cast<int64_t>(limit), published});
  }

  /// Stages of one route, a rank each, in multiples of 1F1B's memory.
  void AddLinear(const std::string& group, std::string_view set, const CostModel& costs, int ranks,
                 std::span<const int> microbatches, std::span<const double> memory) {
    for (const int times : microbatches) {
      const int m = times * ranks;
      const Plan frame = SingleRoutePlan(BenchSpec("", ranks, m, {}), LinearPlacement(ranks));
      const double once = PeakOf("1f1b", ranks, m, costs);
      for (const double factor : memory) {
        Add(group + " " + Times(factor), Label(set, ranks, m), frame, costs, factor * once);
      }
    }
  }

 private:
  const BenchOptions& options_;
};

void AddLinear(int ranks, Selection* selection) {
  constexpr int kMicrobatches[] = {1, 2, 4, 8};
  constexpr double kMemory[] = {1, 1.5, 2};
  const auto add = [&](std::string_view name, const CostModel& costs) {
    selection->AddLinear("linear", name, costs, ranks, kMicrobatches, kMemory);
  };
  for (const CostSet& set : kSets) add(set.name, CostsOf(set, {StageOf(set, 1)}));
  add("LAST", LateCosts(ranks));
  add("DS3", DeepSeekCosts(ranks));
}

void AddV(int ranks, Selection* selection) {
  for (const CostSet& set : kSets) {
    const CostModel costs = CostsOf(set, {StageOf(set, 0.5)});
    const double once = 2.0 * ranks * static_cast<double>(set.held);
    for (const int times : {2, 4}) {
      const int m = times * ranks;
      const Plan frame = SingleRoutePlan(BenchSpec("", ranks, m, {}), VPlacement(ranks));
      const std::string name = Label(set.name, ranks, m);
      selection->Add("v 1.5x", name, frame, costs, 1.5 * once, "zb-v");
      selection->Add("v 1x", name, frame, costs, once, "zb-v");
      selection->Add("v V-Half", name, frame, costs, PeakOf("v-half", ranks, m, costs), "v-half");
      selection->Add("v V-Min", name, frame, costs, PeakOf("v-min", ranks, m, costs), "v-min");
    }
  }
}

void AddBidirectional(int ranks, Selection* selection) {
  for (const CostSet& set : kSets) {
    const CostModel costs = CostsOf(set, {StageOf(set, 1)});
    for (const int times : {2, 4, 8}) {
      const int m = times * ranks;
      const Plan frame = BidirectionalPlan(BenchSpec("", ranks, m, {}));
      for (const double factor : {1.0, 1.5}) {
        selection->Add("bidirectional " + Times(factor), Label(set.name, ranks, m), frame, costs,
                       factor * (ranks + 1) * static_cast<double>(set.held));
      }
    }
  }
}

void AddReal(const std::string& file, Selection* selection) {
  constexpr int kMicrobatches[] = {1, 2, 4};
  constexpr double kMemory[] = {1, 1.25, 1.5, 2};
  CostModel costs = ReadCostsOrProfile(file);
  const std::string name = file.substr(file.find_last_of('/') + 1);
  int ranks = static_cast<int>(costs.stages.size());
  if (!costs.layers.empty()) {
    // Balanced, on as many ranks as the name says.
    ranks = name.find("pp16") != std::string::npos ? 16 : 8;
    LayerStages layers(costs, Overlap::kAll);
    const Plan frame = SingleRoutePlan(BenchSpec("", ranks, ranks, {}), LinearPlacement(ranks));
    costs = layers.Make(StartingPartitions(layers, frame, costs).front());
  }
  selection->AddLinear("real", name, costs, ranks, kMicrobatches, kMemory);
}

}  // namespace

Spec BenchSpec(std::string_view schedule, int ranks, int microbatches, CostModel costs) {
  Spec spec;
  spec.schedule = schedule;
  spec.ranks = ranks;
  spec.microbatches = microbatches;
  spec.costs = std::move(costs);
  return spec;
}

std::vector<Plan> BenchInstance::Seeds() const {
  std::vector<Plan> seeds;
  for (const Schedule* schedule : Schedules()) {
    if (schedule->name == "auto") continue;
    Spec spec = BenchSpec(schedule->name, frame.ranks, frame.microbatches, costs);
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

std::vector<Plan> BenchInstance::Published() const {
  if (published.empty()) return {};
  CostModel unit = UniformCosts(1, 1, 1, 0);
  unit.memory = costs.memory;
  return {GeneratePlan(BenchSpec(published, frame.ranks, frame.microbatches, unit))};
}

std::vector<BenchInstance> Instances(const BenchOptions& options, std::string_view placement) {
  Selection selection(options);
  for (const int ranks : {4, 8, 16}) {
    if (ranks > options.ranks) continue;
    if (placement == "linear") AddLinear(ranks, &selection);
    if (placement == "v") AddV(ranks, &selection);
    if (placement == "bidirectional") AddBidirectional(ranks, &selection);
  }
  if (placement == "real") {
    for (const std::string& file : options.costs) AddReal(file, &selection);
  }
  if (selection.instances.empty()) {
    throw Error("no instance has \"" + options.only + "\" in its name; see --only and --costs");
  }
  return std::move(selection.instances);
}

}  // namespace contraflow
