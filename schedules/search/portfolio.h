#pragma once

#include <optional>
#include <vector>

#include "schedules/search/candidates.h"

namespace contraflow {

/// The compute orders of all published schedules that make the candidate's routes of its spec,
/// those that hold least first. What they hold is the caller's to look at. With `enough`, none
/// after the first one whose makespan is no longer than that and that fits the limit, and before
/// that one none that is proven to be longer by what it holds.
std::vector<Plan> PublishedOrders(const Candidate& candidate,
                                  std::optional<Time> enough = std::nullopt);

}  // namespace contraflow
