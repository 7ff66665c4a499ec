#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "kernels/gpu/stream.h"
#include "kernels/host/bf16.h"
#include "kernels/host/linear.h"

namespace contraflow::gpu {

/// d[m x n] = op(a)[m x k] op(b)[k x n] + beta c, row-major, a and b bf16, sums in fp32.
struct MatmulShape {
  Transpose transpose_a = Transpose::kNo, transpose_b = Transpose::kNo;
  int m = 0, n = 0, k = 0;
  bool float_out = false;  ///< c and d are float, else bf16
  bool add = false;        ///< beta is 1, else 0 and c is not read
  int batch = 1;           ///< number of products; operands follow each other without gaps

  auto operator<=>(const MatmulShape&) const = default;
};

/// Algorithm of a product, as cublasLt packs it: valid for one version and one kind of GPU.
using MatmulAlgorithm = std::array<uint64_t, 8>;

/// Matrix products by cublasLt. Algorithms are chosen once for a shape, the first by cublasLt's
/// estimate unless another is asked for, with no split of k that is summed in no fixed order: the
/// same shape on as many SMs gives the same bits.
class Matmuls {
 public:
  /// For `sms` SMs.
  explicit Matmuls(int sms);
  ~Matmuls();

  /// Bytes of work memory that Run needs, one for each stream it is called on.
  static constexpr size_t kWorkBytes = size_t{32} << 20;

  /// How many algorithms would do for a shape, at most 16. Throws GpuError, naming the shape, if
  /// there is none.
  int Candidates(const MatmulShape& shape) const;
  /// Chooses how to compute a shape: by the candidate of that number, the best by cublasLt's
  /// estimate first, which may give other bits. A shape stays as it was prepared first. Throws
  /// GpuError, naming the shape, if there is no such candidate.
  void Prepare(const MatmulShape& shape, int candidate = 0);
  /// Like the overload above, by an algorithm that AlgorithmOf gave. Throws GpuError, naming the
  /// shape, unless it computes the shape here, with the work memory there is, in a fixed order.
  void Prepare(const MatmulShape& shape, const MatmulAlgorithm& algorithm);
  /// Algorithm of a shape that was prepared.
  MatmulAlgorithm AlgorithmOf(const MatmulShape& shape) const;
  /// Source of the algorithms: the library and its version.
  static std::string Library();
  /// A shape that was prepared. c may be d; it is ignored unless `add`.
  void Run(Stream stream, const MatmulShape& shape, const Bf16* a, const Bf16* b, const void* c,
           void* d, void* work) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Demands of every implementation of Matmuls on its arguments.

/// Alignment of operands, in bytes: what algorithms are chosen for.
inline constexpr size_t kMatmulAlignment = 16;

/// The shape as errors name it: "bf16 [m x n] += a^T [m x k] b [k x n], 3 times".
std::string ToString(const MatmulShape& shape);
/// Throws GpuError if a size is less than 1.
void CheckShape(const MatmulShape& shape);
/// Throws GpuError unless 0 <= candidate < candidates.
void CheckCandidate(const MatmulShape& shape, int candidate, int candidates);
/// Throws GpuError if an operand is null or not aligned to kMatmulAlignment.
void CheckOperands(const MatmulShape& shape, const Bf16* a, const Bf16* b, const void* c,
                   const void* d, const void* work);

}  // namespace contraflow::gpu
