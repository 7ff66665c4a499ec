#pragma once

#include <optional>

#include "compiler/plan/plan.h"
#include "compiler/plan/spec.h"
#include "schedules/partition/layer_work.h"
#include "schedules/partition/partition.h"

namespace contraflow {

/// Least time of a message, whichever layers stages end with.
Time LeastHop(const CostModel& costs);
/// Least busy time of the compute lane for a micro-batch of a stage, with or without pairs.
Time LeastWorkOf(const StageCost& cost);
double SpeedOf(const Spec& spec, int rank);  ///< RankCost::speed
double Fastest(const Spec& spec);            ///< of all ranks
/// Least time of this much work at this speed, in this many rounded durations.
Time AtLeast(Time work, double speed, int64_t durations);
/// Most forwards that a rank can have run before its first backward, with all micro-batches of any
/// layers that a memory limit holds; nothing where it limits none.
std::optional<Time> MostForwardsHeld(const Spec& spec, const LayerStages& layers);

/// BoundOfPartitions for placements with two stages a rank, of which another bound is `least`;
/// nothing for others and for micro-batches that differ.
std::optional<PartitionBound> BoundOfPairs(const Spec& spec, LayerStages* layers, LayerWork* work,
                                           const Plan& frame, Time least, Time enough);
/// BoundOfPartitions for placements with any number of stages a rank, on one route and ranks
/// alike; nothing for others, for micro-batches that differ and for models with too many layers.
std::optional<PartitionBound> BoundOfDeep(const Spec& spec, const LayerStages& layers,
                                          LayerWork* work, const Plan& frame, Time enough);

}  // namespace contraflow
