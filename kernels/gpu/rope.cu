#include "kernels/gpu/rope.h"
#include "kernels/gpu/vector.h"

namespace contraflow::gpu {
namespace {

constexpr int kBlock = 256, kHeadsAtOnce = 4;

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

}  // namespace contraflow::gpu
