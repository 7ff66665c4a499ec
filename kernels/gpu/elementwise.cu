#include <algorithm>

#include "kernels/gpu/elementwise.h"
#include "kernels/gpu/rows.h"
#include "kernels/gpu/vector.h"
#include "kernels/host/random.h"

namespace contraflow::gpu {
namespace {

constexpr int kBlock = 256;

constexpr int kHeadsAtOnce = 4;

// A block takes a row. A thread keeps to one place in the head, whose angles it reads once, and
// goes over the heads; queries and keys are neighbours in the row, so they look like twice as many.
template <int N>
__global__ void __launch_bounds__(kBlock)
    RotateKernel(const float* cosine, const float* sine, float direction, int sequence, int heads,
                 int head_width, Bf16* qkv) {
  const int places = head_width / N, lanes = min(places, kBlock), teams = kBlock / lanes;
  const int team = ThreadIndex() / lanes, all = 2 * heads;
  if (team >= teams) return;
  const int row = BlockIndex();
  const ptrdiff_t angles = static_cast<ptrdiff_t>(row % sequence) * (head_width / 2);
  for (int place = ThreadIndex() % lanes; place < places; place += lanes) {
    const Floats<N / 2> c = LoadFloats<N / 2>(cosine + angles + place * (N / 2));
    const Floats<N / 2> s = LoadFloats<N / 2>(sine + angles + place * (N / 2));
    Bf16* const at = qkv + static_cast<ptrdiff_t>(row) * 3 * heads * head_width + place * N;
    for (int head = team; head < all; head += kHeadsAtOnce * teams) {
      Bf16s<N> values[kHeadsAtOnce] = {};
      CF_UNROLL
      for (int i = 0; i < kHeadsAtOnce; ++i) {
        const int h = head + i * teams;
        if (h < all) values[i] = Load<N>(at + h * head_width);
      }
      CF_UNROLL
      for (int i = 0; i < kHeadsAtOnce; ++i) {
        const int h = head + i * teams;
        if (h >= all) continue;
        const Floats<N> x = Unpack(values[i]);
        Floats<N> turned;
        CF_UNROLL
        for (int j = 0; j < N / 2; ++j) {
          const float even = x.at[2 * j], odd = x.at[2 * j + 1], turn = direction * s.at[j];
          turned.at[2 * j] = even * c.at[j] - odd * turn;
          turned.at[2 * j + 1] = even * turn + odd * c.at[j];
        }
        Store<N>(at + h * head_width, Pack(turned));
      }
    }
  }
}

void Rotate(const char* name, Stream stream, const float* cosine, const float* sine,
            float direction, int rows, int sequence, int heads, int head_width, Bf16* qkv) {
  if (rows == 0 || heads == 0 || head_width == 0) return;
  const bool vectors = head_width % 8 == 0 && Aligned(cosine, sine) && Aligned(qkv);
  Launch(name, stream, Unsigned(rows), kBlock, 0, vectors ? RotateKernel<8> : RotateKernel<2>,
         cosine, sine, direction, sequence, heads, head_width, qkv);
}

}  // namespace

void RopeForward(Stream stream, const float* cosine, const float* sine, int rows, int sequence,
                 int heads, int head_width, Bf16* qkv) {
  Rotate("RopeForward", stream, cosine, sine, 1, rows, sequence, heads, head_width, qkv);
}

void RopeBackwardInput(Stream stream, const float* cosine, const float* sine, int rows,
                       int sequence, int heads, int head_width, Bf16* dqkv) {
  Rotate("RopeBackwardInput", stream, cosine, sine, -1, rows, sequence, heads, head_width, dqkv);
}

namespace {

constexpr int kForwardBlocks = 4, kBackwardBlocks = 3;  // that an SM holds at a time

__device__ float Sigmoid(float x) { return FastReciprocal(1.0f + FastExp(-x)); }

__device__ int RowsToDo(const int32_t* rows, int most_rows) { return min(*rows, most_rows); }

template <int N>
__global__ void __launch_bounds__(kRowsBlock, kForwardBlocks)
    SwigluForwardKernel(const Bf16* gate_up, const int32_t* rows, int most_rows, int width,
                        Bf16* y) {
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
    SwigluBackwardKernel(const Bf16* gate_up, const Bf16* dy, const int32_t* rows, int most_rows,
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
           kRowsBlock, 0, SwigluForwardKernel<8>, gate_up, rows, most_rows, width, y);
  } else {
    Launch("SwigluForward", stream, RowsGrid<1>(stream, kForwardBlocks, most_rows, width),
           kRowsBlock, 0, SwigluForwardKernel<1>, gate_up, rows, most_rows, width, y);
  }
}

void SwigluBackwardInput(Stream stream, const Bf16* gate_up, const Bf16* dy, const int32_t* rows,
                         int most_rows, int width, Bf16* dgate_up) {
  if (most_rows == 0 || width == 0) return;
  if (width % 8 == 0 && Aligned(gate_up, dy, dgate_up)) {
    Launch("SwigluBackwardInput", stream, RowsGrid<8>(stream, kBackwardBlocks, most_rows, width),
           kRowsBlock, 0, SwigluBackwardKernel<8>, gate_up, dy, rows, most_rows, width, dgate_up);
  } else {
    Launch("SwigluBackwardInput", stream, RowsGrid<1>(stream, kBackwardBlocks, most_rows, width),
           kRowsBlock, 0, SwigluBackwardKernel<1>, gate_up, dy, rows, most_rows, width, dgate_up);
  }
}

namespace {

constexpr int kBlocksAnSm = 5;

unsigned Blocks(Stream stream, size_t vectors) {
  const size_t most = static_cast<size_t>(stream.sms) * kBlocksAnSm;
  return static_cast<unsigned>(std::clamp<size_t>((vectors + kBlock - 1) / kBlock, 1, most));
}
__device__ size_t First() {
  return static_cast<size_t>(blockIdx.x) * kBlock + static_cast<size_t>(threadIdx.x);
}
__device__ size_t Step() { return static_cast<size_t>(gridDim.x) * kBlock; }

/// The factors of a step: parameter = parameter * keep - rate * m / (sqrt(v) * spread + epsilon).
struct Factors {
  float beta1, beta2, epsilon, rate, spread, keep;
};

__device__ Factors FactorsOf(const AdamWStepSize& step, const AdamWRates& rates) {
  return {rates.beta1,
          rates.beta2,
          rates.epsilon,
          step.learning_rate * step.first_correction,
          sqrtf(step.second_correction),
          1.0f - step.learning_rate * rates.weight_decay};
}

template <int N>
__device__ void Update(const Factors& f, size_t i, const float* gradient, float* m, float* v,
                       float* parameter, Bf16* copy) {
  const Floats<N> g = LoadFloats<N>(gradient + i);
  Floats<N> first = LoadFloats<N>(m + i), second = LoadFloats<N>(v + i);
  Floats<N> p = LoadFloats<N>(parameter + i);
  CF_UNROLL
  for (int j = 0; j < N; ++j) {
    first.at[j] = f.beta1 * first.at[j] + (1.0f - f.beta1) * g.at[j];
    second.at[j] = f.beta2 * second.at[j] + (1.0f - f.beta2) * g.at[j] * g.at[j];
    p.at[j] =
        p.at[j] * f.keep - f.rate * first.at[j] / (sqrtf(second.at[j]) * f.spread + f.epsilon);
  }
  StoreFloats<N>(m + i, first);
  StoreFloats<N>(v + i, second);
  StoreFloats<N>(parameter + i, p);
  Store<N>(copy + i, Pack(p));
}

template <int N>
__global__ void __launch_bounds__(kBlock, kBlocksAnSm)
    AdamWKernel(const AdamWStepSize* step, AdamWRates rates, size_t n, const float* gradient,
                float* m, float* v, float* parameter, Bf16* copy, const int32_t* not_finite,
                const int32_t* failed) {
  if (*not_finite != 0 || (failed != nullptr && *failed != 0)) return;
  const Factors factors = FactorsOf(*step, rates);
  const size_t whole = n / N * N;
  for (size_t i = First() * N; i < whole; i += Step() * N) {
    Update<N>(factors, i, gradient, m, v, parameter, copy);
  }
  const size_t rest = whole + First();
  if (rest < n) Update<1>(factors, rest, gradient, m, v, parameter, copy);
}

template <int N>
__global__ void __launch_bounds__(kBlock, kBlocksAnSm)
    RoundKernel(size_t n, const float* parameter, Bf16* copy) {
  const size_t whole = n / N * N;
  for (size_t i = First() * N; i < whole; i += Step() * N) {
    Store<N>(copy + i, Pack(LoadFloats<N>(parameter + i)));
  }
  const size_t rest = whole + First();
  if (rest < n) Store<1>(copy + rest, Pack(LoadFloats<1>(parameter + rest)));
}

__global__ void __launch_bounds__(kBlock, kBlocksAnSm)
    UniformKernel(uint64_t key, float limit, size_t n, float* x) {
  for (size_t i = First(); i < n; i += Step()) x[i] = UniformDraw(key, limit, i);
}

}  // namespace

void AdamWStep(Stream stream, const AdamWStepSize* step, AdamWRates rates, size_t n,
               const float* gradient, float* m, float* v, float* parameter, Bf16* copy,
               const int32_t* not_finite, const int32_t* failed) {
  if (n == 0) return;
  if (Aligned(gradient, m, v, parameter) && Aligned(copy)) {
    Launch("AdamWStep", stream, Blocks(stream, n / 4), kBlock, 0, AdamWKernel<4>, step, rates, n,
           gradient, m, v, parameter, copy, not_finite, failed);
  } else {
    Launch("AdamWStep", stream, Blocks(stream, n), kBlock, 0, AdamWKernel<1>, step, rates, n,
           gradient, m, v, parameter, copy, not_finite, failed);
  }
}

void RoundToBf16(Stream stream, size_t n, const float* parameter, Bf16* copy) {
  if (n == 0) return;
  if (Aligned(parameter) && Aligned(copy)) {
    Launch("RoundToBf16", stream, Blocks(stream, n / 8), kBlock, 0, RoundKernel<8>, n, parameter,
           copy);
  } else {
    Launch("RoundToBf16", stream, Blocks(stream, n), kBlock, 0, RoundKernel<1>, n, parameter, copy);
  }
}

void FillUniform(Stream stream, uint64_t key, float limit, size_t n, float* x) {
  if (n == 0) return;
  Launch("FillUniform", stream, Blocks(stream, n), kBlock, 0, UniformKernel, key, limit, n, x);
}

}  // namespace contraflow::gpu
