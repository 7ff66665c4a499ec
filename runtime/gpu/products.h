#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/gpu/experts.h"
#include "kernels/gpu/matmul.h"
#include "kernels/gpu/stream.h"
#include "runtime/exec/gpu.h"
#include "runtime/gpu/matmul_choices.h"
#include "runtime/model/views.h"

namespace contraflow {

/// Fills device memory with a pattern, again and again; returns once that is done.
void FillOnDevice(Gpu& gpu, gpu::Stream stream, std::byte* at, size_t bytes,
                  std::span<const std::byte> pattern);
/// Fills device memory with 0xff, which as floats is NaN and as integers no index; returns once
/// that is done.
void PoisonOnDevice(Gpu& gpu, gpu::Stream stream, std::byte* at, size_t bytes);

/// The arenas of a device, where they are not empty.
struct Arenas {
  std::array<std::byte*, kArenaCount> at{};
  std::span<std::byte> all;  ///< that they lie in; empty: each has an allocation of its own
};
/// Arenas of this many bytes, poisoned; in one piece if there is an `allocate` for it.
Arenas AllocateArenas(const std::array<int64_t, kArenaCount>& bytes, Gpu& gpu, gpu::Stream stream,
                      const AllocateMemory& allocate);

/// Every product of the model. The head is one of its last stage; the others have as good as no
/// cost for being able to.
std::vector<gpu::MatmulShape> MatmulsOf(const LayerShape& shape);
gpu::ExpertsSizes ExpertsOf(const LayerShape& shape);

/// Lane of a component: a stream, and work memory that nothing else uses meanwhile.
struct GpuLane {
  gpu::Stream stream;
  std::byte* work;
};

/// Resources that the stages of one device share: how its matrix products and its attention are
/// computed, the angles of the rotary embedding, and work memory for two lanes. All of it is made
/// before the first step.
class GpuProducts {
 public:
  /// Lanes that compute at the same time: compute, all-to-all. Attention is on the first only.
  static constexpr size_t kLanes = 2;

  /// For `compute_sms` SMs; the model must be checked (FitGpuModel). Products without a choice use
  /// the estimate of the library; experts without one use single blocks. Returns when the setup is
  /// done.
  GpuProducts(const LayerShape& shape, Gpu& gpu, gpu::Stream setup, int compute_sms,
              const MatmulChoices& choices = {});

  const LayerShape& shape() const { return shape_; }
  const gpu::Attention& attention() const { return attention_; }
  const float* cosine() const { return cosine_; }
  const float* sine() const { return sine_; }
  std::byte* work(size_t lane) const { return work_.at(lane); }

  /// y[T x out] = x[T x in] w[in x out].
  void Linear(GpuLane at, const gpu::Bf16* x, const gpu::Bf16* w, int in, int out,
              gpu::Bf16* y) const;
  /// In fp32: the logits of the router.
  void Linear(GpuLane at, const gpu::Bf16* x, const gpu::Bf16* w, int in, int out, float* y) const;
  /// y = before + x w, [T x d] from [T x d].
  void LinearAdd(GpuLane at, const gpu::Bf16* x, const gpu::Bf16* w, const gpu::Bf16* before,
                 gpu::Bf16* y) const;
  /// dx[T x in] = dy[T x out] w^T.
  void LinearBackwardInput(GpuLane at, const gpu::Bf16* dy, const gpu::Bf16* w, int in, int out,
                           gpu::Bf16* dx) const;
  /// Like LinearBackwardInput, added to dx: the gradient through the router.
  void LinearBackwardInputAdd(GpuLane at, const gpu::Bf16* dy, const gpu::Bf16* w, int in, int out,
                              gpu::Bf16* dx) const;
  /// dw[in x out] += x^T dy, in fp32.
  void LinearBackwardWeight(GpuLane at, const gpu::Bf16* x, const gpu::Bf16* dy, int in, int out,
                            float* dw) const;

 private:
  const LayerShape shape_;
  gpu::Matmuls matmuls_;
  const gpu::Attention attention_;
  float *cosine_, *sine_;  // [sequence x head_width / 2]
  std::array<std::byte*, kLanes> work_;
};

}  // namespace contraflow
