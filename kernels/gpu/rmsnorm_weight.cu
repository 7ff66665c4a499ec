#include "kernels/gpu/rmsnorm.h"
#include "kernels/gpu/vector.h"

namespace contraflow::gpu {
namespace {

// The sum over the rows in two stages. Rows are divided into ranges by their number alone: a warp
// of a range's block sums every eighth of them, the block its warps, and the second kernel the
// ranges, each in ascending order.

constexpr int kWarps = 8, kBlock = kWarps * kWarp, kRowsAtOnce = 4;
constexpr int kFewestRows = 32, kMostRanges = 128;

int RowsEach(int rows) { return std::max(kFewestRows, CeilDiv(rows, kMostRanges)); }
int Ranges(int rows) { return CeilDiv(rows, RowsEach(rows)); }

/// work[range x width]; blockIdx.x takes columns, a vector of N each lane, blockIdx.y a range.
template <int N>
__global__ void __launch_bounds__(kBlock)
    RangeKernel(const Bf16* x, const float* rstd, const Bf16* dy, int rows, int width,
                int rows_each, float* work) {
  const int lane = ThreadIndex() % kWarp, warp = ThreadIndex() / kWarp;
  const int first = BlockIndex() * kWarp * N, column = first + lane * N;
  const int range = static_cast<int>(blockIdx.y);
  const int end = min(rows, (range + 1) * rows_each);
  Floats<N> sum = {};
  for (int begin = range * rows_each + warp; begin < end; begin += kWarps * kRowsAtOnce) {
    Bf16s<N> xs[kRowsAtOnce] = {}, dys[kRowsAtOnce] = {};
    float scales[kRowsAtOnce] = {};
    CF_UNROLL
    for (int i = 0; i < kRowsAtOnce; ++i) {
      const int row = begin + i * kWarps;
      if (row >= end || column >= width) continue;
      xs[i] = Load<N>(x + static_cast<ptrdiff_t>(row) * width + column);
      dys[i] = Load<N>(dy + static_cast<ptrdiff_t>(row) * width + column);
      scales[i] = rstd[row];
    }
    CF_UNROLL
    for (int i = 0; i < kRowsAtOnce; ++i) {
      const Floats<N> v = Unpack(xs[i]), d = Unpack(dys[i]);
      CF_UNROLL
      for (int j = 0; j < N; ++j) sum.at[j] += d.at[j] * (v.at[j] * scales[i]);
    }
  }
  __shared__ float of_warp[kWarps][kWarp * N];
  CF_UNROLL
  for (int j = 0; j < N; ++j) of_warp[warp][lane * N + j] = sum.at[j];
  __syncthreads();
  const int mine = ThreadIndex();
  if (mine >= kWarp * N || first + mine >= width) return;
  float total = 0;
  CF_UNROLL
  for (int w = 0; w < kWarps; ++w) total += of_warp[w][mine];
  work[static_cast<ptrdiff_t>(range) * width + first + mine] = total;
}

/// A column a lane; a warp sums every eighth range.
__global__ void __launch_bounds__(kBlock)
    TotalKernel(const float* work, int ranges, int width, float* dgain) {
  const int lane = ThreadIndex() % kWarp, warp = ThreadIndex() / kWarp;
  const int column = BlockIndex() * kWarp + lane;
  float sum = 0;
  if (column < width) {
    for (int range = warp; range < ranges; range += kWarps) {
      sum += work[static_cast<ptrdiff_t>(range) * width + column];
    }
  }
  __shared__ float of_warp[kWarps][kWarp];
  of_warp[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || column >= width) return;
  float total = 0;
  CF_UNROLL
  for (int w = 0; w < kWarps; ++w) total += of_warp[w][lane];
  dgain[column] += total;
}

}  // namespace

size_t RmsNormWork(int rows, int width) {
  return static_cast<size_t>(Ranges(rows)) * static_cast<size_t>(width);
}

void RmsNormBackwardWeight(Stream stream, const Bf16* x, const float* rstd, const Bf16* dy,
                           int rows, int width, float* work, float* dgain) {
  if (rows == 0 || width == 0) return;
  const char* const name = "RmsNormBackwardWeight";
  const int ranges = Ranges(rows), rows_each = RowsEach(rows);
  const bool vectors = width % 8 == 0 && Aligned(x, dy);
  const dim3 grid(Unsigned(CeilDiv(width, kWarp * (vectors ? 8 : 1))), Unsigned(ranges));
  Launch(name, stream, grid, kBlock, 0, vectors ? RangeKernel<8> : RangeKernel<1>, x, rstd, dy,
         rows, width, rows_each, work);
  Launch(name, stream, Unsigned(CeilDiv(width, kWarp)), kBlock, 0, TotalKernel, work, ranges, width,
         dgain);
}

}  // namespace contraflow::gpu
