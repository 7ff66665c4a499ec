// Stages that a partition makes of a spec with layers, and their worth under a given order.

#include "schedules/partition/staged.h"

#include <algorithm>
#include <utility>

#include "compiler/plan/memory_limit.h"
#include "compiler/plan/recompute_cost.h"
#include "compiler/simulate/memory.h"
#include "compiler/simulate/simulate.h"
#include "schedules/published/placement.h"
#include "schedules/search/portfolio.h"

namespace contraflow {
namespace {

/// Instructions that may be simulated to improve one partition, about.
constexpr int64_t kMostSimulated = 1'000'000;

/// Least need of each rank whatever is recomputed or offloaded, which is chosen later and may make
/// it fit: all that is fixed, and room for one activation.
std::vector<int64_t> LeastOfRanks(const Plan& plan, const CostModel& costs) {
  std::vector<int64_t> least(static_cast<size_t>(plan.ranks), 0);
  for (const Route& route : plan.routes) {
    for (int s = 0; s < plan.stages; ++s) {
      int64_t& most = least[static_cast<size_t>(route.ranks[static_cast<size_t>(s)])];
      most = std::max(most, BytesOfCell(costs, s, false).activation);
    }
  }
  const std::vector<MemoryFigures> ranks = MemoryOf(plan, costs);
  for (size_t r = 0; r < ranks.size(); ++r) least[r] += ranks[r].fixed();
  return least;
}

}  // namespace

Overlap OverlapOf(const Spec& spec) { return spec.costs.derived.value_or(Overlap::kAll); }

PartitionChoice ChoiceOf(const Spec& spec) { return spec.partition.value_or(PartitionChoice()); }

std::optional<Partition> FixedPartition(const Spec& spec, int stages) {
  using Kind = PartitionChoice::Kind;
  const PartitionChoice choice = ChoiceOf(spec);
  if (choice.kind == Kind::kList) return choice.layers;
  const int layers = spec.costs.LayerCount();
  if (choice.kind == Kind::kEven || layers == stages) return EvenPartition(layers, stages);
  return std::nullopt;
}

Plan SingleRank(const Spec& spec) {
  Spec alone = spec;
  alone.ranks = 1;
  return SingleRoutePlan(alone, LinearPlacement(1));
}

void CheckStages(const Spec& spec, LayerStages* layers, int stages) {
  CheckCosts(layers->Make(EvenPartition(layers->layers(), stages)), stages, spec.microbatches);
}

CostModel ChunkCosts(const Spec& spec, LayerStages* layers, const Partition& partition) {
  CostModel made = layers->Make(partition);
  // R of a part goes by components at every level.
  if (spec.recompute.choice != Recompute::Choice::kNone && KnowParts(spec.costs)) {
    AddComponents(*layers, partition, OverlapOf(spec), &made);
  }
  if (spec.recompute.whole_stages) made.shares.clear();
  return made;
}

Spec StagedChunks(const Spec& spec, const Plan& frame, LayerStages* layers,
                  const Partition& partition) {
  Spec staged = spec;
  staged.costs = OnRanks(ChunkCosts(spec, layers, partition), frame);
  staged.partition = {};
  staged.search.components.reset();
  return staged;
}

Spec Staged(const Spec& spec, const Plan& frame, LayerStages* layers, const Partition& partition) {
  if (!spec.search.components) return StagedChunks(spec, frame, layers, partition);
  Spec staged = spec;
  CostModel made = layers->Make(partition);
  AddComponents(*layers, partition, OverlapOf(spec), &made);
  staged.costs = OnRanks(made, frame);
  staged.partition = {};
  return staged;
}

std::vector<int64_t> TotalOfRanks(const Plan& plan, const CostModel& costs) {
  std::vector<int64_t> total;
  for (const MemoryFigures& rank : MemoryOf(plan, costs)) total.push_back(rank.total());
  return total;
}

PartitionWorth WorthOf(const Plan& plan, const Spec& staged) {
  const Simulation simulation = Simulate(plan, staged.costs, Keep::kFigures);
  PartitionWorth worth = {0, StepTime(plan, staged, simulation.makespan),
                          std::ranges::max(staged.costs.partition)};
  const bool plain = !HoldsLess(staged);
  if (const std::vector<int64_t> devices = DevicesOf(staged); !devices.empty()) {
    const std::vector<int64_t> least =
        plain ? TotalOfRanks(plan, staged.costs) : LeastOfRanks(plan, staged.costs);
    for (size_t r = 0; r < devices.size(); ++r) {
      worth.excess = std::max(worth.excess, least[r] - devices[r]);
    }
  }
  if (!staged.memory_limit || !plain) return worth;
  const MemoryLimit limit(staged.costs, staged.memory_limit);
  for (const RankFigures& rank : simulation.ranks) {
    worth.excess = std::max(worth.excess, limit.Peak(rank) - *staged.memory_limit);
  }
  return worth;
}

int64_t OrdersJudged(const CostModel& costs) { return HasEpilogue(costs) ? 6 : 3; }

int64_t InstructionsOf(const Plan& frame) { return int64_t{3} * frame.stages * frame.microbatches; }

int64_t MostJudged(const Spec& spec, int stages) {
  int64_t instructions = int64_t{3} * stages * spec.microbatches;
  // Recompute is chosen for each again.
  if (spec.recompute.choice != Recompute::Choice::kNone) instructions *= 2;
  return std::max<int64_t>(1, kMostSimulated / instructions);
}

Partition BestFrom(const std::vector<Partition>& starts, const PartitionJudge& judge, int64_t most,
                   const PartitionJudge& last, const PartitionJudge& least) {
  // The result of several starts is judged once.
  KnownWorths known;
  const auto once = [&](const Partition& partition) { return JudgeOnce(&known, partition, judge); };
  const int64_t each = std::max<int64_t>(1, most / static_cast<int64_t>(starts.size()));
  std::optional<std::pair<PartitionWorth, Partition>> best;
  for (const Partition& start : starts) {
    Partition improved = ImprovePartition(start, once, each, least);
    std::pair found(last(improved), std::move(improved));
    if (!best || found.first < best->first) best = std::move(found);
  }
  return std::move(best->second);
}

}  // namespace contraflow
