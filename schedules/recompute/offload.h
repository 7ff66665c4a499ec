#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "compiler/plan/plan.h"
#include "compiler/plan/spec.h"
#include "schedules/search/search.h"

namespace contraflow {

/// The compute order with OFFLOAD and RELOAD of the cells of these stages (ascending) for which the
/// links to the host have the time: those whose copies can go and come back while the cell waits
/// for its backward. OFFLOAD stands after F, and RELOAD as late as its backward allows, so that
/// the order takes no longer than before. None may be offloaded yet; cells that are recomputed
/// stay.
Plan OffloadStages(Plan order, const CostModel& costs, const std::vector<int>& stages);

/// Like OffloadStages, for as few cells as it takes to make each rank hold no more than its limit
/// (of all ranks, in what MemoryLimit counts). If a rank would hold too much, that which waits
/// longest for its backward goes, if it can be gone by then. Ranks that nothing makes fit are left
/// as they come closest.
Plan OffloadToFit(const Plan& order, const CostModel& costs, const std::vector<int64_t>& limits);

/// Stages that a spec names, of this many. Throws Error if some do not exist.
std::vector<int> StagesToOffload(int count, const Spec& spec);

/// Makes the plan of a spec without offloading; throws Error if there is none.
using GenerateResident = std::function<Plan(const Spec&)>;

/// The plan of a published schedule with the offloading of the spec, in addition to its recompute:
/// of the orders that are made for its limit and for looser ones, the one with the shortest step
/// that then fits; never longer than without. Throws Error if the stages do not exist, if the costs
/// have no "host", and as `generate` does.
Plan GenerateOffloaded(const Spec& spec, const GenerateResident& generate);

}  // namespace contraflow
