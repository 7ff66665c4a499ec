// Layers and order together: how far a step is above the bound for any partition and any order, on
// random lists of layers, and how far above that of its own partition. If both gaps are alike a
// better order or bound is missing; where only the first is large, a better partition or a better
// bound for any. Lists with components, whose chunks overlap in pairs, count apart from plain ones.

#include <algorithm>
#include <optional>
#include <random>
#include <utility>

#include "compiler/plan/error.h"
#include "compiler/plan/layer_cost.h"
#include "compiler/verify/verify.h"
#include "schedules/compile.h"
#include "schedules/partition/partition.h"
#include "schedules/registry.h"
#include "schedules/report.h"
#include "tools/bench/bench.h"

namespace contraflow {
namespace {

/// Ticks of the forward of a dense layer.
constexpr Time kLayer = 1'000'000;

class RandomList {
 public:
  explicit RandomList(int number) : random_(static_cast<uint64_t>(number)) {}

  /// Embedding, dense layers, MoE ones, perhaps a layer of multi-token prediction, and the head.
  Spec Make(int most_ranks) {
    Spec spec = {.schedule = "auto", .ranks = Draw(2, most_ranks), .costs = {}, .memory_limit = {}};
    spec.microbatches = spec.ranks * Draw(2, 4);
    costs_.unit = Unit::kMilliseconds;
    costs_.comm.latency = kLayer * Draw(0, 4) / 20;
    const int layers = spec.ranks * Draw(2, 6) + Draw(0, spec.ranks);
    const int dense = Draw(0, 2) == 0 ? Draw(0, layers) : Draw(0, 3);
    const double embedding = 0.01 * Draw(2, 40), head = 0.01 * Draw(20, 350);
    Add("embedding", 1, embedding, 0.1, 1);
    if (dense > 0) Add("dense", dense, 1, Backward(), Backward());
    const bool components = Draw(0, 2) == 0;
    if (layers > dense && components) {
      AddComponents(layers - dense);
    } else if (layers > dense) {
      Add("moe", layers - dense, 0.01 * Draw(70, 180), Backward(), Backward());
    }
    if (Draw(0, 3) == 0) Add("mtp", 1, 1 + head, 1, 1);
    Add("head", 1, head, 1, 1);
    spec.costs = std::move(costs_);
    return spec;
  }

 private:
  int Draw(int least, int most) { return std::uniform_int_distribution(least, most)(random_); }
  double Backward() { return 0.01 * Draw(70, 130); }
  static Time Ticks(double layers) { return static_cast<Time>(layers * kLayer); }

  void Add(const char* name, int repeat, double f, double b, double w) {
    LayerCost layer;
    layer.name = name;
    layer.repeat = repeat;
    layer.cost = {.f = Ticks(f), .b = Ticks(f * b), .w = Ticks(f * w)};
    layer.cost.bw = layer.cost.b + layer.cost.w;
    layer.cost.fb = layer.cost.f + layer.cost.bw;
    costs_.layers.push_back(std::move(layer));
  }

  void AddComponents(int repeat) {
    LayerCost layer;
    layer.name = "moe";
    layer.repeat = repeat;
    const auto some = [&] { return std::vector<Time>{Ticks(0.01 * Draw(20, 60))}; };
    const std::vector<Time> attention = some(), experts = some(), messages = some();
    layer.moe = MoeCost{.layers_per_stage = 1,
                        .attn_f = attention,
                        .dispatch_f = messages,
                        .mlp_f = experts,
                        .combine_f = messages,
                        .combine_b = messages,
                        .mlp_b = experts,
                        .dispatch_b = messages,
                        .attn_b = attention,
                        .mlp_w = experts,
                        .attn_w = attention};
    costs_.layers.push_back(std::move(layer));
  }

  std::mt19937_64 random_;
  CostModel costs_;
};

bool HasComponents(const Spec& spec) {
  return std::ranges::any_of(spec.costs.layers,
                             [](const LayerCost& layer) { return layer.moe.has_value(); });
}

/// A schedule of the table, or `auto` on a placement.
struct Way {
  std::string name;
  Placement placement = Placement::kAny;
};

std::vector<Way> Ways() {
  std::vector<Way> ways;
  for (const char* name : {"1f1b", "interleaved-1f1b", "zb-1p", "zb-v", "dualpipe"}) {
    ways.push_back({name});
  }
  for (const Placement placement :
       {Placement::kLinear, Placement::kV, Placement::kInterleaved, Placement::kSingle,
        Placement::kBidirectional, Placement::kAny}) {
    ways.push_back({"auto " + std::string(Name(placement)), placement});
  }
  return ways;
}

void Measure(Spec spec, const std::string& name, const Way& way, const SearchOptions& search,
             BenchTable* table) {
  spec.schedule = way.name.substr(0, way.name.find(' '));
  spec.search = search;
  spec.search.placement = way.placement;
  if (!FindSchedule(spec.schedule).reject(spec).empty()) return;
  std::optional<Plan> plan;
  const double start = CpuMilliseconds();
  try {
    plan = Compile(spec);
  } catch (const InternalError&) {
    throw;
  } catch (const Error&) {
    return;  // two directions on an odd number of ranks, chunks of more layers than there are
  }
  const double seconds = (CpuMilliseconds() - start) / 1000;
  if (!Verify(*plan).empty()) {
    throw InternalError("internal error: a plan of " + way.name + " does not hold");
  }
  Report report = MakeReport(*plan, *plan->costs, std::nullopt, Keep::kFigures);
  if (!report.any_partition) {
    LayerStages layers(spec.costs, Overlap::kAll);
    report.any_partition =
        BoundOfPartitions(spec, &layers, *plan, report.simulation.makespan).value;
  }
  const std::string placement = plan->provenance ? plan->provenance->placement : "published";
  table->Add({(HasComponents(spec) ? "components, " : "plain, ") + way.name}, name,
             {100 * report.gap(), 100 * report.gap_to_any_partition(), seconds},
             std::to_string(plan->stages) + " stages, " + placement + ", " +
                 FormatPartition(report.partition));
}

}  // namespace

void RunPartitions(const BenchOptions& options, std::string_view /*suite*/) {
  constexpr auto kMost = BenchColumn::Shows::kMeanAndMost;
  BenchTable table({{"own %", 2, kMost}, {"any %", 2, kMost}, {"CPU s", 1}}, options.each);
  const int64_t first = options.first.value_or(0);
  for (int64_t number = first; number < first + options.lists.value_or(20); ++number) {
    const Spec spec = RandomList(static_cast<int>(number)).Make(options.ranks);
    const std::string list = std::to_string(number) + " P=" + std::to_string(spec.ranks) +
                             " M=" + std::to_string(spec.microbatches) +
                             " L=" + std::to_string(spec.costs.LayerCount()) +
                             (HasComponents(spec) ? " components " : " plain ");
    for (const Way& way : Ways()) {
      const std::string name = list + way.name;
      if (options.Takes(name)) Measure(spec, name, way, options.search(0.2), &table);
    }
  }
  table.PrintClasses();
}

}  // namespace contraflow
