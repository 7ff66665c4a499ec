#include "kernels/gpu/row_walk.h"
#include "kernels/gpu/swiglu.h"

namespace contraflow::gpu {
namespace {

constexpr int kForwardBlocks = 4, kBackwardBlocks = 3;  // that an SM holds at a time

__device__ float Sigmoid(float x) { return FastReciprocal(1.0f + FastExp(-x)); }

__device__ int RowsToDo(const int32_t* rows, int most_rows) { return min(*rows, most_rows); }

template <int N>
__global__ void __launch_bounds__(kRowsBlock, kForwardBlocks)
    ForwardKernel(const Bf16* gate_up, const int32_t* rows, int most_rows, int width, Bf16* y) {
  const int end = RowsToDo(rows, most_rows);
  for (int row = FirstRow(); row < end; row += RowStep()) {
    const Bf16* gate = gate_up + static_cast<ptrdiff_t>(row) * 2 * width;
    Bf16* out = y + static_cast<ptrdiff_t>(row) * width;
    Bf16s<N> gates[kVectorsAtOnce] = {}, ups[kVectorsAtOnce] = {};
    CF_UNROLL
    for (int i = 0; i < kVectorsAtOnce; ++i) {
      const int column = Column<N>(i);
      if (column >= width) continue;
      gates[i] = Load<N>(gate + column);
      ups[i] = Load<N>(gate + width + column);
    }
    CF_UNROLL
    for (int i = 0; i < kVectorsAtOnce; ++i) {
      const int column = Column<N>(i);
      if (column >= width) continue;
      const Floats<N> g = Unpack(gates[i]), u = Unpack(ups[i]);
      Floats<N> product;
      CF_UNROLL
      for (int j = 0; j < N; ++j) product.at[j] = g.at[j] * Sigmoid(g.at[j]) * u.at[j];
      Store<N>(out + column, Pack(product));
    }
  }
}

template <int N>
__global__ void __launch_bounds__(kRowsBlock, kBackwardBlocks)
    BackwardKernel(const Bf16* gate_up, const Bf16* dy, const int32_t* rows, int most_rows,
                   int width, Bf16* dgate_up) {
  const int end = RowsToDo(rows, most_rows);
  for (int row = FirstRow(); row < end; row += RowStep()) {
    const ptrdiff_t begin = static_cast<ptrdiff_t>(row) * width;
    const Bf16* gate = gate_up + 2 * begin;
    Bf16* dgate = dgate_up + 2 * begin;
    Bf16s<N> gates[kVectorsAtOnce] = {}, ups[kVectorsAtOnce] = {}, dys[kVectorsAtOnce] = {};
    CF_UNROLL
    for (int i = 0; i < kVectorsAtOnce; ++i) {
      const int column = Column<N>(i);
      if (column >= width) continue;
      gates[i] = Load<N>(gate + column);
      ups[i] = Load<N>(gate + width + column);
      dys[i] = Load<N>(dy + begin + column);
    }
    CF_UNROLL
    for (int i = 0; i < kVectorsAtOnce; ++i) {
      const int column = Column<N>(i);
      if (column >= width) continue;
      const Floats<N> g = Unpack(gates[i]), u = Unpack(ups[i]), d = Unpack(dys[i]);
      Floats<N> dg, du;
      CF_UNROLL
      for (int j = 0; j < N; ++j) {
        const float s = Sigmoid(g.at[j]);
        du.at[j] = d.at[j] * g.at[j] * s;
        dg.at[j] = d.at[j] * u.at[j] * s * (1.0f + g.at[j] * (1.0f - s));
      }
      Store<N>(dgate + column, Pack(dg));
      Store<N>(dgate + width + column, Pack(du));
    }
  }
}

}  // namespace

void SwigluForward(Stream stream, const Bf16* gate_up, const int32_t* rows, int most_rows,
                   int width, Bf16* y) {
  if (most_rows == 0 || width == 0) return;
  if (width % 8 == 0 && Aligned(gate_up, y)) {
    Launch("SwigluForward", stream, RowsGrid<8>(stream, kForwardBlocks, most_rows, width),
           kRowsBlock, 0, ForwardKernel<8>, gate_up, rows, most_rows, width, y);
  } else {
    Launch("SwigluForward", stream, RowsGrid<1>(stream, kForwardBlocks, most_rows, width),
           kRowsBlock, 0, ForwardKernel<1>, gate_up, rows, most_rows, width, y);
  }
}

void SwigluBackwardInput(Stream stream, const Bf16* gate_up, const Bf16* dy, const int32_t* rows,
                         int most_rows, int width, Bf16* dgate_up) {
  if (most_rows == 0 || width == 0) return;
  if (width % 8 == 0 && Aligned(gate_up, dy, dgate_up)) {
    Launch("SwigluBackwardInput", stream, RowsGrid<8>(stream, kBackwardBlocks, most_rows, width),
           kRowsBlock, 0, BackwardKernel<8>, gate_up, dy, rows, most_rows, width, dgate_up);
  } else {
    Launch("SwigluBackwardInput", stream, RowsGrid<1>(stream, kBackwardBlocks, most_rows, width),
           kRowsBlock, 0, BackwardKernel<1>, gate_up, dy, rows, most_rows, width, dgate_up);
  }
}

}  // namespace contraflow::gpu
