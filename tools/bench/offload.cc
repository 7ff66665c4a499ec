// Memory bought with time: the gap at half of 1F1B's memory, with nothing, with recompute, with the
// host's memory, and with both. Nobody pays for memory in the first bound; what stays on the device
// under the limit whatever is offloaded is in the second.

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "compiler/bound/bound.h"
#include "compiler/plan/error.h"
#include "compiler/plan/memory_limit.h"
#include "compiler/simulate/simulate.h"
#include "compiler/verify/verify.h"
#include "schedules/compile.h"
#include "schedules/registry.h"
#include "tools/bench/bench.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"

namespace contraflow {
namespace {

struct Case {
  std::string name;
  Spec spec;
};

/// Three sets of costs of a stage: all alike, and those of the first two rows of Zero Bubble's
/// table 5 (arXiv 2401.10241); a copy takes half a forward or one.
std::vector<Case> Cases(int most_ranks) {
  const int64_t stage_costs[][3] = {{100, 100, 100}, {185, 184, 93}, {295, 288, 202}};
  std::vector<Case> cases;
  for (const Placement placement : {Placement::kLinear, Placement::kV}) {
    for (int ranks = 4; ranks <= most_ranks; ranks *= 2) {
      for (const int rounds : {2, 4}) {
        for (const auto& [f, b, w] : stage_costs) {
          for (const int copies : {2, 1}) {
            CostModel costs = UniformCosts(f, b, w, f / 20);
            costs.memory =
                MemoryCost{.activation_bytes = 1000, .w_stash_bytes = 450, .input_bytes = 60};
            costs.host =
                HostCost{.latency = 0, .bandwidth = 1000.0 * copies / FromTicks(f, costs.unit)};
            Spec spec = {.schedule = "auto",
                         .ranks = ranks,
                         .microbatches = rounds * ranks,
                         .costs = std::move(costs),
                         .memory_limit = {}};
            spec.search.placement = placement;
            spec.memory_limit = int64_t{500} * ranks;
            cases.push_back({std::string(Name(placement)) + " P=" + std::to_string(ranks) +
                                 " M=" + std::to_string(spec.microbatches) +
                                 " f=" + std::to_string(f) + " copy=f/" + std::to_string(copies),
                             std::move(spec)});
          }
        }
      }
    }
  }
  return cases;
}

struct Figure {
  int plans = 0;
  double sum = 0, worst = 0;

  void Add(double gap) {
    ++plans;
    sum += gap;
    worst = std::max(worst, gap);
  }
};

/// In percent, above the bound for any memory and above that of plans that offload.
struct Gap {
  double unlimited, offloaded;
};

/// Nothing if nothing fits.
std::optional<Gap> GapOf(const Spec& spec) {
  try {
    const Plan plan = Compile(spec);
    const Simulation run = Simulate(plan, *plan.costs);
    if (!Verify(plan).empty() || !MemoryLimit(*plan.costs, spec.memory_limit).Fits(run)) {
      throw InternalError("internal error: a plan of " + spec.schedule + " does not hold");
    }
    const auto above = [&](std::optional<int64_t> limit) {
      return Percent(run.makespan, BoundOfOffloaded(plan, *plan.costs, limit).value);
    };
    return Gap{above(std::nullopt), above(spec.memory_limit)};
  } catch (const InternalError&) {
    throw;
  } catch (const Error&) {
    return std::nullopt;
  }
}

int Main(const BenchOptions& options) {
  constexpr size_t kLayersOfRank = 8;
  const Recompute recompute = {.choice = Recompute::Choice::kAuto};
  const Offload offload = {.choice = Offload::Choice::kAuto};
  const struct {
    const char* name;
    Recompute recompute;
    Offload offload;
    bool layers = false;  ///< those of a rank are known, and need not all run again
  } ways[] = {{"nothing", {}, {}},
              {"recompute", recompute, {}},
              {"layers", recompute, {}, true},
              {"offload", {}, offload},
              {"both", recompute, offload}};
  constexpr size_t kOffloads = 3;  // the first way that does
  constexpr size_t kFigures = std::size(ways) + 2;
  std::printf("%-34s", "gap to the bound without a limit, %");
  for (const auto& way : ways) std::printf(" %10s", way.name);
  std::printf("   to the bound with offload: %s %s\n", ways[kOffloads].name,
              ways[kOffloads + 1].name);
  Figure figures[2][kFigures];
  int count = 0;
  const double start = CpuMilliseconds();
  for (Case& one : Cases(options.ranks)) {
    if (one.name.find(options.only) == std::string::npos) continue;
    ++count;
    const Placement placement = one.spec.search.placement;
    one.spec.search = options.search();
    one.spec.search.placement = placement;
    if (options.each) std::printf("%-34s", one.name.c_str());
    std::optional<double> gaps[kFigures];
    for (size_t k = 0; k < std::size(ways); ++k) {
      Spec spec = one.spec;
      spec.recompute = ways[k].recompute;
      spec.offload = ways[k].offload;
      if (ways[k].layers) spec.costs.shares = {std::vector<LayerShare>(kLayersOfRank)};
      const std::optional<Gap> gap = GapOf(spec);
      if (!gap) continue;
      gaps[k] = gap->unlimited;
      if (k >= kOffloads) gaps[k + 2] = gap->offloaded;
    }
    for (size_t k = 0; k < kFigures; ++k) {
      if (gaps[k]) figures[placement == Placement::kV ? 1 : 0][k].Add(*gaps[k]);
      if (!options.each) continue;
      gaps[k] ? std::printf(" %10.2f", *gaps[k]) : std::printf(" %10s", "-");
    }
    if (options.each) std::printf("\n");
    std::fflush(stdout);
  }
  for (const int placement : {0, 1}) {
    const std::string name = placement == 0 ? "linear" : "v";
    const auto row = [&](const char* what, const auto& value) {
      std::printf("%-34s", (name + ", " + what).c_str());
      for (const Figure& figure : figures[placement]) {
        figure.plans > 0 ? std::printf(" %10.2f", value(figure)) : std::printf(" %10s", "-");
      }
      std::printf("\n");
    };
    row("mean", [](const Figure& f) { return f.sum / f.plans; });
    row("worst", [](const Figure& f) { return f.worst; });
    row("plans", [](const Figure& f) { return static_cast<double>(f.plans); });
  }
  std::printf("%d instances, %.1f s\n", count, (CpuMilliseconds() - start) / 1000);
  return kExitFine;
}

}  // namespace
}  // namespace contraflow

int main(int argc, char** argv) {
  contraflow::BenchOptions options{.budget = 0.2, .ranks = 8};
  return contraflow::RunTool(
      "bench_offload",
      "The gap at half of 1F1B's memory with recompute, the host's memory, and both.", argc, argv,
      [&](CLI::App* app) {
        contraflow::AddBudget(app, &options);
        contraflow::AddSelection(app, &options);
      },
      [&] { return contraflow::Main(options); });
}
