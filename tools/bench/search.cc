// How good searched schedules are and what they take: for each class of instances how many were
// proven optimal, how far the others are from their bound, the gain over what is published for the
// same placement and memory, and user CPU time. Figures, no thresholds.
//
// A gain is given twice: over the best schedule of the table, which may follow costs, and over the
// order of the class's published schedule as it is at unit cost. "At most" is what a schedule as
// long as the bound would gain: no search can gain more. A loss is an instance that is longer than
// either of the two.

#include "schedules/search/search.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "compiler/bound/bound.h"
#include "schedules/local/order_graph.h"
#include "schedules/registry.h"
#include "schedules/search/evaluator.h"
#include "tools/bench/bench.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"

namespace contraflow {
namespace {

struct Options : BenchOptions {
  std::string suite = {};
  std::vector<std::string> files = {};
};

/// By how many percent of `other` a value is less.
double Less(Time value, Time other) {
  return 100 * static_cast<double>(other - value) / static_cast<double>(other);
}

/// Gains over one kind of schedule.
struct Gain {
  int instances = 0, losses = 0;
  double gain = 0, at_most = 0;  // sums

  Gain() = default;
  Gain(Time makespan, Time bound, std::optional<Time> other) {
    if (!other) return;
    instances = 1;
    losses = makespan > *other;
    gain = Less(makespan, *other);
    at_most = Less(bound, *other);
  }
  void Add(const Gain& other) {
    instances += other.instances;
    losses += other.losses;
    gain += other.gain;
    at_most += other.at_most;
  }
  double mean() const { return gain / std::max(instances, 1); }
  double mean_at_most() const { return at_most / std::max(instances, 1); }
};

struct Row {
  int instances = 0, optimal = 0, unsolved = 0;
  double gap = 0, worst_gap = 0, cpu = 0, worst_cpu = 0;
  Gain over_table, over_published;

  void Add(const Row& other) {
    instances += other.instances;
    optimal += other.optimal;
    unsolved += other.unsolved;
    gap += other.gap;
    worst_gap = std::max(worst_gap, other.worst_gap);
    cpu += other.cpu;
    worst_cpu = std::max(worst_cpu, other.worst_cpu);
    over_table.Add(other.over_table);
    over_published.Add(other.over_published);
  }
};

/// The shortest of them that fits.
std::optional<Time> BestOf(const SearchProblem& problem, const std::vector<Plan>& seeds) {
  std::optional<Time> best;
  Evaluator evaluator(problem);
  for (const Plan& seed : seeds) {
    const std::optional<Order> order = ToOrder(problem, seed);
    if (!order) continue;
    const Evaluation& evaluation = evaluator.Run(*order);
    if (!evaluation.runs || !evaluation.fits) continue;
    if (!best || evaluation.makespan < *best) best = evaluation.makespan;
  }
  return best;
}

Row Measure(const BenchInstance& instance, const Options& options) {
  Row row;
  const SearchProblem problem = MakeProblem(instance.frame, instance.costs, instance.limit);
  const SearchOptions search = options.search();
  const double start = CpuMilliseconds();
  const Time bound = ProveBound(instance.frame, instance.costs, instance.limit).value;
  SearchWork work(search);
  const std::optional<SearchResult> found = Search(problem, instance.seeds, bound, search, &work);
  const double cpu = CpuMilliseconds() - start;
  ++row.instances;
  row.cpu += cpu;
  row.worst_cpu = cpu;
  if (!found) {
    ++row.unsolved;
    if (options.each)
      std::printf("%-18s %-20s nothing fits\n", instance.group.c_str(), instance.name.c_str());
    return row;
  }
  const double gap = Percent(found->makespan, bound);
  row.optimal += found->makespan == bound;
  row.gap += gap;
  row.worst_gap = gap;
  row.over_table = Gain(found->makespan, bound, BestOf(problem, instance.seeds));
  row.over_published = Gain(found->makespan, bound, BestOf(problem, instance.published));
  if (options.each) {
    std::printf("%-18s %-20s gap %8.4f %%  gain", instance.group.c_str(), instance.name.c_str(),
                gap);
    for (const Gain& over : {row.over_table, row.over_published}) {
      if (over.instances > 0) std::printf(" %7.3f %%", over.gain);
    }
    std::printf("  %7.0f ms  %s\n", cpu, found->from.c_str());
    std::fflush(stdout);
  }
  return row;
}

void Print(const std::string& group, const Row& row) {
  const double solved = std::max(row.instances - row.unsolved, 1);
  std::printf("%-18s %9d %9d (%5.1f %%) %8.4f %% %8.4f %%", group.c_str(), row.instances,
              row.optimal, 100 * row.optimal / solved, row.gap / solved, row.worst_gap);
  for (const Gain& over : {row.over_table, row.over_published}) {
    if (over.instances == 0) {
      std::printf(" %20s", "-");
    } else {
      std::printf(" %6.2f (%7.2f) %%", over.mean(), over.mean_at_most());
    }
  }
  std::printf(" %6d %8.0f %8.0f %9d\n", row.over_table.losses + row.over_published.losses,
              row.cpu / row.instances, row.worst_cpu, row.unsolved);
}

void Run(const Options& options, const std::vector<BenchInstance>& instances) {
  std::map<std::string, Row> rows;
  Row all;
  for (const BenchInstance& instance : instances) {
    const Row row = Measure(instance, options);
    rows[instance.group].Add(row);
    all.Add(row);
  }
  std::printf("%-18s %9s %19s %10s %10s %18s %18s %6s %8s %8s %9s\n", "class", "instances",
              "proven optimal", "mean gap", "worst", "gain (at most)", "published (most)", "losses",
              "mean ms", "worst ms", "unsolved");
  for (const auto& [group, row] : rows) Print(group, row);
  Print("all", all);
}

/// How many orders a second are evaluated from nothing, and how many by moving one action.
void RunSpeed() {
  constexpr int kRuns = 2000, kMoves = 2'000'000;
  std::printf("%8s %14s %14s %14s %8s\n", "actions", "evaluated/s", "Mactions/s", "moved/s",
              "ratio");
  for (const int microbatches : {13, 26, 52, 104}) {
    const CostModel costs = UniformCosts(1000, 1400, 600, 50);
    Spec spec;
    spec.schedule = "zb-v";
    spec.ranks = 16;
    spec.microbatches = microbatches;
    spec.costs = costs;
    const Plan plan = GeneratePlan(spec);
    const SearchProblem problem = MakeProblem(plan, costs, std::nullopt);
    const Order order = *ToOrder(problem, plan);
    Evaluator evaluator(problem);
    double start = CpuMilliseconds();
    for (int i = 0; i < kRuns; ++i) evaluator.Run(order);
    const double whole = (CpuMilliseconds() - start) / kRuns;
    OrderGraph graph(problem, order);
    std::mt19937_64 random(1);
    int moves = 0;
    start = CpuMilliseconds();
    for (int i = 0; i < kMoves; ++i) {
      OrderGraph::Move move;
      move.rank = static_cast<int>(random() % 16);
      move.from = static_cast<int>(random() % static_cast<uint64_t>(graph.length(move.rank)));
      move.to = std::clamp(move.from - 10 + static_cast<int>(random() % 21), 0,
                           graph.length(move.rank) - 1);
      move = graph.Shorten(move);
      if (move.from == move.to || !graph.Fits(move)) continue;
      ++moves;
      if (graph.Estimate(move) > graph.makespan() || !graph.Apply(move)) continue;
      graph.Commit();
    }
    const double each = (CpuMilliseconds() - start) / moves;
    const auto actions = static_cast<double>(graph.actions());
    std::printf("%8.0f %14.0f %14.1f %14.0f %8.1f\n", actions, 1e3 / whole, actions / whole / 1e3,
                1e3 / each, whole / each);
  }
}

std::vector<BenchInstance> InstancesOf(const Options& options) {
  if (options.suite == "linear") return LinearInstances(options.ranks);
  if (options.suite == "v") return VInstances(options.ranks);
  if (options.suite == "bidirectional") return BidirectionalInstances(options.ranks);
  return RealInstances(options.files);
}

int Main(const Options& options) {
  if (options.suite == "speed") {
    RunSpeed();
  } else {
    Run(options, options.Select(InstancesOf(options)));
  }
  return kExitFine;
}

}  // namespace
}  // namespace contraflow

int main(int argc, char** argv) {
  contraflow::Options options{{.budget = 5}};
  return contraflow::RunTool(
      "bench_search", "How good searched schedules are, and how long the search takes.", argc, argv,
      [&](CLI::App* app) {
        contraflow::Require(contraflow::AddChoice(
            app, "SUITE", &options.suite, "linear|v|bidirectional|real|speed",
            "which instances; real: those of COSTS; speed: times evaluation only"));
        contraflow::AddTexts(app, "COSTS", &options.files, "for real: cost files or profiles");
        contraflow::AddBudget(app, &options);
        contraflow::AddSelection(app, &options);
      },
      [&] { return contraflow::Main(options); });
}
