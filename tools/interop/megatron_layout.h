#pragma once

#include <optional>
#include <string>

#include "compiler/plan/plan.h"

namespace contraflow {

/// The arguments with which Megatron-LM runs this sound plan, one a line:
/// --pipeline-model-parallel-size,
/// --pipeline-model-parallel-layout (E embedding, t transformer layer, L loss, | between stages,
/// *n repeats), for several chunks a rank --microbatch-group-size-per-virtual-pipeline-stage, and
/// the number of layers, expert parallelism, recompute of all of them, and the batch, for
/// micro-batches of one sample.
///
/// `layers` are those of the whole model, at least one a stage, what is left over one each from
/// stage 1 on; nothing: those that the plan's costs have, else one a stage. Throws Error that says
/// why for plans that Megatron-LM cannot run: it has 1F1B and interleaved 1F1B, in rounds of equal
/// length of at least P micro-batches, of which the last may be shorter.
std::string WriteMegatronLayout(const Plan& plan, std::optional<int64_t> layers);

}  // namespace contraflow
