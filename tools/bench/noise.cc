// How much lower the expected makespan under noise is of an order that is chosen against it than of
// the first order found, of the same makespan without noise: by ranks and memory, over the linear
// instances. Figures, no thresholds.
//
//   bench_noise [OPTIONS]
//
//   --budget S      seconds of search for each instance, and of search against noise (default 1)
//   --seed N        of the search (default 0)
//   --ranks MOST    leaves out larger instances
//   --only TEXT     leaves out those that have the text neither in their class nor in their name
//   --part I/N      only the instances I, I+N, I+2N, ...
//   --each          a line for each instance
//
// The draws that the figures are of served no search. "same": how often no better order was found.

#include "schedules/local/noise.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/bound/bound.h"
#include "compiler/plan/error.h"
#include "schedules/search/search.h"
#include "tools/bench/cpu_time.h"
#include "tools/bench/instances.h"
#include "tools/contraflow/exit.h"

namespace contraflow {
namespace {

constexpr double kSigma = 0.1;
/// Far from the seeds of the draws that a search looks at.
constexpr uint64_t kSeed = 9'000'000;
constexpr int kDraws = 60;

struct Options {
  double budget = 1;
  uint64_t seed = 0;
  int ranks = 16;
  std::string only;
  size_t part = 0, parts = 1;
  bool each = false;
};

double Percent(Time value, Time of) {
  return 100 * static_cast<double>(value - of) / static_cast<double>(of);
}

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
  SearchOptions search;
  search.budget = static_cast<int64_t>(options.budget * 1e9);
  search.seed = options.seed;
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

[[noreturn]] void Usage(const std::string& problem) {
  throw UsageError(problem +
                   "; usage: bench_noise [--budget S] [--seed N] [--ranks MOST] [--only TEXT] "
                   "[--part I/N] [--each]");
}

Options Parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const bool more = i + 1 < argc;
    if (word == "--each") {
      options.each = true;
    } else if (word == "--budget" && more) {
      options.budget = std::atof(argv[++i]);
    } else if (word == "--seed" && more) {
      options.seed = std::strtoull(argv[++i], nullptr, 10);
    } else if (word == "--ranks" && more) {
      options.ranks = std::atoi(argv[++i]);
    } else if (word == "--only" && more) {
      options.only = argv[++i];
    } else if (word == "--part" && more) {
      if (std::sscanf(argv[++i], "%zu/%zu", &options.part, &options.parts) != 2 ||
          options.part >= options.parts) {
        Usage("--part takes I/N, I from 0 to N-1");
      }
    } else {
      Usage("unknown option " + std::string(word));
    }
  }
  return options;
}

int Main(int argc, char** argv) {
  const Options options = Parse(argc, argv);
  std::map<std::string, Row> rows;
  Row all;
  const std::vector<BenchInstance> instances = LinearInstances(options.ranks);
  for (size_t i = options.part; i < instances.size(); i += options.parts) {
    const BenchInstance& instance = instances[i];
    if ((instance.group + " " + instance.name).find(options.only) == std::string::npos) continue;
    const Row row = Measure(instance, options);
    const std::string ranks = "P=" + std::to_string(instance.frame.ranks);
    rows[ranks].Add(row);
    rows[ranks + " " + instance.group].Add(row);
    rows[instance.group].Add(row);
    all.Add(row);
  }
  if (all.instances == 0) throw Error("no instance has \"" + options.only + "\" in its name");
  std::printf("%-16s %9s %6s %10s %10s %10s %10s %8s %8s\n", "class", "instances", "same",
              "first +", "chosen +", "lower by", "least", "mean ms", "worst ms");
  for (const auto& [name, row] : rows) Print(name, row);
  Print("all", all);
  return kExitFine;
}

}  // namespace
}  // namespace contraflow

int main(int argc, char** argv) {
  return contraflow::RunMain("bench_noise", [&] { return contraflow::Main(argc, argv); });
}
