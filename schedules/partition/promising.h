#pragma once

#include <map>
#include <vector>

#include "schedules/partition/partition.h"

namespace contraflow {

/// A partition and a bound on any order of its stages; 0 where none is known.
struct Chance {
  Time bound = 0;
  Partition partition;
};

/// Worth of partitions, whatever the budget.
struct Judged {
  std::map<Partition, PartitionWorth> bound, published;

  static PartitionWorth Once(std::map<Partition, PartitionWorth>* known, const Partition& partition,
                             const PartitionJudge& judge) {
    const auto [at, added] = known->try_emplace(partition);
    if (added) at->second = judge(partition);
    return at->second;
  }
};

/// Different partitions that may do best, the most promising first: the one on which published
/// orders do best, the one that the bound for any ends with, and those with the least bounds, from
/// several starts moved by single layers.
std::vector<Chance> Promising(const Spec& of, const Plan& frame, LayerStages* layers,
                              Judged* judged);

}  // namespace contraflow
