#include "kernels/gpu/rmsnorm.h"
#include "kernels/gpu/vector.h"
#include "kernels/host/normalization.h"

namespace contraflow::gpu {
namespace {

// A team of threads takes a row at a time and holds it in registers between its two uses; a thread
// has the same columns of every row, and their gains with it. After a vector is used, that of the
// next row is loaded.

constexpr int kThreadsAnSm = 1024;  // as many as can have 64 registers each
constexpr float kEpsilon = static_cast<float>(kRmsNormEpsilon);

/// A team is a warp, of which a block has several, or a whole block.
template <int kTeam>
constexpr int kBlock = kTeam == kWarp ? 4 * kWarp : kTeam;

/// The sum over the team, the same bits in each of its threads. `turn` is 0 and 1 in turns: a
/// thread that is a row ahead must not write where others still read.
template <int kTeam>
__device__ float TeamSum(float x, int turn) {
  x = WarpSum(x);
  if constexpr (kTeam > kWarp) {
    __shared__ float of_warp[2][kTeam / kWarp];
    if (Lane() == 0) of_warp[turn][ThreadIndex() / kWarp] = x;
    __syncthreads();
    x = 0;
    CF_UNROLL
    for (int w = 0; w < kTeam / kWarp; ++w) x += of_warp[turn][w];
  }
  return x;
}

template <int kTeam>
__device__ int FirstRow() {
  return BlockIndex() * (kBlock<kTeam> / kTeam) + ThreadIndex() / kTeam;
}
template <int kTeam>
__device__ int RowStep() {
  return BlockCount() * (kBlock<kTeam> / kTeam);
}
/// Start of vector i of this thread in its rows.
template <int kTeam, int N>
__device__ int Column(int i) {
  return (i * kTeam + ThreadIndex() % kTeam) * N;
}

/// Vector i of this thread in the row; 0 after the end of the row, or after the last row.
template <int kTeam>
__device__ Bf16s<8> LoadPart(const Bf16* x, int row, int rows, int width, int i) {
  const int column = Column<kTeam, 8>(i);
  if (row >= rows || column >= width) return {};
  return Load<8>(x + static_cast<ptrdiff_t>(row) * width + column);
}
template <int kTeam, int kVectors>
__device__ void LoadGain(const float* gain, int width, Floats<8> (&held)[kVectors]) {
  CF_UNROLL
  for (int i = 0; i < kVectors; ++i) {
    const int column = Column<kTeam, 8>(i);
    held[i] = column < width ? LoadFloats<8>(gain + column) : Floats<8>{};
  }
}

template <int N>
__device__ float SquaresOf(const Bf16s<N>& packed, float sum) {
  const Floats<N> x = Unpack(packed);
  CF_UNROLL
  for (int j = 0; j < N; ++j) sum += x.at[j] * x.at[j];
  return sum;
}

template <int N>
__device__ Bf16s<N> Scaled(const Bf16s<N>& packed, const Floats<N>& gain, float scale) {
  Floats<N> x = Unpack(packed);
  CF_UNROLL
  for (int j = 0; j < N; ++j) x.at[j] = gain.at[j] * (x.at[j] * scale);
  return Pack(x);
}

template <int kTeam, int kVectors>
__global__ void __launch_bounds__(kBlock<kTeam>, kThreadsAnSm / kBlock<kTeam>)
    ForwardKernel(const Bf16* x, const float* gain, int rows, int width, float* rstd, Bf16* y) {
  Floats<8> gains[kVectors];
  LoadGain<kTeam>(gain, width, gains);
  Bf16s<8> held[kVectors];
  CF_UNROLL
  for (int i = 0; i < kVectors; ++i) {
    held[i] = LoadPart<kTeam>(x, FirstRow<kTeam>(), rows, width, i);
  }
  int turn = 0;
  for (int row = FirstRow<kTeam>(); row < rows; row += RowStep<kTeam>(), turn ^= 1) {
    const ptrdiff_t begin = static_cast<ptrdiff_t>(row) * width;
    float squares = 0;
    CF_UNROLL
    for (int i = 0; i < kVectors; ++i) squares = SquaresOf(held[i], squares);
    const float mean = TeamSum<kTeam>(squares, turn) / static_cast<float>(width);
    const float scale = rsqrtf(mean + kEpsilon);
    if (ThreadIndex() % kTeam == 0) rstd[row] = scale;
    CF_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      const int column = Column<kTeam, 8>(i);
      if (column < width) Store<8>(y + begin + column, Scaled(held[i], gains[i], scale));
      held[i] = LoadPart<kTeam>(x, row + RowStep<kTeam>(), rows, width, i);
    }
  }
}

/// u * x summed, with u = gain * dy.
template <int N>
__device__ float ProductsOf(const Bf16s<N>& dy, const Bf16s<N>& x, const Floats<N>& gain,
                            float sum) {
  const Floats<N> d = Unpack(dy), v = Unpack(x);
  CF_UNROLL
  for (int j = 0; j < N; ++j) sum += gain.at[j] * d.at[j] * v.at[j];
  return sum;
}

/// With h = x * rstd: dx = residual + rstd * (u - h * mean(u * h)); slope is rstd * that mean.
template <int N>
__device__ Bf16s<N> Through(const Bf16s<N>& dy, const Bf16s<N>& x, const Floats<N>& gain,
                            const Bf16s<N>& residual, float scale, float slope) {
  const Floats<N> d = Unpack(dy), v = Unpack(x);
  Floats<N> dx = Unpack(residual);
  CF_UNROLL
  for (int j = 0; j < N; ++j) dx.at[j] += scale * (gain.at[j] * d.at[j] - v.at[j] * slope);
  return Pack(dx);
}

template <int kTeam, int kVectors>
__global__ void __launch_bounds__(kBlock<kTeam>, kThreadsAnSm / kBlock<kTeam>)
    BackwardKernel(const Bf16* x, const float* gain, const float* rstd, const Bf16* dy,
                   const Bf16* residual, int rows, int width, Bf16* dx) {
  Floats<8> gains[kVectors];
  LoadGain<kTeam>(gain, width, gains);
  Bf16s<8> xs[kVectors], dys[kVectors];
  CF_UNROLL
  for (int i = 0; i < kVectors; ++i) {
    xs[i] = LoadPart<kTeam>(x, FirstRow<kTeam>(), rows, width, i);
    dys[i] = LoadPart<kTeam>(dy, FirstRow<kTeam>(), rows, width, i);
  }
  int turn = 0;
  for (int row = FirstRow<kTeam>(); row < rows; row += RowStep<kTeam>(), turn ^= 1) {
    const ptrdiff_t begin = static_cast<ptrdiff_t>(row) * width;
    const float scale = rstd[row];
    Bf16s<8> rests[kVectors] = {};
    if (residual != nullptr) {
      CF_UNROLL
      for (int i = 0; i < kVectors; ++i) {
        rests[i] = LoadPart<kTeam>(residual, row, rows, width, i);
      }
    }
    float products = 0;
    CF_UNROLL
    for (int i = 0; i < kVectors; ++i) products = ProductsOf(dys[i], xs[i], gains[i], products);
    const float slope = TeamSum<kTeam>(products, turn) * scale * scale / static_cast<float>(width);
    CF_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      const int column = Column<kTeam, 8>(i);
      if (column < width) {
        Store<8>(dx + begin + column, Through(dys[i], xs[i], gains[i], rests[i], scale, slope));
      }
      xs[i] = LoadPart<kTeam>(x, row + RowStep<kTeam>(), rows, width, i);
      dys[i] = LoadPart<kTeam>(dy, row + RowStep<kTeam>(), rows, width, i);
    }
  }
}

// Rows that are no vectors or too wide: a block reads the row a second time, from the cache.
constexpr int kOddBlock = 256;

__global__ void __launch_bounds__(kOddBlock)
    OddForwardKernel(const Bf16* x, const float* gain, int rows, int width, float* rstd, Bf16* y) {
  int turn = 0;
  for (int row = BlockIndex(); row < rows; row += BlockCount(), turn ^= 1) {
    const ptrdiff_t begin = static_cast<ptrdiff_t>(row) * width;
    float squares = 0;
    for (int j = ThreadIndex(); j < width; j += kOddBlock) {
      squares = SquaresOf(Load<1>(x + begin + j), squares);
    }
    const float mean = TeamSum<kOddBlock>(squares, turn) / static_cast<float>(width);
    const float scale = rsqrtf(mean + kEpsilon);
    if (ThreadIndex() == 0) rstd[row] = scale;
    for (int j = ThreadIndex(); j < width; j += kOddBlock) {
      Store<1>(y + begin + j, Scaled(Load<1>(x + begin + j), LoadFloats<1>(gain + j), scale));
    }
  }
}

__global__ void __launch_bounds__(kOddBlock)
    OddBackwardKernel(const Bf16* x, const float* gain, const float* rstd, const Bf16* dy,
                      const Bf16* residual, int rows, int width, Bf16* dx) {
  int turn = 0;
  for (int row = BlockIndex(); row < rows; row += BlockCount(), turn ^= 1) {
    const ptrdiff_t begin = static_cast<ptrdiff_t>(row) * width;
    const float scale = rstd[row];
    float products = 0;
    for (int j = ThreadIndex(); j < width; j += kOddBlock) {
      products = ProductsOf(Load<1>(dy + begin + j), Load<1>(x + begin + j),
                            LoadFloats<1>(gain + j), products);
    }
    const float slope =
        TeamSum<kOddBlock>(products, turn) * scale * scale / static_cast<float>(width);
    for (int j = ThreadIndex(); j < width; j += kOddBlock) {
      const Bf16s<1> rest = residual != nullptr ? Load<1>(residual + begin + j) : Bf16s<1>{};
      Store<1>(dx + begin + j, Through(Load<1>(dy + begin + j), Load<1>(x + begin + j),
                                       LoadFloats<1>(gain + j), rest, scale, slope));
    }
  }
}

template <int kTeam>
unsigned Blocks(Stream stream, int rows) {
  return Unsigned(
      std::min(CeilDiv(rows, kBlock<kTeam> / kTeam), stream.sms * (kThreadsAnSm / kBlock<kTeam>)));
}

/// Calls launch<team, vectors>() with the smallest team that holds a row of this width, or
/// launch<0, 0>() if none does.
template <typename F>
void ForWidth(int width, bool aligned, const F& launch) {
  if (width % 8 != 0 || !aligned || width > 16384) {
    launch.template operator()<0, 0>();
  } else if (width <= 256) {
    launch.template operator()<32, 1>();
  } else if (width <= 512) {
    launch.template operator()<64, 1>();
  } else if (width <= 1024) {
    launch.template operator()<128, 1>();
  } else if (width <= 2048) {
    launch.template operator()<128, 2>();
  } else if (width <= 4096) {
    launch.template operator()<256, 2>();
  } else if (width <= 8192) {
    launch.template operator()<512, 2>();
  } else {
    launch.template operator()<1024, 2>();
  }
}

}  // namespace

void RmsNormForward(Stream stream, const Bf16* x, const float* gain, int rows, int width,
                    float* rstd, Bf16* y) {
  if (rows == 0) return;
  const char* const name = "RmsNormForward";
  ForWidth(width, Aligned(x, y) && Aligned(gain), [&]<int kTeam, int kVectors>() {
    if constexpr (kTeam == 0) {
      Launch(name, stream, Blocks<kOddBlock>(stream, rows), kOddBlock, 0, OddForwardKernel, x, gain,
             rows, width, rstd, y);
    } else {
      Launch(name, stream, Blocks<kTeam>(stream, rows), kBlock<kTeam>, 0,
             ForwardKernel<kTeam, kVectors>, x, gain, rows, width, rstd, y);
    }
  });
}

void RmsNormBackwardInput(Stream stream, const Bf16* x, const float* gain, const float* rstd,
                          const Bf16* dy, const Bf16* residual, int rows, int width, Bf16* dx) {
  if (rows == 0) return;
  const char* const name = "RmsNormBackwardInput";
  ForWidth(width, Aligned(x, dy, residual, dx) && Aligned(gain), [&]<int kTeam, int kVectors>() {
    if constexpr (kTeam == 0) {
      Launch(name, stream, Blocks<kOddBlock>(stream, rows), kOddBlock, 0, OddBackwardKernel, x,
             gain, rstd, dy, residual, rows, width, dx);
    } else {
      Launch(name, stream, Blocks<kTeam>(stream, rows), kBlock<kTeam>, 0,
             BackwardKernel<kTeam, kVectors>, x, gain, rstd, dy, residual, rows, width, dx);
    }
  });
}

namespace {

// The sum over the rows in two stages. Rows are divided into ranges by their number alone: a warp
// of a range's block sums every eighth of them, the block its warps, and the second kernel the
// ranges, each in ascending order.

constexpr int kRangeWarps = 8, kRangeBlock = kRangeWarps * kWarp, kRangeRows = 4;
constexpr int kFewestRows = 32, kMostRanges = 128;

int RowsEach(int rows) { return std::max(kFewestRows, CeilDiv(rows, kMostRanges)); }
int Ranges(int rows) { return CeilDiv(rows, RowsEach(rows)); }

/// work[range x width]; blockIdx.x takes columns, a vector of N each lane, blockIdx.y a range.
template <int N>
__global__ void __launch_bounds__(kRangeBlock)
    RangeKernel(const Bf16* x, const float* rstd, const Bf16* dy, int rows, int width,
                int rows_each, float* work) {
  const int lane = Lane(), warp = ThreadIndex() / kWarp;
  const int first = BlockIndex() * kWarp * N, column = first + lane * N;
  const int range = static_cast<int>(blockIdx.y);
  const int end = min(rows, (range + 1) * rows_each);
  Floats<N> sum = {};
  for (int begin = range * rows_each + warp; begin < end; begin += kRangeWarps * kRangeRows) {
    Bf16s<N> xs[kRangeRows] = {}, dys[kRangeRows] = {};
    float scales[kRangeRows] = {};
    CF_UNROLL
    for (int i = 0; i < kRangeRows; ++i) {
      const int row = begin + i * kRangeWarps;
      if (row >= end || column >= width) continue;
      xs[i] = Load<N>(x + static_cast<ptrdiff_t>(row) * width + column);
      dys[i] = Load<N>(dy + static_cast<ptrdiff_t>(row) * width + column);
      scales[i] = rstd[row];
    }
    CF_UNROLL
    for (int i = 0; i < kRangeRows; ++i) {
      const Floats<N> v = Unpack(xs[i]), d = Unpack(dys[i]);
      CF_UNROLL
      for (int j = 0; j < N; ++j) sum.at[j] += d.at[j] * (v.at[j] * scales[i]);
    }
  }
  __shared__ float of_warp[kRangeWarps][kWarp * N];
  CF_UNROLL
  for (int j = 0; j < N; ++j) of_warp[warp][lane * N + j] = sum.at[j];
  __syncthreads();
  const int mine = ThreadIndex();
  if (mine >= kWarp * N || first + mine >= width) return;
  float total = 0;
  CF_UNROLL
  for (int w = 0; w < kRangeWarps; ++w) total += of_warp[w][mine];
  work[static_cast<ptrdiff_t>(range) * width + first + mine] = total;
}

/// A column a lane; a warp sums every eighth range.
__global__ void __launch_bounds__(kRangeBlock)
    TotalKernel(const float* work, int ranges, int width, float* dgain) {
  const int lane = Lane(), warp = ThreadIndex() / kWarp;
  const int column = BlockIndex() * kWarp + lane;
  float sum = 0;
  if (column < width) {
    for (int range = warp; range < ranges; range += kRangeWarps) {
      sum += work[static_cast<ptrdiff_t>(range) * width + column];
    }
  }
  __shared__ float of_warp[kRangeWarps][kWarp];
  of_warp[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || column >= width) return;
  float total = 0;
  CF_UNROLL
  for (int w = 0; w < kRangeWarps; ++w) total += of_warp[w][lane];
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
  Launch(name, stream, grid, kRangeBlock, 0, vectors ? RangeKernel<8> : RangeKernel<1>, x, rstd, dy,
         rows, width, rows_each, work);
  Launch(name, stream, Unsigned(CeilDiv(width, kWarp)), kRangeBlock, 0, TotalKernel, work, ranges,
         width, dgain);
}

}  // namespace contraflow::gpu
