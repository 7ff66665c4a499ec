#include <vector>

#include "kernels/gpu/elementwise.h"
#include "kernels/gpu/embedding_and_loss.h"
#include "kernels/gpu/exchange.h"
#include "kernels/gpu/rmsnorm.h"
#include "tools/bench/gpu_bench.h"

namespace contraflow {
namespace {

using gpu::Bf16;

// Shares of the copy rate that are asked for: 3.7 and 3.8 of 4.3 TB/s.
constexpr double kNormShare = 3.7 / 4.3, kOptimizerShare = 3.8 / 4.3, kLossShare = 3.5 / 4.3;

void MeasureNorms(GpuBench* bench) {
  const int rows = bench->sizes().tokens, width = bench->sizes().width;
  const double values = static_cast<double>(rows) * width;
  const gpu::Stream stream = bench->stream();
  const Bf16 *x = bench->Random(int64_t{rows} * width), *dy = bench->Random(int64_t{rows} * width);
  const Bf16* residual = bench->Random(int64_t{rows} * width);
  const float* gain = bench->RandomFloats(width);
  Bf16* y = bench->Take<Bf16>(int64_t{rows} * width);
  float *rstd = bench->Take<float>(rows), *dgain = bench->RandomFloats(width);
  float* work = bench->Take<float>(static_cast<int64_t>(gpu::RmsNormWork(rows, width)));
  bench->Bandwidth("RMSNorm F", 4 * values, kNormShare,
                   [=] { gpu::RmsNormForward(stream, x, gain, rows, width, rstd, y); });
  bench->Bandwidth("RMSNorm B, with residual", 8 * values, kNormShare, [=] {
    gpu::RmsNormBackwardInput(stream, x, gain, rstd, dy, residual, rows, width, y);
  });
  bench->Bandwidth("RMSNorm W", 4 * values, kNormShare, [=] {
    gpu::RmsNormBackwardWeight(stream, x, rstd, dy, rows, width, work, dgain);
  });
}

void MeasurePositions(GpuBench* bench) {
  const BenchSizes& n = bench->sizes();
  const gpu::Stream stream = bench->stream();
  const int64_t angles = int64_t{n.sequence} * (n.head_width / 2);
  const float *cosine = bench->RandomFloats(angles), *sine = bench->RandomFloats(angles);
  Bf16* qkv = bench->Random(int64_t{n.tokens} * 3 * n.heads * n.head_width);
  // Queries and keys, read and written.
  bench->Bandwidth("RoPE F", 8.0 * n.tokens * n.heads * n.head_width, kNormShare, [=] {
    gpu::RopeForward(stream, cosine, sine, n.tokens, n.sequence, n.heads, n.head_width, qkv);
  });
}

void MeasureActivation(GpuBench* bench) {
  const BenchSizes& n = bench->sizes();
  const gpu::Stream stream = bench->stream();
  const int rows = n.tokens * n.top_k;
  const double values = static_cast<double>(rows) * n.inner;
  const int32_t* count = bench->Integers({rows});
  const Bf16* gate_up = bench->Random(int64_t{rows} * 2 * n.inner);
  const Bf16* dy = bench->Random(int64_t{rows} * n.inner);
  Bf16* y = bench->Take<Bf16>(int64_t{rows} * n.inner);
  Bf16* dgate_up = bench->Take<Bf16>(int64_t{rows} * 2 * n.inner);
  bench->Bandwidth("SwiGLU F, not fused", 6 * values, kNormShare,
                   [=] { gpu::SwigluForward(stream, gate_up, count, rows, n.inner, y); });
  bench->Bandwidth("SwiGLU B, not fused", 10 * values, kNormShare, [=] {
    gpu::SwigluBackwardInput(stream, gate_up, dy, count, rows, n.inner, dgate_up);
  });
}

void MeasureEnds(GpuBench* bench) {
  const BenchSizes& n = bench->sizes();
  const gpu::Stream stream = bench->stream();
  std::vector<int32_t> words(static_cast<size_t>(n.tokens));
  for (size_t t = 0; t < words.size(); ++t) {
    words[t] = static_cast<int32_t>(t * 2'654'435'761u % static_cast<unsigned>(n.vocabulary));
  }
  const int32_t* tokens = bench->Integers(words);
  const double values = static_cast<double>(n.tokens) * n.width;
  {
    const Bf16* table = bench->Random(int64_t{n.vocabulary} * n.width);
    const Bf16* dy = bench->Random(int64_t{n.tokens} * n.width);
    Bf16* y = bench->Take<Bf16>(int64_t{n.tokens} * n.width);
    float* dtable = bench->RandomFloats(int64_t{n.vocabulary} * n.width);
    std::byte* work =
        bench->Take<std::byte>(static_cast<int64_t>(gpu::EmbeddingWork(n.tokens, n.vocabulary)));
    bench->Bandwidth("embedding F", 4 * values, kNormShare,
                     [=] { gpu::EmbeddingForward(stream, tokens, table, n.tokens, n.width, y); });
    // Words are hardly ever the same: 2 bytes read, 8 read and written.
    bench->Bandwidth("embedding W", 10 * values, 0, [=] {
      gpu::EmbeddingBackwardWeight(stream, tokens, dy, n.tokens, n.vocabulary, n.width, work,
                                   dtable);
    });
  }
  bench->Reset();
  const int32_t* targets = bench->Integers(words);
  const int rows = std::min(n.loss_rows, n.tokens);
  Bf16* logits = bench->Random(int64_t{rows} * n.vocabulary);
  float* losses = bench->Take<float>(rows);
  bench->Bandwidth("cross entropy, loss and gradient", 4.0 * rows * n.vocabulary, kLossShare, [=] {
    gpu::CrossEntropy(stream, targets, 1.0f, rows, n.vocabulary, logits, losses);
  });
}

void MeasureOptimizer(GpuBench* bench) {
  const int64_t n = bench->sizes().parameters;
  const gpu::Stream stream = bench->stream();
  const float* gradient = bench->RandomFloats(n);
  float *m = bench->RandomFloats(n), *v = bench->Take<float>(n), *weights = bench->RandomFloats(n);
  bench->gpu().Zero(stream, v, static_cast<size_t>(n) * sizeof(float));
  Bf16* copy = bench->Take<Bf16>(n);
  const gpu::AdamWStepSize host = {1e-3f, 10.0f, 20.0f};
  auto* step = bench->Take<gpu::AdamWStepSize>(1);
  bench->gpu().CopyToDevice(stream, step, &host, sizeof host);
  bench->Bandwidth("AdamW", 30.0 * static_cast<double>(n), kOptimizerShare, [=] {
    gpu::AdamWStep(stream, step, {0.9f, 0.95f, 1e-8f, 0.01f}, static_cast<size_t>(n), gradient, m,
                   v, weights, copy);
  });
}

}  // namespace

void MeasureStreams(GpuBench* bench) {
  for (const auto measure :
       {MeasureNorms, MeasurePositions, MeasureActivation, MeasureEnds, MeasureOptimizer}) {
    bench->Reset();
    measure(bench);
  }
}

}  // namespace contraflow
