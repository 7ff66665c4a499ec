#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "compiler/plan/plan.h"
#include "schedules/partition/stages.h"
#include "schedules/registry.h"

namespace contraflow {

/// The plan of a spec whose costs have layers: the partition that the spec asks for, with the order
/// that the schedule then has. The plan brings the costs of its stages (CostModel::partition).
/// Choice::kAuto takes the partition with the shortest step that is found; `auto` looks for both in
/// turn, over all placements and up to 8 stages a rank. SearchControl::made is not null.
/// Deterministic. Throws as GeneratePlan does, and if the layers cannot become so many stages
/// (RejectPartition).
Plan GenerateFromLayers(const Schedule& schedule, const Spec& spec, const SearchControl& control);

/// Throws Error if the devices together have no room for what every partition of `auto` holds: the
/// parameters and their states, once, and one micro-batch unless that is recomputed or offloaded.
void CheckDevicesForLayers(const Spec& spec, const SearchControl& control);

/// Makes the bound in the provenance of a plan that was made of the layers of the spec one that
/// holds for any partition (BoundOfPartitions).
void CoverPartitions(const Spec& spec, const SearchControl& control, Plan* plan);

/// Worth of a partition: the excess of its fullest rank over the limit, then the time of a step,
/// then, where these are equal, how many layers its largest stage has. Less is better.
struct PartitionWorth {
  int64_t excess = 0;
  Time step = 0;
  int largest = 0;

  auto operator<=>(const PartitionWorth&) const = default;
};
using PartitionJudge = std::function<PartitionWorth(const Partition&)>;

/// Different partitions for the routes of `frame` (its programs do not matter) to begin with: the
/// one whose busiest rank, with what must come before and behind its work, is done first (exact
/// where each rank has one stage of one route and the model has few enough layers, else a local
/// optimum of single layers that move); the one whose largest stage is, looked at by itself; and an
/// even one. Orders and memory limits are not looked at.
std::vector<Partition> StartingPartitions(const LayerStages& layers, const Plan& frame,
                                          const CostModel& costs);

/// Moves layers over the ends of stages as long as `judge` finds that better, and asks it at most
/// `most` times. Never worse than `start`.
Partition ImprovePartition(Partition start, const PartitionJudge& judge, int64_t most);

/// A lower bound, and the partition on which the argument behind it finds no more; empty where it
/// is of no partition in particular.
struct PartitionBound {
  Time value = 0;
  Partition partition = {};
};

/// A lower bound on the makespan of every order for the routes of `frame` (its programs do not
/// matter) and every partition of the layers into its stages, within the memory of the spec. No
/// more than `enough`, beyond which nobody wants to know.
PartitionBound BoundOfPartitions(const Spec& spec, LayerStages* layers, const Plan& frame,
                                 Time enough);

/// The partition of that bound; where ranks have several stages, without a look at the memory
/// limit.
Partition BalancedPartition(const Spec& spec, LayerStages* layers, const Plan& frame, Time enough);

/// A plan that was searched, and how long its step takes.
struct FoundPlan {
  Plan plan;
  Time step = 0;
};

/// The shortest step that is found for a spec with layers, partition and order, in any of some
/// shapes: the same spec, each with a placement that is no choice and so many chunks
/// (Spec::chunks). Of equals the first. Each takes about the budget of the spec, but for those
/// whose bound for any partition is no shorter than what is found. Throws Error if nothing fits.
FoundPlan SearchShapes(const std::vector<Spec>& shapes, const SearchControl& control);

}  // namespace contraflow
