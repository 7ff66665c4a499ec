#include <string>

#include "kernels/gpu_combine.h"
#include "kernels/gpu_router.h"
#include "kernels/gpu_warp_rows.h"

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
    ForwardKernel(const Bf16* residual, const Bf16* sorted, const int32_t* row_of,
                  const float* weight, int rows, int top_k, int width, Bf16* y) {
  const int vectors = width / N;
  for (int t = WarpInGrid(); t < rows; t += WarpsOfGrid()) {
    const Choice mine = MyChoice(row_of, weight, t, top_k);
    for (int begin = 0; begin < vectors; begin += kWarp) {
      const int at = begin + Lane();
      Floats<N> sum = {};
      if (at < vectors) sum = ToFloats(AsVectors<N>(Row(residual, t, width))[at]);
      for (int k = 0; k < top_k; k += kUnderWay) {
        RowVector<N> held[kUnderWay] = {};
        int row[kUnderWay];
        for (int i = 0; i < kUnderWay; ++i) {
          row[i] = __shfl_sync(~0u, mine.row, k + i);
          if (row[i] >= 0 && at < vectors) {
            held[i] = AsVectors<N>(Row(sorted, row[i], width))[at];
          }
        }
        for (int i = 0; i < kUnderWay; ++i) {
          const float w = __shfl_sync(~0u, mine.weight, k + i);
          if (row[i] < 0) continue;
          const Floats<N> from = ToFloats(held[i]);
          for (int j = 0; j < N; ++j) sum.at[j] += w * from.at[j];
        }
      }
      if (at < vectors) AsVectors<N>(Row(y, t, width))[at] = ToVector(sum);
    }
  }
}

/// Rows that no pair has become 0. A warp looks at the tokens of 32 rows at a time.
template <int N>
__device__ void ZeroEmptyRows(const int32_t* token_of, int sorted_rows, int width, Bf16* dsorted) {
  for (int begin = WarpInGrid() * kWarp; begin < sorted_rows; begin += WarpsOfGrid() * kWarp) {
    const int row = begin + Lane();
    unsigned empty = __ballot_sync(~0u, row < sorted_rows && token_of[row] < 0);
    for (; empty != 0; empty &= empty - 1) {
      const int next = begin + __ffs(static_cast<int>(empty)) - 1;
      ZeroRow<N>(Row(dsorted, next, width), width);
    }
  }
}

template <int N>
__global__ void __launch_bounds__(kRowThreads, kRowBlocks)
    BackwardKernel(const Bf16* dy, const Bf16* sorted, const int32_t* row_of,
                   const int32_t* token_of, const float* weight, int rows, int sorted_rows,
                   int top_k, int width, Bf16* dsorted, float* dweight) {
  const int vectors = width / N;
  for (int t = WarpInGrid(); t < rows; t += WarpsOfGrid()) {
    const Choice mine = MyChoice(row_of, weight, t, top_k);
    const RowVector<N>* const dy_row = AsVectors<N>(Row(dy, t, width));
    float my_dweight = 0;
    for (int k = 0; k < top_k; k += kUnderWay) {
      int row[kUnderWay];
      float w[kUnderWay];
      float dot[kUnderWay] = {};
      for (int i = 0; i < kUnderWay; ++i) {
        row[i] = __shfl_sync(~0u, mine.row, k + i);
        w[i] = __shfl_sync(~0u, mine.weight, k + i);
      }
      for (int at = Lane(); at < vectors; at += kWarp) {
        RowVector<N> held[kUnderWay] = {};
        for (int i = 0; i < kUnderWay; ++i) {
          if (row[i] >= 0) held[i] = AsVectors<N>(Row(sorted, row[i], width))[at];
        }
        const Floats<N> d = ToFloats(dy_row[at]);
        for (int i = 0; i < kUnderWay; ++i) {
          if (row[i] < 0) continue;
          const Floats<N> from = ToFloats(held[i]);
          Floats<N> to;
          for (int j = 0; j < N; ++j) {
            dot[i] += d.at[j] * from.at[j];
            to.at[j] = w[i] * d.at[j];
          }
          AsVectors<N>(Row(dsorted, row[i], width))[at] = ToVector(to);
        }
      }
      for (int i = 0; i < kUnderWay; ++i) {
        const float sum = WarpSum(dot[i]);
        if (k + i == Lane()) my_dweight = sum;
      }
    }
    if (Lane() < top_k) dweight[static_cast<ptrdiff_t>(t) * top_k + Lane()] = my_dweight;
  }
  ZeroEmptyRows<N>(token_of, sorted_rows, width, dsorted);
}

void CheckTopK(const char* name, int top_k) {
  if (top_k >= 1 && top_k <= kMaxTopK) return;
  throw GpuError(std::string(name) + ": " + std::to_string(top_k) +
                 " choices of a token; at most " + std::to_string(kMaxTopK) + " are possible");
}

}  // namespace

void CombineForward(Stream stream, const Bf16* residual, const Bf16* sorted, const int32_t* row_of,
                    const float* weight, int rows, int top_k, int width, Bf16* y) {
  CheckTopK("CombineForward", top_k);
  if (rows == 0) return;
  Launch("CombineForward", stream, BlocksForRows(stream, rows), kRowThreads, 0,
         width % kWide == 0 ? &ForwardKernel<kWide> : &ForwardKernel<1>, residual, sorted, row_of,
         weight, rows, top_k, width, y);
}

void CombineBackwardInput(Stream stream, const Bf16* dy, const Bf16* sorted, const int32_t* row_of,
                          const int32_t* token_of, const float* weight, int rows, int sorted_rows,
                          int top_k, int width, Bf16* dsorted, float* dweight) {
  CheckTopK("CombineBackwardInput", top_k);
  if (rows == 0 && sorted_rows == 0) return;
  Launch("CombineBackwardInput", stream, BlocksForRows(stream, std::max(rows, 1)), kRowThreads, 0,
         width % kWide == 0 ? &BackwardKernel<kWide> : &BackwardKernel<1>, dy, sorted, row_of,
         token_of, weight, rows, sorted_rows, top_k, width, dsorted, dweight);
}

}  // namespace contraflow::gpu
