#pragma once

#include <vector>

#include "schedules/candidates.h"

namespace contraflow {

/// The compute orders of all published schedules that make the candidate's routes of its spec,
/// those that hold least first. What they hold is the caller's to look at.
std::vector<Plan> PublishedOrders(const Candidate& candidate);

}  // namespace contraflow
