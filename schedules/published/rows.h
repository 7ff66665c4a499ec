#pragma once

#include "schedules/published/schedule.h"

namespace contraflow {

/// The rows of the schedule table, one a file; kAuto is in schedules/search/auto.cc.
extern const Schedule kGpipe;
extern const Schedule kOneFOneB;
extern const Schedule kInterleaved;
extern const Schedule kCombined;
extern const Schedule kZb1p;
extern const Schedule kZb2p;
extern const Schedule kZbV;
extern const Schedule kVHalf;
extern const Schedule kVMin;
extern const Schedule kChimera;
extern const Schedule kDualPipe;
extern const Schedule kDualPipeV;
extern const Schedule kAuto;

/// Published schedules, in the order in which they are listed.
inline constexpr const Schedule* kPublishedSchedules[] = {
    &kGpipe, &kOneFOneB, &kInterleaved, &kCombined, &kZb1p,     &kZb2p,
    &kZbV,   &kVHalf,    &kVMin,        &kChimera,  &kDualPipe, &kDualPipeV};

/// The compute order of interleaved 1F1B (Narayanan et al., arXiv 2104.04473, section 2.2) with the
/// micro-batches in this many rounds, 1..max(1, M/P) rounded down: each of q = M/rounds
/// micro-batches rounded down, or of q + 1 the first ones where M does not divide. `rounds` = M/P
/// is the row `interleaved-1f1b`. Fewer rounds are longer than P; those of P + 1 and more hide the
/// messages that go from the last rank back to the first, for (V-1) activations of 1/V of a rank
/// more with each micro-batch of a round (Megatron-LM:
/// --microbatch-group-size-per-virtual-pipeline-stage).
Plan InterleavedInRounds(const Spec& spec, int rounds);

/// The hand-made compute orders of Zero Bubble (Qi et al., arXiv 2401.10241, section 2.2), fixed by
/// P and M: a rank runs `ahead` forwards for each rank after it before its first backward, and
/// `ahead` weight gradients fewer for each rank before it while forwards go on. 1 is ZB-H1, which
/// holds P activations until W, 2 is ZB-H2, which holds 2P-1.
Plan HandMadeZeroBubble(const Spec& spec, int ahead);

}  // namespace contraflow
