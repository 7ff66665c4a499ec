#pragma once

#include <cstdint>
#include <vector>

#include "compiler/plan.h"
#include "compiler/timeline.h"

namespace contraflow {

/// A moment of the whole pipeline: when, and of what happens at that time which first.
struct Moment {
  Time time = 0;
  int64_t number = 0;

  auto operator<=>(const Moment&) const = default;
};

/// When each compute instruction of a compute-level plan begins, as moments of one global order: by
/// simulated start time, and where times tie (instructions may take no time at all) in an order of
/// their dependencies. What depends on something has a later moment than it. Numbers are even, so
/// that a message fits right behind its producer.
std::vector<std::vector<Moment>> GlobalOrder(const Plan& plan, const Timeline& timeline);

/// Compute to comm. Writes the global order out rank by rank: a transfer at the end of its
/// producer, as SEND right behind it on the one side and as RECV at that moment on the other;
/// REDUCE at the last weight gradient of the stage on any of its copies, where it has more than
/// one; STEP behind it. Because every rendezvous is one point of one global order, no rank can wait
/// for another in a circle, whatever the buffering, and groups are not needed.
Plan InsertCommunication(const Plan& plan, const CostModel& costs);

}  // namespace contraflow
