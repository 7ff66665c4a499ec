#pragma once

#include <optional>

#include "schedules/search/search_problem.h"

namespace contraflow {

/// DualPipeV's order (schedules/bidirectional.h) for a problem with one route on a V, or for what
/// Fold makes of two routes; nothing for other placements, where there are fewer micro-batches than
/// stages, or where a rank would hold more than the limit.
std::optional<Order> PhaseOrder(const SearchProblem& problem);

/// Event-driven: every rank runs its forwards, backwards and pairs in the order given, and weight
/// gradients that are not part of a pair while it would wait otherwise, at least `percent` of their
/// duration, or once there is no memory or nothing else left. Nothing where the order does not run.
std::optional<Order> FillGaps(const SearchProblem& problem, const Order& order, int percent);

/// The best of PhaseOrder, with and without a pair in place of the middle rank's first forward and
/// backward, and of what FillGaps makes of them. Nothing where PhaseOrder gives nothing.
std::optional<Order> ScheduleInPhases(const SearchProblem& problem);

}  // namespace contraflow
