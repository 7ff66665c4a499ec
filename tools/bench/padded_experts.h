#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/gpu/experts.h"
#include "kernels/gpu/matmul.h"

namespace contraflow::gpu {

/// Products of kernels/gpu/experts.h by cublasLt's batched products instead of our own kernel: for
/// the layout in which every expert has equally many rows, most_rows / experts, whether tokens fill
/// them or not. The grouped kernel is compared with it, in results and in time.
class PaddedExperts {
 public:
  /// Chooses the products for `sms` SMs. Throws GpuError if most_rows, which is at least 1, is no
  /// multiple of experts.
  PaddedExperts(int sms, const ExpertsSizes& sizes);

  /// Bytes of work memory, of any of the three.
  size_t work_bytes() const;

  /// Operands as in kernels/gpu/experts.h; first[experts] is most_rows, the rest of it is not read.
  void Forward(Stream stream, const int32_t* first, const Bf16* x, const Bf16* gate_up,
               const Bf16* down, void* work, Bf16* gate_up_out, Bf16* hidden, Bf16* y) const;
  void BackwardInput(Stream stream, const int32_t* first, const Bf16* gate_up, const Bf16* down,
                     const Bf16* gate_up_out, const Bf16* dy, void* work, Bf16* dgate_up_out,
                     Bf16* dx) const;
  void BackwardWeight(Stream stream, const Bf16* x, const Bf16* hidden, const Bf16* dgate_up_out,
                      const Bf16* dy, void* work, float* dgate_up, float* ddown) const;

 private:
  ExpertsSizes sizes_;
  MatmulShape up_, down_, dhidden_, dx_, dgate_up_, ddown_;
  Matmuls matmuls_;
};

}  // namespace contraflow::gpu
