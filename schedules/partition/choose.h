#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "compiler/plan/plan.h"
#include "schedules/partition/stages.h"

namespace contraflow {

/// What a partition is worth: what its fullest rank holds beyond the limit, then the time of a
/// step. Less is better.
struct PartitionWorth {
  int64_t excess = 0;
  Time step = 0;

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

}  // namespace contraflow
