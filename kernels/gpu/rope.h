#pragma once

#include "kernels/gpu/stream.h"
#include "kernels/host/bf16.h"

namespace contraflow::gpu {

/// Rotates, in place, the pairs (2i, 2i + 1) of every head of the queries and keys in
/// qkv[rows x 3 * heads * head_width] by the angle of the row's position, row mod sequence.
/// cosine, sine [sequence x head_width / 2] as FillRopeTable makes them; head_width is even.
/// Traffic: 4 bytes a value of queries and keys, and the tables.
void RopeForward(Stream stream, const float* cosine, const float* sine, int rows, int sequence,
                 int heads, int head_width, Bf16* qkv);

/// The inverse rotation, of gradients.
void RopeBackwardInput(Stream stream, const float* cosine, const float* sine, int rows,
                       int sequence, int heads, int head_width, Bf16* dqkv);

}  // namespace contraflow::gpu
