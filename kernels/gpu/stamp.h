#pragma once

#include <cstdint>

#include "kernels/gpu/stream.h"

namespace contraflow::gpu {

/// *at = the GPU's clock in nanoseconds (%globaltimer), when the stream gets there.
void Stamp(Stream stream, uint64_t* at);

/// Does nothing: what a launch costs.
void Nothing(Stream stream);

}  // namespace contraflow::gpu
