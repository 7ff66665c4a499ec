// How much a search over overlapped pairs gains over DualPipe and DualPipeV in the same memory, and
// how far what it finds is from the bound: with published costs at level compute, where a pair is
// one instruction, and with components that share the lanes of a rank. Figures, no thresholds.
//
// "floor" is what no order can undercut
// (compiler/bound.h).

#include <cstdio>
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
#include "tools/bench/bench.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"

namespace contraflow {
namespace {

struct Options : BenchOptions {
  std::string costs = {};
  double memory = 1;
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
  const SearchOptions search = options.search();
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

int Main(const Options& options) {
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
  contraflow::Options options{{.budget = 10}};
  return contraflow::RunTool(
      "bench_pairs", "How much a search over overlapped pairs gains over DualPipe and DualPipeV.",
      argc, argv,
      [&](CLI::App* app) {
        contraflow::Require(
            contraflow::AddText(app, "COSTS", &options.costs, "", "a cost file with \"moe\""));
        contraflow::AddBudget(app, &options);
        contraflow::AddInteger(app, "--ranks", &options.ranks, "MOST", "8 or 16 (default: 16)");
        contraflow::AddNumber(
            app, "--memory", &options.memory, "FACTOR",
            "memory limit: FACTOR times the P+1 activations of DualPipe\n(default: 1)");
      },
      [&] { return contraflow::Main(options); });
}
