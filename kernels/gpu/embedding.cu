#include <algorithm>
#include <bit>

#include "kernels/gpu/embedding_and_loss.h"
#include "kernels/gpu/rows.h"

namespace contraflow::gpu {
namespace {

constexpr int kGatherBlocks = 6;  // that an SM holds at a time

template <int N>
__global__ void __launch_bounds__(kRowsBlock, kGatherBlocks)
    GatherKernel(const int32_t* tokens, const Bf16* table, int rows, int width, Bf16* y) {
  for (int row = FirstRow(); row < rows; row += RowStep()) {
    const Bf16* const from = Row(table, tokens[row], width);
    Bf16* const to = Row(y, row, width);
    Bf16s<N> values[kVectorsAtOnce] = {};
    CF_UNROLL
    for (int i = 0; i < kVectorsAtOnce; ++i) {
      if (Column<N>(i) < width) values[i] = Load<N>(from + Column<N>(i));
    }
    CF_UNROLL
    for (int i = 0; i < kVectorsAtOnce; ++i) {
      if (Column<N>(i) < width) Store<N>(to + Column<N>(i), values[i]);
    }
  }
}

// The gradient sorts the tokens, stably and by their bits, a digit at a time from the lowest: count
// the digits of each tile, scan the counts, scatter. Then a warp sums the rows of one token.

constexpr int kMostDigitBits = 9, kMostDigits = 1 << kMostDigitBits;
constexpr int kBlock = 256, kWarps = kBlock / kWarp;
constexpr int kEach = 8, kTile = kBlock * kEach;
constexpr int kScanBlock = 1024;

int Tiles(int rows) { return CeilDiv(rows, kTile); }

/// Tokens and where in the input they stood; where `row` is null, token i stands at i.
struct Sorted {
  const int32_t* token;
  const int32_t* row;
};

struct Digit {
  int shift, bits;
  __device__ int Of(int token) const { return (token >> shift) & ((1 << bits) - 1); }
};

/// counts[digit][tile]
__global__ void __launch_bounds__(kBlock)
    CountKernel(const int32_t* token, int rows, Digit digit, int32_t* counts) {
  __shared__ int32_t seen[kMostDigits];
  const int digits = 1 << digit.bits;
  for (int d = ThreadIndex(); d < digits; d += kBlock) seen[d] = 0;
  __syncthreads();
  const int begin = BlockIndex() * kTile, end = min(rows, begin + kTile);
  for (int i = begin + ThreadIndex(); i < end; i += kBlock) {
    atomicAdd(&seen[digit.Of(token[i])], 1);
  }
  __syncthreads();
  for (int d = ThreadIndex(); d < digits; d += kBlock) {
    counts[static_cast<ptrdiff_t>(d) * BlockCount() + BlockIndex()] = seen[d];
  }
}

/// Each count becomes the sum of those before it; one block.
__global__ void __launch_bounds__(kScanBlock) ScanKernel(int n, int32_t* counts) {
  const int each = CeilDiv(n, kScanBlock);
  const int begin = min(n, ThreadIndex() * each), end = min(n, begin + each);
  int sum = 0;
  for (int i = begin; i < end; ++i) sum += counts[i];
  int before = ScanBlock(sum);
  for (int i = begin; i < end; ++i) {
    const int count = counts[i];
    counts[i] = before;
    before += count;
  }
}

/// A warp has kEach * 32 neighbouring tokens of the tile, 32 at a time, and ranks each among those
/// of its digit in the warp; the tile's place and the warps before come on top.
__global__ void __launch_bounds__(kBlock)
    ScatterKernel(Sorted from, int rows, Digit digit, const int32_t* places, int32_t* token_to,
                  int32_t* row_to) {
  __shared__ int32_t seen[kWarps][kMostDigits];
  const int lane = Lane(), warp = ThreadIndex() / kWarp;
  const int digits = 1 << digit.bits;
  for (int d = lane; d < digits; d += kWarp) seen[warp][d] = 0;
  __syncwarp();
  const int begin = BlockIndex() * kTile + warp * kEach * kWarp + lane;
  int tokens[kEach], ranks[kEach];
  CF_UNROLL
  for (int i = 0; i < kEach; ++i) {
    const int at = begin + i * kWarp;
    const bool there = at < rows;
    tokens[i] = there ? from.token[at] : 0;
    const int d = digit.Of(tokens[i]);
    unsigned same = __ballot_sync(~0u, there);
    for (int bit = 0; bit < digit.bits; ++bit) {
      const bool set = (d >> bit & 1) != 0;
      const unsigned votes = __ballot_sync(~0u, set);
      same &= set ? votes : ~votes;
    }
    const int before = __popc(same & ((1u << lane) - 1));
    ranks[i] = there ? seen[warp][d] + before : 0;
    __syncwarp();
    if (there && before == 0) seen[warp][d] += __popc(same);
    __syncwarp();
  }
  __syncthreads();
  for (int d = ThreadIndex(); d < digits; d += kBlock) {
    int place = places[static_cast<ptrdiff_t>(d) * BlockCount() + BlockIndex()];
    for (auto& of_warp : seen) {
      const int count = of_warp[d];
      of_warp[d] = place;
      place += count;
    }
  }
  __syncthreads();
  CF_UNROLL
  for (int i = 0; i < kEach; ++i) {
    const int at = begin + i * kWarp;
    if (at >= rows) continue;
    const int to = seen[warp][digit.Of(tokens[i])] + ranks[i];
    token_to[to] = tokens[i];
    row_to[to] = from.row == nullptr ? at : from.row[at];
  }
}

/// The warp at the first place of a token in the sorted order adds its rows, in that order;
/// blockIdx.y takes columns, a vector of N each lane.
template <int N>
__global__ void __launch_bounds__(kBlock)
    AddKernel(Sorted sorted, const Bf16* dy, int rows, int width, float* dtable) {
  constexpr int kRowsAtOnce = 8;
  const int lane = Lane();
  const int begin = BlockIndex() * kWarps + ThreadIndex() / kWarp;
  if (begin >= rows) return;
  const int token = sorted.token[begin];
  if (begin > 0 && sorted.token[begin - 1] == token) return;
  const int column = (static_cast<int>(blockIdx.y) * kWarp + lane) * N;
  const bool inside = column < width;
  float* const to = Row(dtable, token, width) + column;
  Floats<N> sum = {};
  if (inside) sum = LoadFloats<N>(to);
  int run = kWarp;
  for (int first = begin; run == kWarp; first += kWarp) {
    const int mine = first + lane;
    const bool same = mine < rows && sorted.token[mine] == token;
    const int my_row = same ? sorted.row[mine] : 0;
    run = __popc(__ballot_sync(~0u, same));
    for (int k = 0; k < run; k += kRowsAtOnce) {
      Bf16s<N> values[kRowsAtOnce] = {};
      CF_UNROLL
      for (int i = 0; i < kRowsAtOnce; ++i) {
        const int row = __shfl_sync(~0u, my_row, k + i);
        if (k + i < run && inside) {
          values[i] = Load<N>(Row(dy, row, width) + column);
        }
      }
      CF_UNROLL
      for (int i = 0; i < kRowsAtOnce; ++i) {
        if (k + i >= run) continue;
        const Floats<N> more = Unpack(values[i]);
        CF_UNROLL
        for (int j = 0; j < N; ++j) sum.at[j] += more.at[j];
      }
    }
  }
  if (inside) StoreFloats<N>(to, sum);
}

}  // namespace

void EmbeddingForward(Stream stream, const int32_t* tokens, const Bf16* table, int rows, int width,
                      Bf16* y) {
  if (rows == 0 || width == 0) return;
  const bool vectors = width % 8 == 0 && Aligned(table, y);
  Launch("EmbeddingForward", stream,
         vectors ? RowsGrid<8>(stream, kGatherBlocks, rows, width)
                 : RowsGrid<1>(stream, kGatherBlocks, rows, width),
         kRowsBlock, 0, vectors ? GatherKernel<8> : GatherKernel<1>, tokens, table, rows, width, y);
}

size_t EmbeddingWork(int rows, int) {
  const size_t counts = static_cast<size_t>(Tiles(rows)) * kMostDigits;
  return (4 * static_cast<size_t>(rows) + counts) * sizeof(int32_t);
}

void EmbeddingBackwardWeight(Stream stream, const int32_t* tokens, const Bf16* dy, int rows,
                             int vocabulary, int width, void* work, float* dtable) {
  if (rows == 0 || width == 0) return;
  const char* const name = "EmbeddingBackwardWeight";
  const int tiles = Tiles(rows);
  // Two of each, which take turns.
  int32_t* const token = static_cast<int32_t*>(work);
  int32_t* const row = token + 2 * static_cast<ptrdiff_t>(rows);
  int32_t* const counts = row + 2 * static_cast<ptrdiff_t>(rows);

  const int bits = std::max(1, static_cast<int>(std::bit_width(Unsigned(vocabulary - 1))));
  const int passes = CeilDiv(bits, kMostDigitBits);
  Sorted from = {tokens, nullptr};
  for (int pass = 0, shift = 0; pass < passes; ++pass) {
    const Digit digit = {shift, CeilDiv(bits - shift, passes - pass)};
    const ptrdiff_t to = (pass % 2) * static_cast<ptrdiff_t>(rows);
    Launch(name, stream, Unsigned(tiles), kBlock, 0, CountKernel, from.token, rows, digit, counts);
    Launch(name, stream, 1, kScanBlock, 0, ScanKernel, tiles << digit.bits, counts);
    Launch(name, stream, Unsigned(tiles), kBlock, 0, ScatterKernel, from, rows, digit, counts,
           token + to, row + to);
    from = {token + to, row + to};
    shift += digit.bits;
  }
  const bool vectors = width % 8 == 0 && Aligned(dy) && Aligned(dtable);
  const dim3 grid(Unsigned(CeilDiv(rows, kWarps)),
                  Unsigned(CeilDiv(width, kWarp * (vectors ? 8 : 1))));
  Launch(name, stream, grid, kBlock, 0, vectors ? AddKernel<8> : AddKernel<1>, from, dy, rows,
         width, dtable);
}

}  // namespace contraflow::gpu
