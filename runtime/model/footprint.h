#pragma once

#include <cstdint>

#include "compiler/plan/cost.h"
#include "compiler/plan/value.h"
#include "runtime/model/model.h"

namespace contraflow {

/// What a model takes on each device of the host runtime, as the memory costs of a plan: the values
/// of a layer, to the byte; parameters, gradients and optimizer state (two moments) of each stage;
/// and of the chunks of a stage in the middle activation_bytes (input, attention, scores, rows,
/// gate, hidden and combined of its layers) and w_stash_bytes (of those attention, rows and
/// hidden). `layers` are those of each stage; 0 stands for as many as the model's largest stage
/// has. Throws Error if the model does not fit (FitModel).
MemoryCost FootprintOf(const Model& model, int stages, int layers, int expert_parallel);

/// Bytes that a parameter takes.
struct ParameterBytes {
  int64_t weights, gradients, optimizer;
};
/// The same for a model that is fitted already, and values and parameters of these sizes.
MemoryCost FootprintWith(const Model& fitted, int stages, int expert_parallel,
                         const ValueBytes& values, ParameterBytes each);

}  // namespace contraflow
