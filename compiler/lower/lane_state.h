#pragma once

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "compiler/lower/sharing.h"

namespace contraflow {

inline constexpr Time kNever = std::numeric_limits<Time>::max() / 4;

/// A chunk under way.
struct LaneBlock {
  const Instruction* chunk = nullptr;
  const ChunkShape* shape = nullptr;
  size_t done[3] = {0, 0, 0};  ///< parts begun of each chain; of the weights their number
  size_t taken[2] = {0, 0};    ///< of shape->order
  Time ready[2] = {0, 0};      ///< when the last part begun of either chain has ended
  std::vector<bool> weighed;   ///< weight parts begun
  /// Where LaneState tells about its forward and backward chunk; 0 if it has none.
  size_t at[2] = {0, 0};
  size_t copy = 0;  ///< of the stage that its weights belong to
  int ordinal = 0;  ///< how many chunks with weights of that copy came before
  size_t left = 0;  ///< parts not begun
  bool begun = false;

  const ChunkPart& Next(int chain) const { return shape->chains[chain][done[chain]]; }
  bool Has(int chain) const { return done[chain] < shape->chains[chain].size(); }
};

/// What a rank is at.
struct LaneRank {
  std::vector<LaneBlock> blocks;
  size_t first = 0;  ///< the first block that is not wholly begun
  Time free[2] = {0, 0};
  int activations = 0, peak = 0;
  size_t backward_left = 0;                ///< backward chains not ended yet
  std::vector<std::pair<int, Time>> busy;  ///< peer, when the directed edge to it is free
  std::vector<int> steps;                  ///< stages whose STEP may run
};

/// One copy of a stage.
struct LaneCopy {
  int rank, stage;
  size_t weights_left = 0;      ///< weight parts not ended yet
  std::vector<int> weighed[2];  ///< MLP_W and ATTN_W begun, by layer
  int chunks = 0;
};

/// The whole pipeline at one moment of a run.
struct LaneState {
  int microbatches = 0;
  Time now = 0;
  std::vector<LaneRank> ranks;
  std::vector<LaneCopy> copies;
  /// When what a forward or backward chain begins with is there, and when either has ended, by
  /// At(stage, micro-batch); kNever while nobody knows. A recomputed forward has a chain of its
  /// own, which begins behind the first and which the backward chain waits for; `again_end` is 0
  /// where there is none.
  std::vector<Time> forward, backward, forward_end, backward_end, again_end;

  size_t At(int stage, int m) const {
    return static_cast<size_t>(stage) * static_cast<size_t>(microbatches) + static_cast<size_t>(m);
  }
};

/// A part that could begin now.
struct LaneChoice {
  static constexpr size_t kNobody = static_cast<size_t>(-1);

  size_t block = kNobody;
  int chain = 0;
  size_t weight = 0;  ///< which weight part, of chain 2
};

/// What an idle lane of a rank should begin now; nobody's part if nothing should.
LaneChoice ChoosePart(const LaneState& state, const Sharing& sharing, int most_activations, int r,
                      int lane);

}  // namespace contraflow
