#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/gpu/stream.h"
#include "kernels/host/bf16.h"

namespace contraflow::gpu {

/// y[t] = table[tokens[t]], rows of `width`. Traffic: 4 bytes a value of y.
void EmbeddingForward(Stream stream, const int32_t* tokens, const Bf16* table, int rows, int width,
                      Bf16* y);

/// Bytes of work memory that EmbeddingBackwardWeight needs.
size_t EmbeddingWork(int rows, int vocabulary);
/// dtable[tokens[t]] += dy[t], in ascending t: in fp32, and the same bits every time. Tokens are in
/// [0, vocabulary). Traffic: 2 bytes a value of dy, and 8 a value of each row of dtable that
/// occurs.
void EmbeddingBackwardWeight(Stream stream, const int32_t* tokens, const Bf16* dy, int rows,
                             int vocabulary, int width, void* work, float* dtable);

}  // namespace contraflow::gpu
