// Memory bought with time: the gap at half of 1F1B's memory, with nothing, with recompute, with the
// host's memory, and with both, in percent above the bound for any memory, in which nobody pays for
// it. "of offload" is the gap to the bound of plans that offload.

#include <optional>
#include <utility>

#include "compiler/bound/bound.h"
#include "compiler/plan/error.h"
#include "compiler/plan/memory_limit.h"
#include "compiler/simulate/simulate.h"
#include "compiler/verify/verify.h"
#include "schedules/compile.h"
#include "schedules/registry.h"
#include "tools/bench/bench.h"

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
            Spec spec = BenchSpec("auto", ranks, rounds * ranks, std::move(costs));
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

/// In percent, above the bound for any memory and above that of plans that offload; nothing if no
/// plan fits.
std::optional<std::pair<double, double>> GapsOf(const Spec& spec) {
  try {
    const Plan plan = Compile(spec);
    const Simulation run = Simulate(plan, *plan.costs);
    if (!Verify(plan).empty() || !MemoryLimit(*plan.costs, spec.memory_limit).Fits(run)) {
      throw InternalError("internal error: a plan of " + spec.schedule + " does not hold");
    }
    const auto above = [&](std::optional<int64_t> limit) {
      return Percent(run.makespan, BoundOfOffloaded(plan, *plan.costs, limit).value);
    };
    return std::pair(above(std::nullopt), above(spec.memory_limit));
  } catch (const InternalError&) {
    throw;
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

void RunOffload(const BenchOptions& options, std::string_view /*suite*/) {
  constexpr size_t kLayersOfRank = 8;
  const Recompute recompute = {.choice = Recompute::Choice::kAuto};
  const Offload offload = {.choice = Offload::Choice::kAuto};
  const struct {
    Recompute recompute;
    Offload offload;
    bool layers = false;  ///< those of a rank are known, and need not all run again
  } ways[] = {
      {{}, {}}, {recompute, {}}, {recompute, {}, true}, {{}, offload}, {recompute, offload}};
  constexpr size_t kOffloads = 3;  // the first way that does
  constexpr auto kMost = BenchColumn::Shows::kMeanAndMost;
  BenchTable table({{"nothing", 2, kMost},
                    {"recompute", 2, kMost},
                    {"layers", 2, kMost},
                    {"offload", 2, kMost},
                    {"both", 2, kMost},
                    {"offload of offload", 2, kMost},
                    {"both of offload", 2, kMost}},
                   options.each);
  for (const Case& one : Cases(std::min(options.ranks, 8))) {
    if (!options.Takes(one.name)) continue;
    std::vector<double> gaps(std::size(ways) + 2, kNoFigure);
    for (size_t k = 0; k < std::size(ways); ++k) {
      Spec spec = one.spec;
      spec.search = options.search(0.2);
      spec.search.placement = one.spec.search.placement;
      spec.recompute = ways[k].recompute;
      spec.offload = ways[k].offload;
      if (ways[k].layers) spec.costs.shares = {std::vector<LayerShare>(kLayersOfRank)};
      const auto found = GapsOf(spec);
      if (!found) continue;
      gaps[k] = found->first;
      if (k >= kOffloads) gaps[k + 2] = found->second;
    }
    table.Add({std::string(Name(one.spec.search.placement))}, one.name, gaps);
  }
  table.PrintClasses();
}

}  // namespace contraflow
