#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "compiler/plan/plan.h"
#include "compiler/plan/timeline.h"

namespace contraflow {

/// A moment of the whole pipeline: when, and of what happens at that time which first.
struct Moment {
  Time time = 0;
  int64_t number = 0;

  auto operator<=>(const Moment&) const = default;
};

/// When each compute instruction of a compute-level plan begins, as moments of one global order: by
/// simulated start time, and where times tie (instructions may take no time at all) in an order of
/// their dependencies. An instruction that depends on another has a later moment. Numbers are even,
/// so that a message fits right after its producer.
std::vector<std::vector<Moment>> GlobalOrder(const Plan& plan, const Timeline& timeline);

/// Compute to comm. Writes the global order out rank by rank: a transfer at the end of its
/// producer, as SEND right after it on the one side and as RECV at that moment on the other;
/// REDUCE at the last weight gradient of the stage on any of its copies, where it has more than
/// one; STEP after it. Because every rendezvous is one point of one global order, no rank can wait
/// for another in a circle, whatever the buffering, and groups are not needed.
Plan InsertCommunication(Plan plan, const CostModel& costs);

/// Comm to component, for stages with components (costs.components()): every chunk becomes its
/// components on the compute and all-to-all lanes, with an `after` event for every dependency
/// across lanes; messages leave when their data is ready. With Overlap::kPublished chunks run one
/// after the other as Interleave orders each, and times are those of level comm, but for F&B pairs
/// of unlike stages, of which the costs of stages only say about what they take. With kAll
/// neighbouring chunks of a rank share its lanes: of several ways to do so the one with the least
/// simulated makespan (within a hundredth of it, the one that holds the fewest activations) where
/// no rank holds more than its limit (bytes, or a count where the costs give none); without limits,
/// no more than the fullest rank of the schedule itself.
Plan ExpandComponents(const Plan& plan, const CostModel& costs, Overlap overlap,
                      const std::vector<int64_t>& limits);

/// Bytes of each value of one layer, by the memory costs; of an opaque stage s (layers == 0) those
/// of input, output, doutput, dinput, activation and stash. Values of no bytes have no slot. Throws
/// Error if the costs have no memory figures for it.
ValueBytes ValueBytesOf(const CostModel& costs, int layers, int s = 0);

/// Component (or, for opaque stages, comm) to buffer: a slot for every value of every rank, packed
/// so that a range is used again only where events order its last use before the next first one;
/// adds such events to messages where they cost no time. Opaque stages get their lanes and events
/// here. Throws Error if the costs do not give the bytes (ValueBytesOf).
Plan AssignBuffers(const Plan& plan, const CostModel& costs);

}  // namespace contraflow
