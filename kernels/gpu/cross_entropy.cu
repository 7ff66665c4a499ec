#include <algorithm>
#include <cfloat>
#include <cmath>

#include "kernels/gpu/embedding_and_loss.h"
#include "kernels/gpu/vector.h"

namespace contraflow::gpu {
namespace {

// A block takes a row at a time. The first kHeld vectors of each thread stay in registers between
// the two uses, the next in shared memory, and what is still left is read again. After a held
// vector is used, that of the block's next row is loaded.

constexpr int kThreadsAnSm = 1024;  // as many as can have 64 registers each
constexpr int kHeld = 6;            // with 8 there are not registers enough
constexpr int kAtOnce = 4;
constexpr int kMostShared = 224 << 10;

/// The sum of exp(x - top) over the x so far, whose maximum is top. No x is below the least float,
/// or else it adds nothing.
struct Exponentials {
  float top = -FLT_MAX, sum = 0;

  template <int N>
  __device__ void Add(const Floats<N>& x) {
    float higher = top;
    CF_UNROLL
    for (int j = 0; j < N; ++j) higher = fmaxf(higher, x.at[j]);
    sum *= FastExp(top - higher);
    top = higher;
    CF_UNROLL
    for (int j = 0; j < N; ++j) sum += FastExp(x.at[j] - top);
  }
};

__device__ Exponentials WarpJoin(Exponentials mine) {
  Exponentials all;
  all.top = WarpMax(mine.top);
  all.sum = WarpSum(mine.sum * FastExp(mine.top - all.top));
  return all;
}

/// Sum over all threads, the same bits in each. `turn` is 0 and 1 in turns: a thread that is a row
/// ahead must not write where others still read.
template <int kThreads>
__device__ Exponentials BlockJoin(Exponentials mine, int turn) {
  __shared__ float tops[2][kThreads / kWarp], sums[2][kThreads / kWarp];
  const int lane = Lane(), warp = ThreadIndex() / kWarp;
  const Exponentials of_warp = WarpJoin(mine);
  if (lane == 0) {
    tops[turn][warp] = of_warp.top;
    sums[turn][warp] = of_warp.sum;
  }
  __syncthreads();
  Exponentials other;
  if (lane < kThreads / kWarp) {
    other.top = tops[turn][lane];
    other.sum = sums[turn][lane];
  }
  return WarpJoin(other);
}

/// Turns the logits of a row into their gradient.
struct RowGradient {
  float top, inverse_sum, each;
  int target;

  template <int N>
  __device__ Bf16s<N> operator()(const Bf16s<N>& logits, int column) const {
    Floats<N> x = Unpack(logits);
    CF_UNROLL
    for (int j = 0; j < N; ++j) {
      const float probability = FastExp(x.at[j] - top) * inverse_sum;
      x.at[j] = (probability - (column + j == target ? 1.0f : 0.0f)) * each;
    }
    return Pack(x);
  }
};

/// `shared` vectors fit into the block's dynamic shared memory.
template <int N, int kThreads>
__global__ void __launch_bounds__(kThreads, kThreadsAnSm / kThreads)
    CrossEntropyKernel(const int32_t* targets, float each, int rows, int classes, int shared,
                       Bf16* logits, float* row_loss) {
  CF_DYNAMIC_SHARED(Bf16s<N>, kept);
  constexpr int kFirstKept = kHeld * kThreads;
  const int vectors = classes / N, thread = ThreadIndex();
  const auto load_held = [=](int row, int i) {
    const int v = i * kThreads + thread;
    if (row >= rows || v >= vectors) return Bf16s<N>{};
    return Load<N>(Row(logits, row, classes) + v * N);
  };
  Bf16s<N> held[kHeld];
  CF_UNROLL
  for (int i = 0; i < kHeld; ++i) held[i] = load_held(BlockIndex(), i);

  int turn = 0;
  for (int row = BlockIndex(); row < rows; row += BlockCount(), turn ^= 1) {
    Bf16* const at = Row(logits, row, classes);
    const int target = targets[row];
    const bool known = target >= 0 && target < classes;
    // Read before the barrier, after which its owner overwrites it.
    const float target_logit = thread == 0 && known ? ToFloat(at[target]) : 0.0f;

    Exponentials mine;
    CF_UNROLL
    for (int i = 0; i < kHeld; ++i) {
      if (i * kThreads + thread < vectors) mine.Add(Unpack(held[i]));
    }
    for (int first = kFirstKept + thread; first < vectors; first += kAtOnce * kThreads) {
      Bf16s<N> values[kAtOnce] = {};
      CF_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        const int v = first + i * kThreads;
        if (v < vectors) values[i] = Load<N>(at + v * N);
      }
      CF_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        const int v = first + i * kThreads;
        if (v < vectors) mine.Add(Unpack(values[i]));
        if (v < vectors && v - kFirstKept < shared) kept[v - kFirstKept] = values[i];
      }
    }
    const Exponentials all = BlockJoin<kThreads>(mine, turn);
    if (thread == 0) {
      row_loss[row] = known ? all.top - target_logit + logf(all.sum) : NAN;
    }

    const RowGradient gradient = {all.top, 1.0f / all.sum, each, target};
    CF_UNROLL
    for (int i = 0; i < kHeld; ++i) {
      const int v = i * kThreads + thread;
      if (v >= vectors) continue;
      Store<N>(at + v * N, gradient(held[i], v * N));
      held[i] = load_held(row + BlockCount(), i);
    }
    // Each thread takes from shared memory what it put there itself.
    for (int first = kFirstKept + thread; first < vectors; first += kAtOnce * kThreads) {
      Bf16s<N> values[kAtOnce] = {};
      CF_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        const int v = first + i * kThreads;
        if (v >= vectors) continue;
        values[i] = v - kFirstKept < shared ? kept[v - kFirstKept] : Load<N>(at + v * N);
      }
      CF_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        const int v = first + i * kThreads;
        if (v < vectors) Store<N>(at + v * N, gradient(values[i], v * N));
      }
    }
  }
}

template <int N, int kThreads>
void LaunchWith(Stream stream, const int32_t* targets, float each, int rows, int classes,
                Bf16* logits, float* row_loss) {
  const int held = kHeld * kThreads, most = kMostShared / static_cast<int>(sizeof(Bf16s<N>));
  const int shared = std::clamp(classes / N - held, 0, most);
  const int blocks = std::min(rows, stream.sms * (kThreadsAnSm / kThreads));
  Launch("CrossEntropy", stream, Unsigned(blocks), kThreads,
         static_cast<size_t>(shared) * sizeof(Bf16s<N>), CrossEntropyKernel<N, kThreads>, targets,
         each, rows, classes, shared, logits, row_loss);
}

/// With the smallest block that holds a row in registers, so that an SM has several.
template <int N>
void LaunchFor(Stream stream, const int32_t* targets, float each, int rows, int classes,
               Bf16* logits, float* row_loss) {
  if (classes <= N * kHeld * 128) {
    LaunchWith<N, 128>(stream, targets, each, rows, classes, logits, row_loss);
  } else if (classes <= N * kHeld * 256) {
    LaunchWith<N, 256>(stream, targets, each, rows, classes, logits, row_loss);
  } else if (classes <= N * kHeld * 512) {
    LaunchWith<N, 512>(stream, targets, each, rows, classes, logits, row_loss);
  } else {
    LaunchWith<N, 1024>(stream, targets, each, rows, classes, logits, row_loss);
  }
}

constexpr int kMeanBlock = 1024;

__global__ void __launch_bounds__(kMeanBlock) MeanKernel(const float* x, int n, float* mean) {
  __shared__ float of_warp[kWarp];
  float sum = 0;
  for (int i = ThreadIndex(); i < n; i += kMeanBlock) sum += x[i];
  sum = WarpSum(sum);
  if (Lane() == 0) of_warp[ThreadIndex() / kWarp] = sum;
  __syncthreads();
  if (ThreadIndex() >= kWarp) return;
  sum = WarpSum(of_warp[ThreadIndex()]);
  if (ThreadIndex() == 0) *mean = sum / static_cast<float>(n);
}

}  // namespace

void CrossEntropy(Stream stream, const int32_t* targets, float scale, int rows, int classes,
                  Bf16* logits, float* row_loss) {
  if (rows == 0) return;
  const float each = scale / static_cast<float>(rows);
  if (classes % 8 == 0 && Aligned(logits)) {
    LaunchFor<8>(stream, targets, each, rows, classes, logits, row_loss);
  } else {
    LaunchFor<1>(stream, targets, each, rows, classes, logits, row_loss);
  }
}

void Mean(Stream stream, const float* x, int n, float* mean) {
  Launch("Mean", stream, 1, kMeanBlock, 0, MeanKernel, x, n, mean);
}

}  // namespace contraflow::gpu
