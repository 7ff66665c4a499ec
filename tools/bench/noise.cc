// How much lower the expected makespan under noise is of an order that is chosen against it than of
// the first order found, of the same makespan without noise: by ranks and memory, over the linear
// instances. Figures, no thresholds.
// The draws that the figures are of served no search. "same": how often no better order was found.

#include "schedules/local/noise.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "compiler/bound/bound.h"
#include "compiler/plan/error.h"
#include "schedules/search/search.h"
#include "tools/bench/bench.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"

namespace contraflow {
namespace {

constexpr double kSigma = 0.1;
/// Far from the seeds of the draws that a search looks at.
constexpr uint64_t kSeed = 9'000'000;
constexpr int kDraws = 60;

struct Options : BenchOptions {
  std::string part = "0/1";
};

/// Sums over instances; the percentages are of the makespan without noise.
struct Row {
  int instances = 0, same = 0;
  double first = 0, chosen = 0, gain = 0, least = 0, cpu = 0, worst_cpu = 0;

  void Add(const Row& other) {
    least = instances == 0 ? other.least : std::min(least, other.least);
    instances += other.instances;
    same += other.same;
    first += other.first;
    chosen += other.chosen;
    gain += other.gain;
    cpu += other.cpu;
    worst_cpu = std::max(worst_cpu, other.worst_cpu);
  }
};

Row Measure(const BenchInstance& instance, const Options& options) {
  const SearchProblem problem = MakeProblem(instance.frame, instance.costs, instance.limit);
  const Time bound = ProveBound(instance.frame, instance.costs, instance.limit).value;
  SearchOptions search = options.search();
  SearchWork work(search);
  const std::optional<SearchResult> first = Search(problem, instance.seeds, bound, search, &work);
  if (!first) throw Error(instance.name + ": nothing fits");
  search.noise = kSigma;
  SearchWork more(search);
  SearchResult chosen = *first;
  const double start = CpuMilliseconds();
  LowerExpected(problem, instance.seeds, search, &more, &chosen);
  Row row;
  row.instances = 1;
  row.cpu = row.worst_cpu = CpuMilliseconds() - start;
  if (Evaluate(problem, chosen.order).makespan != first->makespan) {
    throw Error(instance.name + ": the chosen order is not as long as the first");
  }
  const Time of_first = ExpectedMakespan(problem, first->order, kSigma, kSeed, kDraws);
  const Time of_chosen = ExpectedMakespan(problem, chosen.order, kSigma, kSeed, kDraws);
  row.first = Percent(of_first, first->makespan);
  row.chosen = Percent(of_chosen, first->makespan);
  row.same = first->order == chosen.order;
  row.gain = row.least = -Percent(of_chosen, of_first);
  if (options.each) {
    std::printf("%-12s %-18s %7.3f %% %7.3f %%  gain %7.3f %%  %6.0f ms  %s\n",
                instance.group.c_str(), instance.name.c_str(), row.first, row.chosen, row.gain,
                row.cpu, chosen.from.c_str());
    std::fflush(stdout);
  }
  return row;
}

void Print(const std::string& name, const Row& row) {
  const double n = row.instances;
  std::printf("%-16s %9d %6d %8.3f %% %8.3f %% %8.3f %% %8.3f %% %8.0f %8.0f\n", name.c_str(),
              row.instances, row.same, row.first / n, row.chosen / n, row.gain / n, row.least,
              row.cpu / n, row.worst_cpu);
}

int Main(const Options& options) {
  size_t part = 0, parts = 0;
  if (std::sscanf(options.part.c_str(), "%zu/%zu", &part, &parts) != 2 || part >= parts) {
    throw UsageError("--part: must be I/N, I from 0 to N-1, is \"" + options.part + "\"");
  }
  std::map<std::string, Row> rows;
  Row all;
  const std::vector<BenchInstance> instances = options.Select(LinearInstances(options.ranks));
  for (size_t i = part; i < instances.size(); i += parts) {
    const BenchInstance& instance = instances[i];
    const Row row = Measure(instance, options);
    const std::string ranks = "P=" + std::to_string(instance.frame.ranks);
    rows[ranks].Add(row);
    rows[ranks + " " + instance.group].Add(row);
    rows[instance.group].Add(row);
    all.Add(row);
  }
  std::printf("%-16s %9s %6s %10s %10s %10s %10s %8s %8s\n", "class", "instances", "same",
              "first +", "chosen +", "lower by", "least", "mean ms", "worst ms");
  for (const auto& [name, row] : rows) Print(name, row);
  Print("all", all);
  return kExitFine;
}

}  // namespace
}  // namespace contraflow

int main(int argc, char** argv) {
  contraflow::Options options;
  return contraflow::RunTool(
      "bench_noise", "How much an order that is chosen against noise gains under it.", argc, argv,
      [&](CLI::App* app) {
        contraflow::AddBudget(app, &options);
        contraflow::AddSelection(app, &options);
        contraflow::AddText(app, "--part", &options.part, "I/N",
                            "only the instances I, I+N, I+2N, ... (default: 0/1)");
      },
      [&] { return contraflow::Main(options); });
}
