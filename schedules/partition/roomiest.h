#pragma once

#include <cstdint>

#include "schedules/partition/stages.h"

namespace contraflow {

/// A partition, and by how much one micro-batch after the other takes more than there is, at least:
/// 0 or less where it fits.
struct Roominess {
  int64_t excess = 0;
  Partition partition = {};
};

/// Returns the partition for the routes of `frame` that needs least of the memory limit and the
/// devices of a spec, as a search counts that: on each rank the fixed bytes, and room for what the
/// fullest one has in flight. Exact where the model is small, else the best of some thousand. If
/// the spec may recompute all stages, they are. The costs must say what activations take.
Roominess RoomiestPartition(const Spec& spec, const Plan& frame, LayerStages* layers);

}  // namespace contraflow
