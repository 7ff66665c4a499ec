// How much a search over overlapped pairs gains over DualPipe and DualPipeV in the same memory, and
// how far what it finds is from the bound: with published costs at level compute, where a pair is
// one instruction, and with components that share the lanes of a rank. Figures, no thresholds.
//
//   bench_pairs COSTS.json [--budget S] [--ranks MOST] [--memory FACTOR] [--seed N]
//
// COSTS has components ("moe"). --budget: seconds of search for each figure (default 10). --memory:
// so many times the P+1 activations of DualPipe (default 1). "floor" is what no order can undercut
// (compiler/bound.h).

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/bound/bound.h"
#include "compiler/files/cost_io.h"
#include "compiler/lower/interleave.h"
#include "compiler/plan/error.h"
#include "compiler/simulate/simulate.h"
#include "schedules/pairs/lowered_search.h"
#include "schedules/registry.h"
#include "schedules/search/search.h"
#include "tools/bench/cpu_time.h"
#include "tools/contraflow/exit.h"

namespace contraflow {
namespace {

struct Options {
  std::string costs;
  double budget = 10, memory = 1;
  int ranks = 16;
  uint64_t seed = 0;
};

void Print(const Spec& spec, std::string_view level, Time published, Time found, Time floor,
           double cpu) {
  const auto percent = [](Time by, Time of) {
    return 100 * static_cast<double>(by) / static_cast<double>(of);
  };
  std::printf("%-11s %3d %4d  %-10s %12s %12s %7.2f %% %12s %7.2f %% %7.2f %% %6.1f s\n",
              spec.schedule.c_str(), spec.ranks, spec.microbatches, std::string(level).c_str(),
              FormatTime(published, spec.costs.unit).c_str(),
              FormatTime(found, spec.costs.unit).c_str(), percent(published - found, published),
              FormatTime(floor, spec.costs.unit).c_str(), percent(found - floor, floor),
              percent(published - floor, published), cpu);
  std::fflush(stdout);
}

void Measure(Spec spec, Overlap overlap, const Options& options) {
  DeriveChunkCosts(&spec.costs, overlap);
  const Plan published = GeneratePlan(spec);
  const int activations = FindSchedule(spec.schedule).peak_activations(spec, 0);
  const auto limit = static_cast<int64_t>(options.memory * activations);
  SearchOptions search;
  search.budget = static_cast<int64_t>(options.budget * 1e9);
  search.seed = options.seed;
  const double start = CpuMilliseconds();
  const Time floor = ProveBound(published, spec.costs, limit).value;
  const SearchProblem problem = MakeProblem(published, spec.costs, limit);
  const std::vector<Plan> seeds = {published};
  SearchWork work(search);
  const std::optional<SearchResult> found = Search(problem, seeds, floor, search, &work);
  CF_ASSERT(found);
  if (overlap == Overlap::kPublished) {
    return Print(spec, "compute", Simulate(published, spec.costs).makespan, found->makespan, floor,
                 (CpuMilliseconds() - start) / 1e3);
  }
  const LowerOptions lower = {
      .target = Level::kComponent, .overlap = overlap, .memory_limit = limit};
  const Plan plan = LowerShortest(ToPlan(problem, found->order), seeds, spec.costs, lower, search);
  const double cpu = (CpuMilliseconds() - start) / 1e3;
  const Plan lowered = Lower(published, spec.costs, lower);
  Print(spec, "component", Simulate(lowered, spec.costs).makespan,
        Simulate(plan, spec.costs).makespan, ProveBound(plan, spec.costs, limit).value, cpu);
}

[[noreturn]] void Usage(const std::string& problem) {
  throw UsageError(problem +
                   "; usage: bench_pairs COSTS.json [--budget S] [--ranks MOST] [--memory FACTOR] "
                   "[--seed N]");
}

Options Parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const bool more = i + 1 < argc;
    if (word == "--budget" && more) {
      options.budget = std::atof(argv[++i]);
    } else if (word == "--memory" && more) {
      options.memory = std::atof(argv[++i]);
    } else if (word == "--ranks" && more) {
      options.ranks = std::atoi(argv[++i]);
    } else if (word == "--seed" && more) {
      options.seed = static_cast<uint64_t>(std::atoll(argv[++i]));
    } else if (word.starts_with('-')) {
      Usage("unknown option " + std::string(word));
    } else if (options.costs.empty()) {
      options.costs = word;
    } else {
      Usage("unexpected " + std::string(word));
    }
  }
  if (options.costs.empty()) Usage("no costs are given");
  return options;
}

int Main(int argc, char** argv) {
  const Options options = Parse(argc, argv);
  Spec spec;
  spec.costs = ReadCostFile(options.costs);
  if (!spec.costs.moe) throw Error(options.costs + " has no components (\"moe\")");
  // Memory is counted in activations, as the papers do.
  spec.costs.memory.reset();
  std::printf("%-11s %3s %4s  %-10s %12s %12s %9s %12s %9s %9s %8s\n", "schedule", "P", "M",
              "level", "published", "found", "gain", "floor", "gap", "most gain", "CPU");
  for (const Overlap overlap : {Overlap::kPublished, Overlap::kAll}) {
    for (const std::string_view schedule : {"dualpipe", "dualpipe-v"}) {
      for (const int ranks : {8, 16}) {
        for (const int times : {2, 4, 8}) {
          if (ranks > options.ranks) continue;
          spec.schedule = schedule;
          spec.ranks = ranks;
          spec.microbatches = times * ranks;
          Measure(spec, overlap, options);
        }
      }
    }
  }
  return kExitFine;
}

}  // namespace
}  // namespace contraflow

int main(int argc, char** argv) {
  return contraflow::RunMain("bench_pairs", [&] { return contraflow::Main(argc, argv); });
}
