#pragma once

#include <cstdint>
#include <vector>

#include "compiler/plan.h"
#include "compiler/timeline.h"

namespace contraflow {

/// Something that happens at one moment of the whole pipeline.
struct Event {
  enum class Kind : uint8_t { kCompute, kTransfer, kReduce, kStep };
  Kind kind;
  int rank;   ///< where it runs; a transfer: the sender; a reduction: -1, all holders of the stage
  int index;  ///< kCompute: in the program of `rank`; else unused
  Op op;      ///< kTransfer: SEND_F or SEND_B
  int stage;  ///< kTransfer: the producing stage; kReduce, kStep: the stage
  int microbatch;
  int peer;  ///< kTransfer: the receiver
};

/// All compute instructions, transfers, reductions and optimizer steps of a compute-level plan in
/// one order: by simulated start time, and where times tie in the order of their dependencies, so
/// that it is a linear extension of them. A transfer stands at the end of its producer, REDUCE at
/// the last W of the stage on any of its copies, STEP right behind it.
std::vector<Event> GlobalOrder(const Plan& plan, const CostModel& costs);

/// Compute to comm: writes that order out rank by rank, each transfer as SEND on the one and RECV
/// on the other side. Because every rendezvous is one point of one global order, no rank can wait
/// for another in a circle, whatever the buffering; groups are not needed.
Plan InsertCommunication(const Plan& plan, const std::vector<Event>& order);

}  // namespace contraflow
