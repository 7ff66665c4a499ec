#pragma once

#include <cstddef>
#include <memory>

#include "kernels/gpu/stream.h"
#include "kernels/host/attention.h"
#include "kernels/host/bf16.h"

namespace contraflow::gpu {

/// One way to compute attention of one shape; see gpu_attention.h.
class AttentionEngine {
 public:
  virtual ~AttentionEngine() = default;
  virtual size_t work_bytes() const = 0;
  virtual void Forward(Stream stream, const Bf16* qkv, void* work, Bf16* out, float* lse) const = 0;
  virtual void Backward(Stream stream, const Bf16* qkv, const Bf16* out, const float* lse,
                        const Bf16* dout, void* work, Bf16* dqkv) const = 0;
};

/// The most work memory that is worth what cuDNN gains: it keeps a number for every score.
inline constexpr size_t kMostAttentionWork = size_t{4} << 30;

/// cuDNN's for the shape on the current device, or null where cuDNN is not there, will not have it,
/// or wants more work memory than that.
std::unique_ptr<AttentionEngine> CudnnAttention(const AttentionShape& shape);

}  // namespace contraflow::gpu
