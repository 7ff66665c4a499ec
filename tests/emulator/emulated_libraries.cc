// Substitute for NVIDIA's libraries where the emulator stands in for a GPU: for cublasLt the same
// class, as loops, with a second candidate that sums from the end; cuDNN is not there.

#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/gpu/matmul.h"
#include "tests/emulator/emulator.h"

namespace contraflow::gpu {
namespace {

/// x[rows x columns], stored transposed or not, as dense floats.
std::vector<float> Floats(const Bf16* x, bool transposed, size_t rows, size_t columns) {
  std::vector<float> floats(rows * columns);
  for (size_t i = 0; i < rows; ++i) {
    for (size_t j = 0; j < columns; ++j) {
      floats[i * columns + j] = ToFloat(transposed ? x[j * rows + i] : x[i * columns + j]);
    }
  }
  return floats;
}

constexpr int kCandidates = 2;

template <typename T>
void Multiply(const MatmulShape& shape, int candidate, const Bf16* a, const Bf16* b, const T* c,
              T* d) {
  const auto m = static_cast<size_t>(shape.m), n = static_cast<size_t>(shape.n);
  const auto k = static_cast<size_t>(shape.k);
  const std::vector<float> left = Floats(a, shape.transpose_a == Transpose::kYes, m, k);
  const std::vector<float> right = Floats(b, shape.transpose_b == Transpose::kYes, k, n);
  std::vector<float> sums(n);
  for (size_t i = 0; i < m; ++i) {
    std::ranges::fill(sums, 0.0f);
    for (size_t step = 0; step < k; ++step) {
      const size_t p = candidate == 0 ? step : k - 1 - step;
      const float factor = left[i * k + p];
      for (size_t j = 0; j < n; ++j) sums[j] += factor * right[p * n + j];
    }
    for (size_t j = 0; j < n; ++j) {
      const float before = shape.add ? ToFloat(c[i * n + j]) : 0.0f;
      d[i * n + j] = FromFloat<T>(sums[j] + before);
    }
  }
}

template <typename T>
void MultiplyAll(const MatmulShape& shape, int candidate, const Bf16* a, const Bf16* b, const T* c,
                 T* d) {
  const auto m = static_cast<size_t>(shape.m), n = static_cast<size_t>(shape.n);
  const auto k = static_cast<size_t>(shape.k);
  for (int i = 0; i < shape.batch; ++i) {
    Multiply(shape, candidate, a, b, c, d);
    a += m * k;
    b += k * n;
    if (shape.add) c += m * n;
    d += m * n;
  }
}

}  // namespace

struct Matmuls::Impl {
  std::map<MatmulShape, int> prepared;  // by which candidate

  int At(const MatmulShape& shape) const {
    const auto found = prepared.find(shape);
    if (found != prepared.end()) return found->second;
    throw GpuError("matmul " + ToString(shape) + ": it was not prepared");
  }
};

Matmuls::Matmuls(int sms) : impl_(std::make_unique<Impl>()) {
  if (sms < 1) throw GpuError("matmuls need at least 1 SM");
}
Matmuls::~Matmuls() = default;

int Matmuls::Candidates(const MatmulShape& shape) const {
  CheckShape(shape);
  return kCandidates;
}

void Matmuls::Prepare(const MatmulShape& shape, int candidate) {
  CheckShape(shape);
  CheckCandidate(shape, candidate, kCandidates);
  impl_->prepared.emplace(shape, candidate);
}

void Matmuls::Prepare(const MatmulShape& shape, const MatmulAlgorithm& algorithm) {
  if (algorithm[0] >= kCandidates || algorithm[1] != 0) {
    throw GpuError("matmul " + ToString(shape) + ": this algorithm cannot be used for it here");
  }
  Prepare(shape, static_cast<int>(algorithm[0]));
}

MatmulAlgorithm Matmuls::AlgorithmOf(const MatmulShape& shape) const {
  return {static_cast<uint64_t>(impl_->At(shape))};
}

std::string Matmuls::Library() { return "loops 1"; }

void Matmuls::Run(Stream stream, const MatmulShape& shape, const Bf16* a, const Bf16* b,
                  const void* c, void* d, void* work) const {
  const int prepared = impl_->At(shape);
  CheckOperands(shape, a, b, c, d, work);
  emulator::Enqueue(stream.handle, "Matmul", [=, candidate = prepared] {
    // cublasLt may write all of its work memory.
    std::memset(work, 0xff, sizeof(float));
    std::memset(static_cast<std::byte*>(work) + kWorkBytes - sizeof(float), 0xff, sizeof(float));
    if (shape.float_out) {
      MultiplyAll(shape, candidate, a, b, static_cast<const float*>(c), static_cast<float*>(d));
    } else {
      MultiplyAll(shape, candidate, a, b, static_cast<const Bf16*>(c), static_cast<Bf16*>(d));
    }
  });
}

AttentionForward CudnnForward(const AttentionShape&, size_t) {
  throw GpuError("the emulator has no cuDNN");
}
AttentionBackward CudnnBackward(const AttentionShape&, size_t) {
  throw GpuError("the emulator has no cuDNN");
}

}  // namespace contraflow::gpu
