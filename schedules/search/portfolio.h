#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "compiler/plan/plan.h"
#include "compiler/plan/spec.h"
#include "schedules/search/candidates.h"

namespace contraflow {

class SearchWork;

/// The compute orders of all published schedules that make the candidate's routes of its spec,
/// those that hold least first. The caller looks at what they hold. With `enough`, none after the
/// first one whose makespan is no longer than that and that fits the limit, and before that one
/// none that is proven to be longer by what it holds.
std::vector<Plan> PublishedOrders(const Candidate& candidate,
                                  std::optional<Time> enough = std::nullopt);

/// Excess of the fullest rank of the plan over the memory limit of the spec, one in activations
/// counting those of a rank's whole share, or over its device; 0: it fits.
int64_t ExcessMemory(const Plan& plan, const CostModel& costs, const Spec& spec);
bool FitsMemory(const Plan& plan, const CostModel& costs, const Spec& spec);

/// True if the costs have reductions or optimizer steps, which belong to the step, but to no
/// compute order.
bool HasEpilogue(const CostModel& costs);

/// True where a step takes the time of components that are asked for, which may overlap from chunk
/// to chunk: then no bound of an order holds.
bool ByComponents(const CostModel& costs, const SearchOptions& options);

/// True where a step may take another time than its compute order: reductions and optimizer steps
/// belong to it, and components (SearchOptions::components) take the time that they do.
bool LongerThanOrder(const CostModel& costs, const SearchOptions& options);

/// How long a step of this compute order takes: all of it that belongs to a step, of components
/// that overlap within `limit` and the devices of the spec if it asks for them and the costs have
/// some. `work` counts the latter, which take long.
Time StepTime(const Plan& plan, const CostModel& costs, const Spec& spec,
              std::optional<int64_t> limit, SearchWork* work = nullptr);

/// The same with the costs and limit of the spec, for an order that takes `makespan`.
Time StepTime(const Plan& plan, const Spec& spec, Time makespan, SearchWork* work = nullptr);

/// True if an order is too long for overlap of components to make up for it.
inline bool MuchLonger(Time order, Time other) { return order > other + other / 8; }

/// True if the spec lets cells run again or go to the host.
bool HoldsLess(const Spec& spec);

/// All on/off combinations of automatic recompute and offload, off first.
std::vector<Spec> WithoutAndWith(const Spec& spec);

}  // namespace contraflow
