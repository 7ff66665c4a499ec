#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "kernels/gpu/stream.h"
#include "kernels/host/attention.h"
#include "kernels/host/bf16.h"

namespace contraflow::gpu {

class AttentionEngine;

/// Causal self-attention over qkv[batch * sequence x 3 * heads * head_width] (queries, keys, values
/// of a token side by side, heads contiguous in each), deterministic in both directions: cuDNN's
/// where it takes the shape, else our own kernels. head_width is a multiple of 8, at most 128.
class Attention {
 public:
  enum class Engine { kBest, kOwn };

  /// Prepares for `sms` SMs. Throws GpuError if the shape is not possible.
  Attention(const AttentionShape& shape, int sms, Engine engine = Engine::kBest);
  ~Attention();

  /// Bytes of work memory, of either direction.
  size_t work_bytes() const;
  /// "cudnn" or "own".
  std::string_view engine() const { return name_; }

  /// out[batch * sequence x heads * head_width] = softmax(q k^T / sqrt(head_width)) v;
  /// lse[batch x heads x sequence] the logarithms of the sums of exponentials.
  void Forward(Stream stream, const Bf16* qkv, void* work, Bf16* out, float* lse) const;
  /// dqkv, in the layout of qkv, from dout.
  void BackwardInput(Stream stream, const Bf16* qkv, const Bf16* out, const float* lse,
                     const Bf16* dout, void* work, Bf16* dqkv) const;

 private:
  AttentionShape shape_;
  std::unique_ptr<AttentionEngine> engine_;
  std::string_view name_;
};

/// One way to compute attention of one shape; operands as Attention has them.
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

/// Our own kernels, by the matrix instructions of a warp (mma): for head_width a multiple of 8 and
/// at most 128; operands as Attention has them. No score is ever written to memory: the backward
/// kernels make them again from lse.
void MmaAttentionForward(Stream stream, const AttentionShape& shape, const Bf16* qkv, Bf16* out,
                         float* lse);

/// dot[batch x heads x sequence] is work memory: it becomes dot(dout, out) of each row.
void MmaAttentionBackward(Stream stream, const AttentionShape& shape, const Bf16* qkv,
                          const Bf16* out, const float* lse, const Bf16* dout, float* dot,
                          Bf16* dqkv);

}  // namespace contraflow::gpu
