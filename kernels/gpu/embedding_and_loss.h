#pragma once

// The two ends of a model, which know its vocabulary.

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

/// One pass over logits[rows x classes], which become the gradient, with respect to them, of
/// `scale` times the mean over the rows of -log(softmax(logits)[target]): (softmax - 1 at the
/// target) * scale / rows. row_loss[rows] are the terms of that mean; where the target is outside
/// [0, classes), NaN, and the gradient is that of the logarithm alone. Traffic: 4 bytes a logit.
/// Rows of up to 163840 classes, a multiple of 8, or 120832 if not, are read once and stay in the
/// SM; the classes beyond are read twice.
void CrossEntropy(Stream stream, const int32_t* targets, float scale, int rows, int classes,
                  Bf16* logits, float* row_loss);

/// *mean = the mean of x[n], in a fixed order.
void Mean(Stream stream, const float* x, int n, float* mean);

}  // namespace contraflow::gpu
