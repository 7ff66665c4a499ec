#include <algorithm>
#include <cfloat>
#include <cmath>

#include "kernels/gpu/clip.h"
#include "kernels/gpu/simt.h"

namespace contraflow::gpu {

void AddSquareBlock(size_t begin, size_t size, int place, std::vector<SquareTile>* tiles,
                    std::vector<SquareBlock>* blocks) {
  const auto first = static_cast<int32_t>(tiles->size());
  for (const size_t end = begin + size; begin < end; begin += kSquareTile) {
    tiles->push_back({begin, static_cast<int64_t>(std::min(kSquareTile, end - begin))});
  }
  blocks->push_back({first, static_cast<int32_t>(tiles->size()), place});
}

namespace {

constexpr int kBlock = 256, kWarps = kBlock / kWarp;
constexpr int kBlocksAnSm = 4;

__device__ double WarpSum(double x) {
  for (int step = kWarp / 2; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

__global__ void __launch_bounds__(kBlock, kBlocksAnSm)
    TilesKernel(const float* values, const SquareTile* tiles, int count, double* partial) {
  __shared__ double of_warp[kWarps];
  for (int tile = BlockIndex(); tile < count; tile += BlockCount()) {
    const float* const from = values + tiles[tile].begin;
    const int size = static_cast<int>(tiles[tile].size);
    double sum = 0;
    for (int i = ThreadIndex(); i < size; i += kBlock) {
      const auto x = static_cast<double>(from[i]);
      sum += x * x;
    }
    sum = WarpSum(sum);
    if (Lane() == 0) of_warp[ThreadIndex() / kWarp] = sum;
    __syncthreads();
    if (ThreadIndex() == 0) {
      double all = 0;
      for (int warp = 0; warp < kWarps; ++warp) all += of_warp[warp];
      partial[tile] = all;
    }
    __syncthreads();
  }
}

/// A warp takes a block.
__global__ void __launch_bounds__(kBlock)
    BlocksKernel(const double* partial, const SquareBlock* blocks, int count, double* squares,
                 int32_t* not_finite) {
  const int block = BlockIndex() * kWarps + ThreadIndex() / kWarp;
  if (block >= count) return;
  const SquareBlock at = blocks[block];
  double sum = 0;
  for (int tile = at.first + Lane(); tile < at.last; tile += kWarp) sum += partial[tile];
  sum = WarpSum(sum);
  if (Lane() > 0) return;
  if (squares != nullptr) squares[at.place] = sum;
  if (!(sum <= DBL_MAX)) atomicMax(not_finite, count - block);
}

__global__ void __launch_bounds__(kBlock)
    NoteKernel(const float* losses, int n, const int32_t* flags, int m, double* note) {
  __shared__ int failed;
  if (ThreadIndex() == 0) failed = 0;
  __syncthreads();
  for (int i = ThreadIndex(); i < n; i += kBlock) {
    if (!(fabsf(losses[i]) <= FLT_MAX)) atomicMax(&failed, 1);
  }
  for (int i = ThreadIndex(); i < m; i += kBlock) {
    if (flags[i] != 0) atomicMax(&failed, 1);
  }
  __syncthreads();
  if (ThreadIndex() == 0) *note = failed != 0 ? static_cast<double>(NAN) : 0;
}

/// The largest, or one that is not finite.
__device__ double LargestOf(const double* squares, int parts, int n, int i) {
  double largest = 0;
  for (int part = 0; part < parts && largest <= DBL_MAX; ++part) {
    const double x = squares[static_cast<ptrdiff_t>(part) * n + i];
    if (!(x <= largest)) largest = x;
  }
  return largest;
}

__global__ void __launch_bounds__(kBlock)
    ClipKernel(const double* squares, int parts, int n, double limit, Clip* clip) {
  __shared__ double some[kBlock];
  double sum = 0;
  for (int begin = 0; begin < n; begin += kBlock) {
    const int here = begin + ThreadIndex();
    if (here < n) some[ThreadIndex()] = LargestOf(squares, parts, n, here);
    __syncthreads();
    if (ThreadIndex() == 0) {
      for (int i = 0; i < min(kBlock, n - begin); ++i) sum += some[i];
    }
    __syncthreads();
  }
  if (ThreadIndex() > 0) return;
  const double norm = sqrt(sum);
  const bool failed = clip->failed != 0 || !(norm <= DBL_MAX);
  *clip = {norm, norm > limit ? static_cast<float>(limit / norm) : 1.0f, failed ? 1 : 0};
}

__global__ void __launch_bounds__(kBlock) ScaleKernel(const Clip* clip, size_t n, float* values) {
  const float scale = clip->scale;
  if (scale == 1) return;
  const size_t step = static_cast<size_t>(gridDim.x) * kBlock;
  for (size_t i = static_cast<size_t>(blockIdx.x) * kBlock + threadIdx.x; i < n; i += step) {
    values[i] *= scale;
  }
}

unsigned Blocks(Stream stream, size_t work) {
  const size_t most = static_cast<size_t>(std::max(stream.sms, 1)) * kBlocksAnSm;
  return static_cast<unsigned>(std::clamp<size_t>(work, 1, most));
}

}  // namespace

void SumSquares(Stream stream, const float* values, const SquareTile* tiles, int tile_count,
                const SquareBlock* blocks, int block_count, double* partial, double* squares,
                int32_t* not_finite) {
  if (block_count == 0) return;
  if (tile_count > 0) {
    Launch("SumSquares", stream, Blocks(stream, static_cast<size_t>(tile_count)), kBlock, 0,
           TilesKernel, values, tiles, tile_count, partial);
  }
  Launch("SumSquares", stream, Unsigned(CeilDiv(block_count, kWarps)), kBlock, 0, BlocksKernel,
         partial, blocks, block_count, squares, not_finite);
}

void NoteFailure(Stream stream, const float* losses, int n, const int32_t* flags, int m,
                 double* note) {
  Launch("NoteFailure", stream, 1, kBlock, 0, NoteKernel, losses, n, flags, m, note);
}

void ClipToNorm(Stream stream, const double* squares, int parts, int n, float limit, Clip* clip) {
  Launch("ClipToNorm", stream, 1, kBlock, 0, ClipKernel, squares, parts, n,
         static_cast<double>(limit), clip);
}

void ScaleToClip(Stream stream, const Clip* clip, size_t n, float* values) {
  if (n == 0) return;
  Launch("ScaleToClip", stream, Blocks(stream, (n + kBlock - 1) / kBlock), kBlock, 0, ScaleKernel,
         clip, n, values);
}

}  // namespace contraflow::gpu
