#pragma once

#include "compiler/plan/plan.h"
#include "schedules/registry.h"
#include "schedules/search_control.h"

namespace contraflow {

/// The plan of a spec whose costs have layers: the partition that the spec asks for, with the order
/// that the schedule then has. The plan brings the costs of its stages (CostModel::partition).
/// Choice::kAuto takes the partition with the shortest step that is found; `auto` looks for both in
/// turn, over all placements and up to kMostChunks stages a rank. Deterministic. Throws as
/// GeneratePlan does, and if the layers cannot become so many stages (RejectPartition).
Plan GenerateFromLayers(const Schedule& schedule, const Spec& spec, const SearchControl& control);

/// Most stages of a rank that `auto` tries of its own accord.
inline constexpr int kMostChunks = 8;

}  // namespace contraflow
