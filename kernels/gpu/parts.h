#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/gpu/stream.h"

namespace contraflow::gpu {

/// Copies `parts` parts of `bytes` each: part p from from + p * from_stride to to + p * to_stride,
/// by at most `ctas` blocks. All of them, the strides too, are multiples of 16 bytes.
void CopyParts(Stream stream, const void* from, size_t from_stride, void* to, size_t to_stride,
               size_t bytes, int parts, int ctas);

/// The counts of an exchange in which every member sends `capacity` rows to every expert (as
/// runtime/views.h has them): first[local_experts + 1], received[members x local_experts].
void SetCounts(Stream stream, int32_t* first, int32_t* received, int members, int local_experts,
               int capacity);

}  // namespace contraflow::gpu
