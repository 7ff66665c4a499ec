#pragma once

#include <string>

#include "compiler/plan/cost.h"

namespace contraflow {

/// Why costs of `from` stages cannot be made costs of `to` stages of the same model, or "": one of
/// the numbers must divide the other, and the layers of a stage must divide into as many parts.
std::string RejectRepartition(const CostModel& costs, int from, int to);

/// The same model in another number of stages. If there are more, each stage is cut into parts that
/// are as equal as whole ticks, bytes and layers allow: durations, gradients and parameters add up
/// to what they were, activations are rounded up. If there are fewer, neighbours are merged. The
/// time of a hop stays, and so does the input of a stage.
CostModel Repartition(const CostModel& costs, int from, int to);

}  // namespace contraflow
