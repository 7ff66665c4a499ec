// How much lower the expected makespan under noise is of an order that is chosen against it than of
// the first order found, of the same makespan without noise: by ranks and memory, over the linear
// instances. The figures are of draws that served no search, in percent of the makespan without
// noise. "same" counts instances for which no better order was found.

#include "schedules/local/noise.h"

#include <optional>

#include "compiler/bound/bound.h"
#include "compiler/plan/error.h"
#include "schedules/auto/search.h"
#include "schedules/search/search.h"
#include "tools/bench/bench.h"

namespace contraflow {
namespace {

constexpr double kSigma = 0.1;
/// Far from the seeds of the draws that a search looks at.
constexpr uint64_t kSeed = 9'000'000;
constexpr int kDraws = 60;

void Measure(const BenchInstance& instance, SearchOptions search, BenchTable* table) {
  const SearchProblem problem = MakeProblem(instance.frame, instance.costs, instance.limit);
  const std::vector<Plan> seeds = instance.Seeds();
  const Time bound = ProveBound(instance.frame, instance.costs, instance.limit).value;
  SearchWork work(search);
  const std::optional<SearchResult> first = Search(problem, seeds, bound, search, &work);
  if (!first) throw Error(instance.name + ": nothing fits");
  search.noise = kSigma;
  SearchWork more(search);
  SearchResult chosen = *first;
  const double start = CpuMilliseconds();
  LowerExpected(problem, seeds, search, &more, &chosen);
  const double cpu = CpuMilliseconds() - start;
  if (Evaluate(problem, chosen.order).makespan != first->makespan) {
    throw Error(instance.name + ": the chosen order is not as long as the first");
  }
  const Time of_first = ExpectedMakespan(problem, first->order, kSigma, kSeed, kDraws);
  const Time of_chosen = ExpectedMakespan(problem, chosen.order, kSigma, kSeed, kDraws);
  const std::string ranks = "P=" + std::to_string(instance.frame.ranks);
  table->Add({ranks, ranks + " " + instance.group, instance.group, "all"},
             instance.group + "  " + instance.name,
             {first->order == chosen.order ? 1.0 : 0.0, Percent(of_first, first->makespan),
              Percent(of_chosen, first->makespan), -Percent(of_chosen, of_first), cpu},
             chosen.from);
}

}  // namespace

void RunNoise(const BenchOptions& options, std::string_view /*suite*/) {
  using Shows = BenchColumn::Shows;
  BenchTable table({{"same", 0, Shows::kSum},
                    {"first +%", 3},
                    {"chosen +%", 3},
                    {"lower by %", 3, Shows::kMeanAndLeast},
                    {"CPU ms", 0, Shows::kMeanAndMost}},
                   options.each);
  for (const BenchInstance& instance : Instances(options, "linear")) {
    Measure(instance, options.search(1), &table);
  }
  table.PrintClasses();
}

}  // namespace contraflow
