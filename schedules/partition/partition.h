#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "compiler/plan/plan.h"
#include "schedules/partition/stages.h"
#include "schedules/published/schedule.h"
#include "schedules/search/search_control.h"

namespace contraflow {

/// The plan of a published schedule for costs of stages (PlanOfStages) or of layers, which
/// SearchControl::made, not null for these, keeps: the partition that the spec asks for, with the
/// order that the schedule then has; of a free choice the one with the shortest step. That plan
/// brings the costs of its stages (CostModel::partition). Deterministic. Throws as GeneratePlan
/// does, and if the layers cannot become this many stages (RejectPartition).
Plan PlanOfPublished(const Schedule& schedule, const Spec& spec, const SearchControl& control);

/// Throws Error if the layers cannot become this many stages.
void RequirePartition(const Schedule& schedule, const Spec& spec, int stages);

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

using KnownWorths = std::map<Partition, PartitionWorth>;
/// The worth that `known` has; else that of `judge`, which it then has.
PartitionWorth JudgeOnce(KnownWorths* known, const Partition& partition,
                         const PartitionJudge& judge);

/// Different partitions for the routes of `frame` (its programs do not matter) to begin with: the
/// one whose busiest rank, with what must come before and after its work, is done first (exact
/// where each rank has one stage of one route and the model has few enough layers, else a local
/// optimum of single layers that move); the one whose largest stage is, looked at by itself; and an
/// even one. Orders and memory limits are not looked at.
std::vector<Partition> StartingPartitions(const LayerStages& layers, const Plan& frame,
                                          const CostModel& costs);

/// Moves layers over the ends of stages as long as `judge` finds that better, and asks it at most
/// `most` times. Never worse than `start`. `least`, where given, is a quick lower bound on the
/// worth of a partition, and spares those that cannot be better.
Partition ImprovePartition(Partition start, const PartitionJudge& judge, int64_t most,
                           const PartitionJudge& least = {});

/// A lower bound, and the partition on which its argument finds no more; empty where it
/// is of no partition in particular.
struct PartitionBound {
  Time value = 0;
  Partition partition = {};
};

/// A lower bound on the makespan of every order for the routes of `frame` (its programs do not
/// matter) and every partition of the layers into its stages, within the memory of the spec. No
/// more than `enough`, beyond which nobody wants to know. A method that takes longer than `most`
/// evaluated instructions gives way to a looser bound.
PartitionBound BoundOfPartitions(const Spec& spec, LayerStages* layers, const Plan& frame,
                                 Time enough, int64_t most = INT64_MAX);

/// Instructions that may be evaluated in the time of that bound, about.
int64_t WorkOfBound(const Plan& frame, int layers, int64_t most = INT64_MAX);

/// The partition of that bound; where ranks have several stages, without a look at the memory
/// limit.
Partition BalancedPartition(const Spec& spec, LayerStages* layers, const Plan& frame, Time enough);

}  // namespace contraflow
