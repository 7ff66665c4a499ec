#pragma once

#include <cstdint>

#include "kernels/gpu/stream.h"
#include "kernels/host/bf16.h"

namespace contraflow::gpu {

/// One pass over logits[rows x classes], which become the gradient, with respect to them, of
/// `scale` times the mean over the rows of -log(softmax(logits)[target]):
/// (softmax - 1 at the target) * scale / rows. row_loss[rows] are the terms of that mean; where
/// the target is outside [0, classes), NaN, and the gradient is that of the logarithm alone.
/// Traffic: 4 bytes a logit. Rows of up to 163840 classes, a multiple of 8, or 120832 if not, are
/// read once and stay in the SM; what is beyond that is read twice.
void CrossEntropy(Stream stream, const int32_t* targets, float scale, int rows, int classes,
                  Bf16* logits, float* row_loss);

/// *mean = the mean of x[n], in a fixed order.
void Mean(Stream stream, const float* x, int n, float* mean);

}  // namespace contraflow::gpu
