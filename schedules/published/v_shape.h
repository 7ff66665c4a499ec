#pragma once

#include <array>
#include <vector>

#include "compiler/plan/instruction.h"
#include "compiler/plan/plan.h"
#include "compiler/plan/spec.h"

namespace contraflow {

/// A micro-batch crosses the ranks of a V-shaped pipeline four times: F from rank 0 to P-1 (pass 0)
/// and back (1), B from rank 0 to P-1 (2) and back (3). 4 is the W that follows pass 2, 5 that
/// of 3.
inline constexpr int kPasses = 4;

/// Instruction of a rank in that pass: F, B or W of the stage it holds on the way down (stage
/// `rank`) or on the way up (stage 2P-1-rank).
Instruction PassInstruction(int ranks, int rank, int pass, int microbatch);

/// The slot of each pass of micro-batch 0 on one rank; those of micro-batch m are 6m later, and no
/// two passes of any micro-batches meet.
using PassSlots = std::array<int, kPasses>;

/// A plan from a building block that repeats (Qi et al., "Pipeline Parallelism with Controllable
/// Memory", arXiv 2405.15362, sections 3 and 4): F and B where the block has them, W in the slots
/// that are left, then F and B moved to earlier slots before and after the steady phase wherever no
/// rank comes to hold more than the block alone does; in that phase, too, where the plan is then
/// shorter. Slots are of equal length, whatever the costs.
Plan BlockPlan(const Spec& spec, const std::vector<PassSlots>& block);

}  // namespace contraflow
