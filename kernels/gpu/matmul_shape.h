#pragma once

#include <cstddef>
#include <string>

#include "kernels/gpu/matmul.h"

namespace contraflow::gpu {

// What every implementation of Matmuls asks of its arguments.

/// Where operands may begin, in bytes: what algorithms are chosen for.
inline constexpr size_t kMatmulAlignment = 16;

/// The shape as errors name it: "bf16 [m x n] += a^T [m x k] b [k x n], 3 times".
std::string ToString(const MatmulShape& shape);
/// Throws GpuError if a size is less than 1.
void CheckShape(const MatmulShape& shape);
/// Throws GpuError if an operand is null or not aligned to kMatmulAlignment.
void CheckOperands(const MatmulShape& shape, const Bf16* a, const Bf16* b, const void* c,
                   const void* d, const void* work);

}  // namespace contraflow::gpu
