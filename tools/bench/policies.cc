// List scheduling at scale: CPU time from a placement to its plan and its bound, and how the time
// grows with the number of instructions.
//
// P = 64 to 1024 ranks with 4 P micro-batches each, at the costs of the 14.6B model of "Zero Bubble
// Pipeline Parallelism" (ICLR 2024), table 6.

#include <cstdio>
#include <optional>
#include <utility>

#include "compiler/bound/bound.h"
#include "compiler/plan/error.h"
#include "schedules/published/placement.h"
#include "schedules/search/search.h"
#include "tools/bench/bench.h"
#include "tools/cli/exit.h"

namespace contraflow {
namespace {

/// Instructions and milliseconds.
std::pair<double, double> Measure(const std::string& placement, int ranks, double memory,
                                  BenchTable* table) {
  const int share = placement == "v" ? 2 : 1;
  CostModel costs =
      UniformCosts(11'347'000 / share, 11'248'000 / share, 8'132'000 / share, 377'000);
  costs.memory = MemoryCost{.activation_bytes = 2312, .w_stash_bytes = 1000};
  const Spec spec = BenchSpec(placement, ranks, 4 * ranks, {});
  const bool both = placement == "bidirectional";
  Plan frame = both
                   ? BidirectionalPlan(spec)
                   : SingleRoutePlan(spec, share == 2 ? VPlacement(ranks) : LinearPlacement(ranks));
  const int activations = both ? ranks + 1 : share * ranks;
  const auto limit = static_cast<int64_t>(memory * activations * 2312);
  SearchOptions options;
  options.budget = 10'000'000'000;
  SearchWork work(options);
  const double start = CpuMilliseconds();
  const Bound bound = ProveBound(frame, costs, limit);
  const double proven = CpuMilliseconds();
  const SearchProblem problem = MakeProblem(std::move(frame), costs, limit);
  const std::optional<SearchResult> found = SearchPolicies(problem, bound.value, &work);
  const double searched = CpuMilliseconds();
  if (!found) throw Error("no policy ends within the limit");
  const Plan plan = ToPlan(problem, found->order);
  const double end = CpuMilliseconds();
  const double instructions = static_cast<double>(InstructionCount(plan));
  table->Add({}, placement + " P=" + std::to_string(ranks) + " M=" + std::to_string(4 * ranks),
             {instructions, proven - start, searched - proven, end - searched, end - start,
              Percent(found->makespan, bound.value)},
             found->from);
  return {instructions, end - start};
}

}  // namespace

void RunPolicies(const BenchOptions& options, std::string_view /*suite*/) {
  const double memory = options.memory.value_or(1);
  if (!(memory > 0)) throw UsageError("--memory: must be above 0");
  BenchTable table({{"instructions", 0},
                    {"bound ms", 0},
                    {"search ms", 0},
                    {"plan ms", 0},
                    {"all ms", 0},
                    {"gap %", 4}},
                   true);
  for (const char* const placement : {"linear", "v", "bidirectional"}) {
    if (!options.Takes(placement)) continue;
    std::vector<std::pair<double, double>> points;
    for (int ranks = 64; ranks <= 1024; ranks *= 2) {
      points.push_back(Measure(placement, ranks, memory, &table));
    }
    std::printf("time grows with instructions to the power of %.3f\n", Exponent(points));
  }
}

}  // namespace contraflow
