#include "kernels/gpu/simt.h"
#include "kernels/gpu/sum.h"

namespace contraflow::gpu {
namespace {

constexpr int kThreads = 256;

__device__ float Add(float a, float b) { return a + b; }
__device__ float4 Add(float4 a, float4 b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

/// T is float, or float4: n and stride are in T.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    AddSlicesKernel(T* own, const T* __restrict__ others, size_t stride, int parts, int self,
                    size_t n) {
  const size_t step = static_cast<size_t>(gridDim.x) * kThreads;
  for (size_t i = static_cast<size_t>(blockIdx.x) * kThreads + threadIdx.x; i < n; i += step) {
    const T mine = own[i];
    T sum = self == 0 ? mine : others[i];
    for (int part = 1; part < parts; ++part) {
      const auto other = static_cast<size_t>(part < self ? part : part - 1);
      sum = Add(sum, part == self ? mine : others[other * stride + i]);
    }
    own[i] = sum;
  }
}

template <typename T>
void Run(Stream stream, const Slices& slices, size_t n, int ctas) {
  constexpr size_t kWidth = sizeof(T) / sizeof(float);
  const size_t count = n / kWidth, blocks = (count + kThreads - 1) / kThreads;
  const auto most = static_cast<size_t>(max(ctas, 1));
  Launch("AddSlices", stream, static_cast<unsigned>(blocks < most ? blocks : most), kThreads, 0,
         AddSlicesKernel<T>, reinterpret_cast<T*>(slices.own),
         reinterpret_cast<const T*>(slices.others), slices.stride / kWidth, slices.parts,
         slices.self, count);
}

bool Aligned(const void* at) { return reinterpret_cast<uintptr_t>(at) % sizeof(float4) == 0; }

}  // namespace

void AddSlices(Stream stream, const Slices& slices, size_t n, int ctas) {
  if (slices.parts < 2 || n == 0) return;
  const bool wide =
      Aligned(slices.own) && Aligned(slices.others) && slices.stride % 4 == 0 && n % 4 == 0;
  wide ? Run<float4>(stream, slices, n, ctas) : Run<float>(stream, slices, n, ctas);
}

}  // namespace contraflow::gpu
