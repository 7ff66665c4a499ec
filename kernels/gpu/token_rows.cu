#include <string>

#include "kernels/gpu/routing.h"
#include "kernels/gpu/rows.h"

namespace contraflow::gpu {
namespace {

// One warp a token: lane k holds the row and the weight of choice k, and each lane works on vectors
// of its own, some choices at a time, so that several reads are under way.
constexpr int kUnderWay = 4;

struct Choice {
  int row;
  float weight;
};

/// The choice `Lane()` of a token, of row -1 if there is none.
__device__ Choice MyChoice(const int32_t* row_of, const float* weight, int token, int top_k) {
  const ptrdiff_t pair = static_cast<ptrdiff_t>(token) * top_k + Lane();
  if (Lane() >= top_k) return {-1, 0.0f};
  return {row_of[pair], weight[pair]};
}

template <int N>
__global__ void __launch_bounds__(kRowThreads, kRowBlocks)
    CombineForwardKernel(const Bf16* residual, const Bf16* sorted, const int32_t* row_of,
                         const float* weight, int rows, int top_k, int width, Bf16* y, Bf16* kept) {
  for (int t = WarpInGrid(); t < rows; t += WarpsOfGrid()) {
    const Choice mine = MyChoice(row_of, weight, t, top_k);
    for (int begin = 0; begin < width; begin += kWarp * N) {
      const int at = begin + Lane() * N;
      Floats<N> sum = {};
      if (at < width) sum = Unpack<N>(Load<N>(Row(residual, t, width) + at));
      for (int k = 0; k < top_k; k += kUnderWay) {
        Bf16s<N> held[kUnderWay] = {};
        int row[kUnderWay];
        CF_UNROLL
        for (int i = 0; i < kUnderWay; ++i) {
          row[i] = __shfl_sync(~0u, mine.row, k + i);
          if (row[i] >= 0 && at < width) held[i] = Load<N>(Row(sorted, row[i], width) + at);
        }
        CF_UNROLL
        for (int i = 0; i < kUnderWay; ++i) {
          const float w = __shfl_sync(~0u, mine.weight, k + i);
          if (row[i] < 0) continue;
          const Floats<N> from = Unpack<N>(held[i]);
          CF_UNROLL
          for (int j = 0; j < N; ++j) sum.at[j] += w * from.at[j];
          if (kept != nullptr && at < width) Store<N>(Row(kept, row[i], width) + at, held[i]);
        }
      }
      if (at < width) Store<N>(Row(y, t, width) + at, Pack<N>(sum));
    }
  }
}

template <int N>
__global__ void __launch_bounds__(kRowThreads, kRowBlocks)
    CombineBackwardKernel(const Bf16* dy, const Bf16* sorted, const int32_t* row_of,
                          const int32_t* token_of, const float* weight, int rows, int sorted_rows,
                          int top_k, int width, Bf16* dsorted, float* dweight) {
  for (int t = WarpInGrid(); t < rows; t += WarpsOfGrid()) {
    const Choice mine = MyChoice(row_of, weight, t, top_k);
    const Bf16* const dy_row = Row(dy, t, width);
    float my_dweight = 0;
    for (int k = 0; k < top_k; k += kUnderWay) {
      int row[kUnderWay];
      float w[kUnderWay];
      float dot[kUnderWay] = {};
      CF_UNROLL
      for (int i = 0; i < kUnderWay; ++i) {
        row[i] = __shfl_sync(~0u, mine.row, k + i);
        w[i] = __shfl_sync(~0u, mine.weight, k + i);
      }
      for (int at = Lane() * N; at < width; at += kWarp * N) {
        Bf16s<N> held[kUnderWay] = {};
        CF_UNROLL
        for (int i = 0; i < kUnderWay; ++i) {
          if (row[i] >= 0) held[i] = Load<N>(Row(sorted, row[i], width) + at);
        }
        const Floats<N> d = Unpack<N>(Load<N>(dy_row + at));
        CF_UNROLL
        for (int i = 0; i < kUnderWay; ++i) {
          if (row[i] < 0) continue;
          const Floats<N> from = Unpack<N>(held[i]);
          Floats<N> to;
          CF_UNROLL
          for (int j = 0; j < N; ++j) {
            dot[i] += d.at[j] * from.at[j];
            to.at[j] = w[i] * d.at[j];
          }
          Store<N>(Row(dsorted, row[i], width) + at, Pack<N>(to));
        }
      }
      CF_UNROLL
      for (int i = 0; i < kUnderWay; ++i) {
        const float sum = WarpSum(dot[i]);
        if (k + i == Lane()) my_dweight = sum;
      }
    }
    if (Lane() < top_k) dweight[static_cast<ptrdiff_t>(t) * top_k + Lane()] = my_dweight;
  }
  ZeroEmptyRows<N>(token_of, sorted_rows, width, dsorted);
}

template <int N>
__global__ void __launch_bounds__(kRowThreads, kRowBlocks)
    GatherKernel(const Bf16* x, const int32_t* token_of, int sorted_rows, int width, Bf16* sorted) {
  for (int row = WarpInGrid(); row < sorted_rows; row += WarpsOfGrid()) {
    const int token = token_of[row];
    if (token < 0) {
      ZeroRow<N>(Row(sorted, row, width), width);
    } else {
      CopyRow<N>(Row(x, token, width), Row(sorted, row, width), width);
    }
  }
}

/// One warp a token, which it reads once.
template <int N>
__global__ void __launch_bounds__(kRowThreads, kRowBlocks)
    SpreadKernel(const Bf16* x, const int32_t* row_of, const int32_t* token_of, int rows,
                 int sorted_rows, int top_k, int width, Bf16* sorted) {
  constexpr int kStep = kWarp * N;
  for (int t = WarpInGrid(); t < rows; t += WarpsOfGrid()) {
    const int my_row = Lane() < top_k ? row_of[static_cast<ptrdiff_t>(t) * top_k + Lane()] : -1;
    const Bf16* const from = Row(x, t, width);
    for (int begin = 0; begin < width; begin += kStep * kUnderWay) {
      const int first = begin + Lane() * N;
      Bf16s<N> held[kUnderWay] = {};
      CF_UNROLL
      for (int i = 0; i < kUnderWay; ++i) {
        if (first + i * kStep < width) held[i] = Load<N>(from + first + i * kStep);
      }
      for (int k = 0; k < top_k; ++k) {
        const int row = __shfl_sync(~0u, my_row, k);
        if (row < 0) continue;
        Bf16* const to = Row(sorted, row, width);
        CF_UNROLL
        for (int i = 0; i < kUnderWay; ++i) {
          if (first + i * kStep < width) Store<N>(to + first + i * kStep, held[i]);
        }
      }
    }
  }
  ZeroEmptyRows<N>(token_of, sorted_rows, width, sorted);
}

/// One warp a token. Lane k knows the row of choice k; some rows are read at a time.
template <int N>
__global__ void __launch_bounds__(kRowThreads, kRowBlocks)
    GatherBackwardKernel(const Bf16* dsorted, const int32_t* row_of, int rows, int top_k, int width,
                         Bf16* dx) {
  for (int t = WarpInGrid(); t < rows; t += WarpsOfGrid()) {
    const int my_row = Lane() < top_k ? row_of[static_cast<ptrdiff_t>(t) * top_k + Lane()] : -1;
    for (int begin = 0; begin < width; begin += kWarp * N) {
      const int at = begin + Lane() * N;
      Floats<N> sum = {};
      for (int k = 0; k < top_k; k += kUnderWay) {
        Bf16s<N> held[kUnderWay] = {};
        CF_UNROLL
        for (int i = 0; i < kUnderWay; ++i) {
          const int row = __shfl_sync(~0u, my_row, k + i);
          if (row >= 0 && at < width) held[i] = Load<N>(Row(dsorted, row, width) + at);
        }
        CF_UNROLL
        for (int i = 0; i < kUnderWay; ++i) {
          const Floats<N> from = Unpack<N>(held[i]);
          CF_UNROLL
          for (int j = 0; j < N; ++j) sum.at[j] += from.at[j];
        }
      }
      if (at < width) Store<N>(Row(dx, t, width) + at, Pack<N>(sum));
    }
  }
}

void CheckTopK(const char* name, int top_k) {
  if (top_k >= 1 && top_k <= kMaxTopK) return;
  throw GpuError(std::string(name) + ": " + std::to_string(top_k) +
                 " choices of a token; at most " + std::to_string(kMaxTopK) + " are possible");
}

}  // namespace

void GatherTokens(Stream stream, const Bf16* x, const int32_t* token_of, int sorted_rows, int width,
                  Bf16* sorted) {
  if (sorted_rows == 0) return;
  const bool wide = width % kWide == 0 && Aligned(x, sorted);
  Launch("GatherTokens", stream, BlocksForWarps(stream, sorted_rows), kRowThreads, 0,
         wide ? &GatherKernel<kWide> : &GatherKernel<1>, x, token_of, sorted_rows, width, sorted);
}

void SpreadTokens(Stream stream, const Bf16* x, const int32_t* row_of, const int32_t* token_of,
                  int rows, int sorted_rows, int top_k, int width, Bf16* sorted) {
  CheckTopK("SpreadTokens", top_k);
  if (sorted_rows == 0) return;
  const bool wide = width % kWide == 0 && Aligned(x, sorted);
  Launch("SpreadTokens", stream, BlocksForWarps(stream, rows), kRowThreads, 0,
         wide ? &SpreadKernel<kWide> : &SpreadKernel<1>, x, row_of, token_of, rows, sorted_rows,
         top_k, width, sorted);
}

void GatherTokensBackwardInput(Stream stream, const Bf16* dsorted, const int32_t* row_of, int rows,
                               int top_k, int width, Bf16* dx) {
  CheckTopK("GatherTokensBackwardInput", top_k);
  if (rows == 0) return;
  const bool wide = width % kWide == 0 && Aligned(dsorted, dx);
  Launch("GatherTokensBackwardInput", stream, BlocksForWarps(stream, rows), kRowThreads, 0,
         wide ? &GatherBackwardKernel<kWide> : &GatherBackwardKernel<1>, dsorted, row_of, rows,
         top_k, width, dx);
}

void CombineForward(Stream stream, const Bf16* residual, const Bf16* sorted, const int32_t* row_of,
                    const float* weight, int rows, int top_k, int width, Bf16* y, Bf16* kept) {
  CheckTopK("CombineForward", top_k);
  if (rows == 0) return;
  const bool wide = width % kWide == 0 && Aligned(residual, sorted, y, kept);
  Launch("CombineForward", stream, BlocksForWarps(stream, rows), kRowThreads, 0,
         wide ? &CombineForwardKernel<kWide> : &CombineForwardKernel<1>, residual, sorted, row_of,
         weight, rows, top_k, width, y, kept);
}

void CombineBackwardInput(Stream stream, const Bf16* dy, const Bf16* sorted, const int32_t* row_of,
                          const int32_t* token_of, const float* weight, int rows, int sorted_rows,
                          int top_k, int width, Bf16* dsorted, float* dweight) {
  CheckTopK("CombineBackwardInput", top_k);
  if (rows == 0 && sorted_rows == 0) return;
  const bool wide = width % kWide == 0 && Aligned(dy, sorted, dsorted);
  Launch("CombineBackwardInput", stream, BlocksForWarps(stream, std::max(rows, 1)), kRowThreads, 0,
         wide ? &CombineBackwardKernel<kWide> : &CombineBackwardKernel<1>, dy, sorted, row_of,
         token_of, weight, rows, sorted_rows, top_k, width, dsorted, dweight);
}

}  // namespace contraflow::gpu
