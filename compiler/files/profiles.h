#pragma once

#include <string>
#include <vector>

#include "compiler/files/cost_io.h"
#include "compiler/plan/cost.h"

namespace contraflow {

/// Reads a cost file, or the profile of that name. A name with a "/" or ".json" at the end is a
/// file, "-" is stdin. A profile is looked up in $CONTRAFLOW_PROFILES, the installed ones and those
/// of the source tree, in that order. Costs with "moe" alone have no chunk costs yet: Compile and
/// Compare derive them (DeriveChunkCosts). Throws Error if there is none of that name, which lists
/// those there are, and for all that ReadCosts refuses.
CostModel ReadCostsOrProfile(const std::string& file_or_profile, CostMending* mending = nullptr);

/// All that are found there, ascending.
std::vector<std::string> ProfileNames();

}  // namespace contraflow
