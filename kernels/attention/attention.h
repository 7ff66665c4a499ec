#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "kernels/gpu/stream.h"
#include "kernels/host/attention.h"
#include "kernels/host/bf16.h"

namespace contraflow::gpu {

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
  std::string_view engine() const;

  /// out[batch * sequence x heads * head_width] = softmax(q k^T / sqrt(head_width)) v;
  /// lse[batch x heads x sequence] the logarithms of the sums of exponentials.
  void Forward(Stream stream, const Bf16* qkv, void* work, Bf16* out, float* lse) const;
  /// dqkv, in the layout of qkv, from dout.
  void BackwardInput(Stream stream, const Bf16* qkv, const Bf16* out, const float* lse,
                     const Bf16* dout, void* work, Bf16* dqkv) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace contraflow::gpu
