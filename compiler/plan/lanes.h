#pragma once

#include <cstdint>

#include "compiler/plan/instruction.h"

namespace contraflow {

struct Plan;

/// Makes an instruction wait for the earlier one of this index, unless it does; `after` stays
/// ascending.
void AddEvent(int32_t index, Instruction* i);

/// Gives every instruction of a comm-level plan of opaque stages its lane and the `after` events
/// that its data needs.
void AddLanes(Plan* plan);

}  // namespace contraflow
