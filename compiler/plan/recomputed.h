#pragma once

#include <cstdint>
#include <vector>

#include "compiler/plan/plan.h"

namespace contraflow {

/// Which chunks run their forward again.
class RecomputedCells {
 public:
  explicit RecomputedCells(const Plan& plan);

  bool any() const { return !chunks_.empty(); }
  bool Has(int stage, int microbatch) const { return any() && chunks_[At(stage, microbatch)]; }
  /// True if some micro-batch of the stage does.
  bool HasStage(int stage) const;

 private:
  size_t At(int stage, int microbatch) const {
    return static_cast<size_t>(stage) * microbatches_ + static_cast<size_t>(microbatch);
  }

  size_t microbatches_;
  std::vector<bool> chunks_;  // by stage, then micro-batch; empty where there is none
};

/// What the activations of one chunk take, in bytes (all zero where the costs have no
/// activation_bytes). A chunk holds `activation` from the start of F to the end of B, and of that
/// `stash` on to the end of W. One that is recomputed holds of it only `input` from the end of F to
/// the start of R.
struct CellBytes {
  int64_t activation = 0, stash = 0, input = 0;
};

/// Throws Error if chunks are recomputed and the costs do not say what they hold meanwhile
/// (InputBytes).
CellBytes BytesOfCell(const CostModel& costs, bool recomputes);

}  // namespace contraflow
