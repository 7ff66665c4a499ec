#pragma once

#include "compiler/plan/plan.h"
#include "compiler/plan/spec.h"

namespace contraflow {

/// The hand-made compute orders of Zero Bubble (Qi et al., arXiv 2401.10241, section 2.2), fixed by
/// P and M: a rank runs `ahead` forwards for each rank behind it before its first backward, and
/// `ahead` weight gradients fewer for each rank before it while forwards go on. 1 is ZB-H1, which
/// holds P activations until W, 2 is ZB-H2, which holds 2P-1.
Plan HandMadeZeroBubble(const Spec& spec, int ahead);

}  // namespace contraflow
