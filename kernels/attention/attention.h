#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string>

#include "kernels/gpu/stream.h"
#include "kernels/host/attention.h"
#include "kernels/host/bf16.h"

namespace contraflow::gpu {

/// How a direction is computed. Operands as Attention has them.
struct AttentionForward {
  std::string engine;  ///< "cudnn", "cudnn in 2 parts", "own"
  size_t work_bytes;
  std::function<void(Stream, const Bf16* qkv, void* work, Bf16* out, float* lse)> run;
  std::string why_own{};  ///< message of cuDNN, if it was asked
};
struct AttentionBackward {
  std::string engine;
  size_t work_bytes;
  std::function<void(Stream, const Bf16* qkv, const Bf16* out, const float* lse, const Bf16* dout,
                     void* work, Bf16* dqkv)>
      run;
  std::string why_own{};
};

/// Causal self-attention over qkv[batch * sequence x 3 * heads * head_width] (queries, keys, values
/// of a token side by side, heads contiguous in each), deterministic in both directions: each
/// cuDNN's where that takes the shape, else our own kernels. head_width is a multiple of 8, at most
/// 128.
class Attention {
 public:
  enum class Engine { kBest, kOwn };
  /// cuDNN's backward keeps a number for every score, and is given that much for it.
  static constexpr size_t kMostWork = size_t{4} << 30;

  /// Prepares for `sms` SMs, and for at most `most_work` bytes of work memory where cuDNN computes.
  /// Throws GpuError if the shape is not possible.
  Attention(const AttentionShape& shape, int sms, Engine engine = Engine::kBest,
            size_t most_work = kMostWork);

  /// Bytes of work memory, of either direction.
  size_t work_bytes() const { return std::max(forward_.work_bytes, backward_.work_bytes); }
  /// Engines of both directions: "cudnn", or "cudnn forward, own backward" where they differ.
  std::string engine() const;
  /// Engines of both directions for people, with the reason if cuDNN computes less than it could.
  std::string Report() const;

  /// out[batch * sequence x heads * head_width] = softmax(q k^T / sqrt(head_width)) v;
  /// lse[batch x heads x sequence] the logarithms of the sums of exponentials.
  void Forward(Stream stream, const Bf16* qkv, void* work, Bf16* out, float* lse) const;
  /// dqkv, in the layout of qkv, from dout.
  void BackwardInput(Stream stream, const Bf16* qkv, const Bf16* out, const float* lse,
                     const Bf16* dout, void* work, Bf16* dqkv) const;

 private:
  AttentionShape shape_;
  AttentionForward forward_;
  AttentionBackward backward_;
};

/// cuDNN's for the shape on the current device. Throw GpuError with the reason where it will not
/// have the shape, or one head takes more work memory than that.
AttentionForward CudnnForward(const AttentionShape& shape, size_t most_work);
AttentionBackward CudnnBackward(const AttentionShape& shape, size_t most_work);

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
