#pragma once

#include <deque>

#include "compiler/plan/instruction.h"
#include "compiler/plan/plan.h"

namespace contraflow {

/// The shared skeleton of DualPipe and DualPipeV: what one rank does over the eight phases of
/// DeepSeek's DualPipe.step, in terms of two streams of chunks.
///
/// Both schedules walk the same phases; they differ in what stream 0 and stream 1 are (two
/// directions, or the two legs of a V) and in how far a rank is from the middle.
struct BidirectionalRank {
  int stage[2];  ///< the stage this rank owns in each stream
  int first[2];  ///< first micro-batch of each stream
  int ahead;     ///< distance from the middle: P/2-1-h (DualPipe), P-1-r (DualPipeV)
  int from_end;  ///< distance from the end: h, r
  int pairs;     ///< iterations of the steady phase
  bool middle;   ///< the first pair of the steady phase is not overlapped here
};

/// A rank of DualPipeV: the streams are the two legs of a V over `ranks` ranks.
BidirectionalRank RankOfV(int ranks, int microbatches, int rank);

/// The compute order of that rank.
Program BidirectionalProgram(const BidirectionalRank& rank);

/// Exact bubble of each rank for DualPipe (k = P/2-1) and DualPipeV (k = P-1) without
/// communication; `from_end[r]` as above. Empty where it is not known.
std::vector<Time> BidirectionalBubble(const StageCost& cost, int k,
                                      const std::vector<int>& from_end);

}  // namespace contraflow
