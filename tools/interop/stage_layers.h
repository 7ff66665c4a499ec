#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tools/cli/layer_layout.h"

namespace contraflow {

/// The layers of stages whose costs do not say them, where --layers is missing.
enum class UnknownLayers : uint8_t { kOneEach, kRefuse };

/// Returns the layers of each stage of a plan for another system: as `layers` says, else those of
/// its costs. A number is spread over the stages; the remainder goes one each to the stages from 1
/// on, since the first one has the embedding. Throws Error, about --layers, if the text is
/// malformed, contradicts the costs or the stages, or is missing where stages are unlike or
/// `unknown` refuses.
LayerLayout LayersOfStages(const Plan& plan, const std::optional<std::string>& layers,
                           UnknownLayers unknown);

}  // namespace contraflow
