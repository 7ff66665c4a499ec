#pragma once

#include <cstddef>

#include "kernels/gpu/stream.h"

namespace contraflow::gpu {

/// What the devices of a sum have of the same n elements, on the device that adds them: its own in
/// place, those of the others one behind the other, by part.
struct Slices {
  float* own;           ///< [n] the part `self`; becomes the sum
  const float* others;  ///< [parts - 1 x stride]
  size_t stride;        ///< at least n
  int parts, self;
};

/// own = part 0 + part 1 + ..., element by element in the order of the parts, whichever `self` is.
void AddSlices(Stream stream, const Slices& slices, size_t n, int ctas);

}  // namespace contraflow::gpu
