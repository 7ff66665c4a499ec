#pragma once

// What the files of the simulation share, and nobody else includes.

#include <vector>

#include "compiler/plan/recomputed.h"
#include "compiler/simulate/simulate.h"

namespace contraflow {

/// Simulate, for plans whose instructions have lanes.
Simulation SimulateLanes(const Plan& plan, const CostModel& costs);

/// Fills in makespan, span and bubbles, from what the ranks did.
void SumUp(Simulation* simulation);

/// Fills in what rank r holds at most (peak_activations, peak_bytes, peak_index), given when its
/// instructions ran: an activation from the start of its forward to the end of its last weight
/// part, but for the time in which `recomputed` ones hold only their input.
void FollowActivations(const Plan& plan, const CostModel& costs, const RecomputedCells& recomputed,
                       size_t r, const std::vector<Span>& spans, RankFigures* figures);

}  // namespace contraflow
