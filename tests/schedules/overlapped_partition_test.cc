// Partitions under the cost after overlap: what is best for a schedule without pairs is not for one
// with them.

#include <doctest/doctest.h>

#include <cstdint>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>

#include "compiler/plan/layer_cost.h"
#include "compiler/simulate/simulate.h"
#include "compiler/verify/verify.h"
#include "schedules/compile.h"
#include "tests/support/support.h"

namespace contraflow::overlapped_partition_test {
namespace {

Time Us(Time time) { return time * TicksPerUnit(Unit::kMicroseconds); }

LayerCost Plain(const char* name, int repeat, Time f, Time b, Time w) {
  return {.name = name,
          .repeat = repeat,
          .cost = {.f = Us(f), .b = Us(b), .w = Us(w), .bw = Us(b + w), .fb = Us(f + b + w)}};
}

/// MoE layers of DeepSeek-V3 (its published trace, us) after dense ones: in a pair the all-to-alls
/// of the former are hidden, so that they weigh less against the latter.
CostModel DenseThenMoe(int moe_layers) {
  CostModel costs;
  costs.unit = Unit::kMicroseconds;
  MoeCost moe;
  moe.layers_per_stage = 1;
  const Time times[] = {4599, 6738, 4641, 8696, 5784, 5363, 7558, 9540, 5073, 2396};
  for (size_t i = 0; i < std::size(times); ++i) moe.*kComponentCosts[i].times = {Us(times[i])};
  costs.layers = {Plain("dense", 4, 9200, 14900, 7500),
                  {.name = "moe", .repeat = moe_layers, .cost = {}, .moe = moe},
                  Plain("head", 1, 8000, 8000, 8000)};
  return costs;
}

/// The step of a schedule with one stage a rank, and the partition it has.
std::pair<Time, Partition> StepOf(const char* schedule, const CostModel& costs,
                                  const std::optional<Partition>& partition) {
  Spec spec = MakeSpec(schedule, 4, 16, costs);
  spec.chunks = 1;
  spec.partition = PartitionChoice();
  if (partition) spec.partition = {PartitionChoice::Kind::kList, *partition};
  const Plan plan = Compile(spec);
  return {Simulate(plan, *plan.costs).makespan, plan.costs->partition};
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("the best partition without overlap is not the best one with it") {
    const CostModel costs = DenseThenMoe(9);
    const auto [alone, a] = StepOf("1f1b", costs, std::nullopt);
    const auto [paired, b] = StepOf("combined-1f1b", costs, std::nullopt);
    CHECK(a == Partition{5, 3, 3, 3});
    CHECK(b == Partition{4, 3, 3, 4});
    CHECK(alone == Us(3'256'259));
    CHECK(StepOf("1f1b", costs, b).first == Us(3'290'226));
    CHECK(paired == Us(2'408'841));
    CHECK(StepOf("combined-1f1b", costs, a).first == Us(2'826'601));
  }

  TEST_CASE("odd numbers of ranks and micro-batches, with budgets that go on from each other") {
    Spec spec = MakeSpec("auto", 7, 15, DenseThenMoe(21));
    spec.search.placement = Placement::kBidirectional;
    Time before = std::numeric_limits<Time>::max();
    for (const int64_t budget : {400'000'000, 1'600'000'000}) {
      spec.search.budget = budget;
      const Plan plan = Compile(spec);
      CHECK(Verify(plan).empty());
      const Time makespan = Simulate(plan, *plan.costs).makespan;
      CHECK(makespan == plan.provenance->makespan);
      CHECK(plan.provenance->from.size() <= 160);
      CHECK(makespan <= before);
      before = makespan;
    }
    // When each budget began anew, it was 2'922'229.
    CHECK(before < Us(2'800'000));
  }
}

}  // namespace contraflow::overlapped_partition_test
