#pragma once

#include <cstddef>

#include "kernels/gpu/stream.h"
#include "kernels/host/attention.h"
#include "kernels/host/bf16.h"

namespace contraflow::gpu {

// Our own attention kernels, for head_width a multiple of 8 and at most 128, with qkv, out, lse and
// the gradients as gpu_attention.h has them. No score is ever written to memory: the backward
// kernels make them again from lse.

void OwnAttentionForward(Stream stream, const AttentionShape& shape, const Bf16* qkv, Bf16* out,
                         float* lse);

/// dot[batch x heads x sequence] is work memory: it becomes dot(dout, out) of each row.
void OwnAttentionBackward(Stream stream, const AttentionShape& shape, const Bf16* qkv,
                          const Bf16* out, const float* lse, const Bf16* dout, float* dot,
                          Bf16* dqkv);

}  // namespace contraflow::gpu
