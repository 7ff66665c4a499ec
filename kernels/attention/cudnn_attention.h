#pragma once

#include <cstddef>

#include "kernels/attention/cudnn_plan.h"
#include "kernels/host/attention.h"
#include "kernels/host/bf16.h"

namespace contraflow::gpu {

/// Causal attention as graphs of cuDNN's operations, in the form that its fused engines know, and
/// the plans to compute them; see gpu_attention.h. The backward graph is the one without sums in
/// no fixed order: it keeps the gradients of all scores of a head, in bf16, in work memory.
class CudnnAttentionPlans {
 public:
  /// Throws GpuError, with what cuDNN says, if it will not have the shape.
  CudnnAttentionPlans(const AttentionShape& shape, const CudnnDescriptor& device);

  /// Of either direction, 256-aligned.
  size_t work_bytes() const;

  void Forward(cudnnHandle_t handle, const Bf16* qkv, void* work, Bf16* out, float* lse) const;
  void Backward(cudnnHandle_t handle, const Bf16* qkv, const Bf16* out, const float* lse,
                const Bf16* dout, void* work, Bf16* dqkv) const;

 private:
  AttentionShape shape_;
  float scale_;
  CudnnPlan forward_, backward_;
};

}  // namespace contraflow::gpu
