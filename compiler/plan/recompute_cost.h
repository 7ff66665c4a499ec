#pragma once

#include <cstdint>
#include <optional>

#include "compiler/plan/cost.h"

namespace contraflow {

/// True if some of this runs again of stage s, as far as the costs know its layers.
bool HasSome(const CostModel& costs, int s, const RecomputeExtent& extent);

/// How long it takes to run this much of the forward of stage s again, for a micro-batch of factor
/// 1; of some layers as long as all of them where the costs do not know them.
Time RecomputeTime(const CostModel& costs, int s, const RecomputeExtent& extent);

/// Bytes that a chunk of stage s that is recomputed holds between F and R: "input_bytes" where the
/// costs give it, else the value `input` of a layer, else the bytes of a message between stages,
/// which is a stage input; of the first stage those of its tokens, where their number is known. No
/// more than the activation. None if the costs have none of these.
std::optional<int64_t> InputBytes(const CostModel& costs, int s = 0);

/// Bytes of the activations of one cell (all zero where the costs have no activation_bytes). A
/// chunk holds `activation` from the start of F to the end of B, and of that `stash` on to the end
/// of W. One that is recomputed holds of it only `input` from the end of F to the start of R: the
/// stage input and, where a part or some layers are recomputed, what the others made.
struct CellBytes {
  int64_t activation = 0, stash = 0, input = 0;
  /// Bytes of `input` that belong to the stash: of layers that do not run again, and where there is
  /// nothing else.
  int64_t kept_stash = 0;
};

/// Bytes of a chunk of stage s; of one that does not run again all is its input. Throws Error if
/// chunks are recomputed and the costs do not say what they hold meanwhile (InputBytes), or which
/// layers they have.
CellBytes BytesOfCell(const CostModel& costs, int s, bool recomputes,
                      const RecomputeExtent& extent = {});

}  // namespace contraflow
