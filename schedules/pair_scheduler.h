#pragma once

#include <optional>

#include "schedules/search_problem.h"

namespace contraflow {

/// DualPipeV's order (schedules/bidirectional.h) for a problem with one route on a V, or for what
/// Fold makes of two routes; nothing for other placements, where there are fewer micro-batches than
/// stages, or where a rank would hold more than the limit.
std::optional<Order> PhaseOrder(const SearchProblem& problem);

}  // namespace contraflow
