// List scheduling at scale: user CPU time from a placement to its plan and its bound, and how the
// time grows with the number of instructions. Figures, no thresholds.
//
// P = 64, 128, 256, 512 and 1024 ranks with 4 P micro-batches each, at the costs of the 14.6B model
// of "Zero Bubble Pipeline Parallelism" (ICLR 2024), table 6. MEMORY: times that of 1F1B (default
// 1).

#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compiler/bound/bound.h"
#include "compiler/plan/error.h"
#include "schedules/published/placement.h"
#include "schedules/search/search.h"
#include "tools/bench/bench.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"

namespace contraflow {
namespace {

/// Instructions and milliseconds.
std::pair<double, double> Measure(const std::string& placement, int ranks, double memory) {
  const int share = placement == "v" ? 2 : 1;
  CostModel costs =
      UniformCosts(11'347'000 / share, 11'248'000 / share, 8'132'000 / share, 377'000);
  costs.memory = MemoryCost{.activation_bytes = 2312, .w_stash_bytes = 1000};
  Spec spec;
  spec.schedule = placement;
  spec.ranks = ranks;
  spec.microbatches = 4 * ranks;
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
  std::printf(
      "%6d %8d %12.0f %9.0f %9.0f %9.0f %9.0f %9.4f %%  %s\n", ranks, 4 * ranks, instructions,
      proven - start, searched - proven, end - searched, end - start,
      100 * static_cast<double>(found->makespan - bound.value) / static_cast<double>(bound.value),
      found->from.c_str());
  std::fflush(stdout);
  return {instructions, end - start};
}

int Main(const std::string& placement, double memory) {
  if (!(memory > 0)) throw Error("MEMORY must be above 0");
  std::printf("%6s %8s %12s %9s %9s %9s %9s %11s\n", "ranks", "micro", "instructions", "bound ms",
              "search ms", "plan ms", "all ms", "gap");
  std::vector<std::pair<double, double>> points;
  for (int ranks = 64; ranks <= 1024; ranks *= 2) {
    points.push_back(Measure(placement, ranks, memory));
  }
  std::printf("time grows with instructions to the power of %.3f\n", Exponent(points));
  return kExitFine;
}

}  // namespace
}  // namespace contraflow

int main(int argc, char** argv) {
  std::string placement = "linear";
  double memory = 1;
  return contraflow::RunTool(
      "bench_policies",
      "List scheduling at scale: CPU time from a placement to its plan and bound.", argc, argv,
      [&](CLI::App* app) {
        contraflow::AddChoice(app, "PLACEMENT", &placement, "linear|v|bidirectional",
                              "default: linear");
        contraflow::AddNumber(app, "MEMORY", &memory, "",
                              "memory limit, in multiples of 1F1B's (default: 1)");
      },
      [&] { return contraflow::Main(placement, memory); });
}
