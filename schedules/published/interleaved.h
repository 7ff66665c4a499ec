#pragma once

#include "compiler/plan/plan.h"
#include "compiler/plan/spec.h"

namespace contraflow {

/// The compute order of interleaved 1F1B (Narayanan et al., arXiv 2104.04473, section 2.2) with the
/// micro-batches in so many rounds, 1..max(1, M/P) rounded down: each of q = M/rounds micro-batches
/// rounded down, or of q + 1 the first ones where M does not divide. `rounds` = M/P is the row
/// `interleaved-1f1b`. Fewer rounds are longer than P; those of P + 1 and more hide the messages
/// that go from the last rank back to the first, for (V-1) activations of 1/V of a rank more with
/// each micro-batch of a round (Megatron-LM: --microbatch-group-size-per-virtual-pipeline-stage).
Plan InterleavedInRounds(const Spec& spec, int rounds);

}  // namespace contraflow
