#include "kernels/gpu/parts.h"
#include "kernels/gpu/simt.h"

namespace contraflow::gpu {
namespace {

constexpr int kCopyThreads = 512;
constexpr int kCountThreads = 128;
constexpr size_t kWord = sizeof(uint4);

/// Strides and lengths are in words of 16 bytes.
__global__ void __launch_bounds__(kCopyThreads)
    CopyPartsKernel(const uint4* __restrict__ from, size_t from_stride, uint4* __restrict__ to,
                    size_t to_stride, size_t words, size_t all) {
  const size_t step = static_cast<size_t>(gridDim.x) * kCopyThreads;
  for (size_t i = static_cast<size_t>(blockIdx.x) * kCopyThreads + threadIdx.x; i < all;
       i += step) {
    const size_t part = i / words, word = i % words;
    to[part * to_stride + word] = from[part * from_stride + word];
  }
}

__global__ void __launch_bounds__(kCountThreads)
    SetCountsKernel(int32_t* first, int32_t* received, int members, int local_experts,
                    int capacity) {
  const int i = static_cast<int>(blockIdx.x * kCountThreads + threadIdx.x);
  if (i <= local_experts) first[i] = i * members * capacity;
  if (i < members * local_experts) received[i] = capacity;
}

}  // namespace

void CopyParts(Stream stream, const void* from, size_t from_stride, void* to, size_t to_stride,
               size_t bytes, int parts, int ctas) {
  if (bytes % kWord != 0 || from_stride % kWord != 0 || to_stride % kWord != 0) {
    throw GpuError("CopyParts: parts and strides must be multiples of 16 bytes");
  }
  const size_t words = bytes / kWord, all = words * static_cast<size_t>(parts);
  if (all == 0) return;
  const size_t blocks = (all + kCopyThreads - 1) / kCopyThreads;
  const auto most = static_cast<size_t>(max(ctas, 1));
  Launch("CopyParts", stream, static_cast<unsigned>(blocks < most ? blocks : most), kCopyThreads, 0,
         CopyPartsKernel, static_cast<const uint4*>(from), from_stride / kWord,
         static_cast<uint4*>(to), to_stride / kWord, words, all);
}

void SetCounts(Stream stream, int32_t* first, int32_t* received, int members, int local_experts,
               int capacity) {
  const int counts = max(local_experts + 1, members * local_experts);
  Launch("SetCounts", stream, static_cast<unsigned>(CeilDiv(counts, kCountThreads)), kCountThreads,
         0, SetCountsKernel, first, received, members, local_experts, capacity);
}

}  // namespace contraflow::gpu
