#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "compiler/plan/plan.h"
#include "compiler/plan/spec.h"
#include "schedules/partition/partition.h"
#include "schedules/partition/stages.h"
#include "schedules/published/schedule.h"

namespace contraflow {

/// Worse than that of any partition.
inline constexpr PartitionWorth kImpossible = {INT64_MAX, 0, 0};

/// How far the components of a spec's layers overlap.
Overlap OverlapOf(const Spec& spec);
/// Choice of the spec, or kAuto.
PartitionChoice ChoiceOf(const Spec& spec);
/// The partition that the spec asks for, where that leaves nothing to choose.
std::optional<Partition> FixedPartition(const Spec& spec, int stages);

/// The spec's pipeline with one stage on one rank.
Plan SingleRank(const Spec& spec);

/// Throws Error if any stages made of the layers are wrong for the spec.
void CheckStages(const Spec& spec, LayerStages* layers, int stages);

/// The costs of the stages of a partition; with their components where parts may run again.
CostModel ChunkCosts(const Spec& spec, LayerStages* layers, const Partition& partition);

/// The spec with the stages of a partition in place of the layers, on the ranks of the frame; where
/// its steps are those of components (SearchOptions::components), with these.
Spec Staged(const Spec& spec, const Plan& frame, LayerStages* layers, const Partition& partition);
/// Like Staged, whose steps are those of chunks, which take less long to find. Their components are
/// there for what runs again in parts.
Spec StagedChunks(const Spec& spec, const Plan& frame, LayerStages* layers,
                  const Partition& partition);

/// Returns the bytes that each rank holds at most, all counted.
std::vector<int64_t> TotalOfRanks(const Plan& plan, const CostModel& costs);

/// Worth of a compute order with the costs and the memory of a spec of stages. Components do not
/// count.
PartitionWorth WorthOf(const Plan& plan, const Spec& staged);

/// Orders that are evaluated in the time in which one is judged (WorthOf): a step with reductions
/// or optimizer steps is lowered to messages and simulated.
int64_t OrdersJudged(const CostModel& costs);

/// Forwards, backwards and weight gradients of a step.
int64_t InstructionsOf(const Plan& frame);

/// How many partitions into this many stages may be judged by an order, about.
int64_t MostJudged(const Spec& spec, int stages);

/// The starts, improved by `most` judgements together (ImprovePartition), and of these the best one
/// by `last`.
Partition BestFrom(const std::vector<Partition>& starts, const PartitionJudge& judge, int64_t most,
                   const PartitionJudge& last, const PartitionJudge& least = {});

}  // namespace contraflow
