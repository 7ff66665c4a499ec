#pragma once

#include <string>

#include "tools/profile/layer_costs.h"

namespace contraflow {

/// The cost file, by layer, of what CostsOf gives: JSON with comments that show how each figure
/// follows from the model, the GPU and the efficiencies.
std::string WriteCostsByLayer(const ModelShape& model, const CostSetup& setup,
                              const ModelCosts& costs);

/// A cost file to fill in: layers of each kind, with a comment for each key.
std::string CostsTemplate();

}  // namespace contraflow
