#pragma once

#include <cstdint>

#include "schedules/partition/stages.h"

namespace contraflow {

/// A partition, and the memory that it lacks with one micro-batch at a time, in bytes; at most 0 if
/// it fits.
struct PartitionExcess {
  int64_t excess = 0;
  Partition partition = {};
};

/// Returns the partition for the routes of `frame` that needs least memory, against the limit and
/// the devices of a spec. A rank needs its fixed bytes and the activations of one micro-batch; of
/// its largest stage alone if these may go to the host. Exact for small models, else the best of
/// some thousand partitions. Recomputes all stages if the spec allows it. The costs must have the
/// bytes of activations.
PartitionExcess MinMemoryPartition(const Spec& spec, const Plan& frame, LayerStages* layers);

}  // namespace contraflow
