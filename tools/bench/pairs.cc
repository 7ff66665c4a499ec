// How much a search over overlapped pairs gains over DualPipe and DualPipeV in the same memory, and
// how far its plan is from the bound: with published costs at level compute, where a pair is one
// instruction, and with components that share the lanes of a rank. No order undercuts the floor
// (compiler/bound/bound.h).

#include <algorithm>

#include "compiler/bound/bound.h"
#include "compiler/files/profiles.h"
#include "compiler/lower/interleave.h"
#include "compiler/lower/lower.h"
#include "compiler/plan/error.h"
#include "compiler/simulate/simulate.h"
#include "schedules/auto/search.h"
#include "schedules/registry.h"
#include "schedules/search/search.h"
#include "tools/bench/bench.h"

namespace contraflow {
namespace {

void Measure(Spec spec, Overlap overlap, const BenchOptions& options, BenchTable* table) {
  DeriveChunkCosts(&spec.costs, overlap);
  const Plan published = GeneratePlan(spec);
  const int activations = FindSchedule(spec.schedule).peak_activations(spec, 0);
  const auto limit = static_cast<int64_t>(options.memory.value_or(1) * activations);
  const SearchOptions search = options.search(10);
  const double start = CpuMilliseconds();
  const Time floor = ProveBound(published, spec.costs, limit).value;
  const SearchProblem problem = MakeProblem(published, spec.costs, limit);
  const std::vector<Plan> seeds = {published};
  SearchWork work(search);
  const std::optional<SearchResult> found = Search(problem, seeds, floor, search, &work);
  CF_ASSERT(found);
  const auto add = [&](const char* level, Time before, Time after, Time bound) {
    const auto time = [&](Time ticks) { return FromTicks(ticks, spec.costs.unit); };
    table->Add({},
               spec.schedule + " P=" + std::to_string(spec.ranks) +
                   " M=" + std::to_string(spec.microbatches) + " " + level,
               {time(before), time(after), -Percent(after, before), time(bound),
                Percent(after, bound), -Percent(bound, before), (CpuMilliseconds() - start) / 1e3});
  };
  if (overlap == Overlap::kPublished) {
    add("compute", Simulate(published, spec.costs).makespan, found->makespan, floor);
    return;
  }
  const LowerOptions lower = {
      .target = Level::kComponent,
      .overlap = overlap,
      .limits = std::vector<int64_t>(static_cast<size_t>(spec.ranks), limit)};
  const Plan plan = Lower(ToPlan(problem, found->order), spec.costs, lower);
  const Time before = Simulate(Lower(published, spec.costs, lower), spec.costs).makespan;
  // `auto` takes the published order where that is shorter as components.
  add("component", before, std::min(before, Simulate(plan, spec.costs).makespan),
      ProveBound(plan, spec.costs, limit).value);
}

}  // namespace

void RunPairs(const BenchOptions& options, std::string_view /*suite*/) {
  const std::string costs = options.costs.empty() ? "deepseek-v3-h800" : options.costs.front();
  Spec spec;
  spec.costs = ReadCostsOrProfile(costs);
  if (!spec.costs.moe) throw Error(costs + " has no components (\"moe\")");
  // Memory is counted in activations, as the papers do.
  spec.costs.memory.reset();
  BenchTable table({{"published", 0},
                    {"found", 0},
                    {"gain %"},
                    {"floor", 0},
                    {"gap %"},
                    {"most gain %"},
                    {"CPU s", 1}},
                   true);
  for (const Overlap overlap : {Overlap::kPublished, Overlap::kAll}) {
    for (const char* const schedule : {"dualpipe", "dualpipe-v"}) {
      for (const int ranks : {8, 16}) {
        for (const int times : {2, 4, 8}) {
          if (ranks > options.ranks) continue;
          spec.schedule = schedule;
          spec.ranks = ranks;
          spec.microbatches = times * ranks;
          Measure(spec, overlap, options, &table);
        }
      }
    }
  }
}

}  // namespace contraflow
