// How good searched schedules are and how long they take: for each class of instances how many were
// proven optimal, how far the others are from their bound, the gain over published schedules of the
// same placement and memory, and CPU time.
//
// A gain is given twice: over the best schedule of the table, which may follow costs, and over the
// order of the class's published schedule as it is at unit cost. "At most" is the gain of a
// schedule as long as the bound. A loss is an instance that is longer than either of the two.

#include "schedules/auto/search.h"

#include <algorithm>
#include <array>
#include <optional>
#include <random>

#include "compiler/bound/bound.h"
#include "schedules/local/order_graph.h"
#include "schedules/registry.h"
#include "schedules/search/evaluator.h"
#include "schedules/search/search.h"
#include "tools/bench/bench.h"

namespace contraflow {
namespace {

/// The makespan of the shortest seed that fits.
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

void Measure(const BenchInstance& instance, const BenchOptions& options, BenchTable* table) {
  const SearchProblem problem = MakeProblem(instance.frame, instance.costs, instance.limit);
  const std::vector<Plan> seeds = instance.Seeds();
  const SearchOptions search = options.search(5);
  const double start = CpuMilliseconds();
  const Time bound = ProveBound(instance.frame, instance.costs, instance.limit).value;
  SearchWork work(search);
  const std::optional<SearchResult> found = Search(problem, seeds, bound, search, &work);
  const double cpu = CpuMilliseconds() - start;
  std::vector<double> figures = {found ? 0.0 : 1.0, kNoFigure, kNoFigure, kNoFigure, kNoFigure,
                                 kNoFigure,         kNoFigure, 0,         cpu};
  if (found) {
    figures[1] = found->makespan == bound ? 1 : 0;
    figures[2] = Percent(found->makespan, bound);
    const std::array others = {BestOf(problem, seeds), BestOf(problem, instance.Published())};
    for (size_t i = 0; i < others.size(); ++i) {
      if (!others[i]) continue;
      figures[3 + 2 * i] = -Percent(found->makespan, *others[i]);
      figures[4 + 2 * i] = -Percent(bound, *others[i]);
      figures[7] += found->makespan > *others[i];
    }
  }
  table->Add({instance.group, "all"}, instance.group + "  " + instance.name, figures,
             found ? found->from : "nothing fits");
}

}  // namespace

void RunSearch(const BenchOptions& options, std::string_view suite) {
  using Shows = BenchColumn::Shows;
  BenchTable table({{"unsolved", 0, Shows::kSum},
                    {"proven", 0, Shows::kSum},
                    {"gap %", 4, Shows::kMeanAndMost},
                    {"gain %"},
                    {"at most"},
                    {"published %"},
                    {"at most"},
                    {"losses", 0, Shows::kSum},
                    {"CPU ms", 0, Shows::kMeanAndMost}},
                   options.each);
  for (const BenchInstance& instance : Instances(options, suite)) {
    Measure(instance, options, &table);
  }
  table.PrintClasses();
}

void RunSpeed(const BenchOptions& /*options*/, std::string_view /*suite*/) {
  constexpr int kRuns = 2000, kMoves = 2'000'000;
  BenchTable table(
      {{"actions", 0}, {"evaluated/s", 0}, {"Mactions/s", 1}, {"moved/s", 0}, {"ratio", 1}}, true);
  for (const int microbatches : {13, 26, 52, 104}) {
    const CostModel costs = UniformCosts(1000, 1400, 600, 50);
    const Plan plan = GeneratePlan(BenchSpec("zb-v", 16, microbatches, costs));
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
    table.Add({}, "zb-v P=16 M=" + std::to_string(microbatches),
              {actions, 1e3 / whole, actions / whole / 1e3, 1e3 / each, whole / each});
  }
}

}  // namespace contraflow
