#include <chrono>
#include <vector>

#include "kernels/gpu/elementwise.h"
#include "kernels/gpu/embedding_and_loss.h"
#include "kernels/gpu/exchange.h"
#include "kernels/gpu/rmsnorm.h"
#include "kernels/gpu/stream.h"
#include "tools/bench/gpu_bench.h"

namespace contraflow {

namespace {

using gpu::Bf16;

// Shares of the copy rate that are asked for: 3.7 and 3.8 of 4.3 TB/s.
constexpr double kNormShare = 3.7 / 4.3, kOptimizerShare = 3.8 / 4.3, kLossShare = 3.5 / 4.3;

using HostClock = std::chrono::steady_clock;

double Since(HostClock::time_point start) {
  return std::chrono::duration<double>(HostClock::now() - start).count();
}

}  // namespace

void MeasureNorms(GpuBench* bench) {
  bench->Reset();
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
  bench->Reset();
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
  bench->Reset();
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
  bench->Reset();
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
  bench->Reset();
  const int64_t n = bench->sizes().parameters;
  const gpu::Stream stream = bench->stream();
  const float* gradient = bench->RandomFloats(n);
  float *m = bench->RandomFloats(n), *v = bench->Take<float>(n), *weights = bench->RandomFloats(n);
  bench->gpu().Zero(stream, v, static_cast<size_t>(n) * sizeof(float));
  Bf16* copy = bench->Take<Bf16>(n);
  const gpu::AdamWStepSize host = {1e-3f, 10.0f, 20.0f};
  auto* step = bench->Take<gpu::AdamWStepSize>(1);
  auto* not_finite = bench->Take<int32_t>(1);
  bench->gpu().CopyToDevice(stream, step, &host, sizeof host);
  bench->gpu().Zero(stream, not_finite, sizeof(int32_t));
  bench->Bandwidth("AdamW", 30.0 * static_cast<double>(n), kOptimizerShare, [=] {
    gpu::AdamWStep(stream, step, {0.9f, 0.95f, 1e-8f, 0.01f}, static_cast<size_t>(n), gradient, m,
                   v, weights, copy, not_finite, nullptr);
  });
}

/// Time of the host to give an instruction to a stream, alone and with the events of a hop between
/// two streams, and to replay the same as a graph.
void MeasureHost(GpuBench* bench) {
  Gpu& gpu = bench->gpu();
  const int hops = bench->sizes().seconds > 0 ? 2000 : 20;
  const gpu::Stream here = bench->stream(),
                    there = gpu.NewStream(0, Priority::kNormal, "bench hop");
  const auto add = [&](const std::string& name, double seconds, int count, double target) {
    bench->Add({name, seconds / count * 1e6, "us", target, true});
  };
  const auto launches = [&] {
    for (int i = 0; i < hops; ++i) gpu::Nothing(here);
  };
  launches();
  gpu.Synchronize();
  HostClock::time_point start = HostClock::now();
  launches();
  add("host: a launch", Since(start), hops, 3);
  gpu.Synchronize();

  std::vector<GpuEvent*> events;
  for (int i = 0; i < hops + 1; ++i) events.push_back(gpu.NewEvent());
  const auto chain = [&] {
    gpu.Record(events[0], here);
    gpu.Wait(there, events[0]);
    for (int i = 1; i <= hops; ++i) {
      const gpu::Stream from = i % 2 == 1 ? there : here, to = i % 2 == 1 ? here : there;
      gpu::Nothing(from);
      gpu.Record(events[static_cast<size_t>(i)], from);
      gpu.Wait(to, events[static_cast<size_t>(i)]);
    }
  };
  chain();
  gpu.Synchronize();
  start = HostClock::now();
  chain();
  add("host: a launch, record and wait", Since(start), hops, 3);
  gpu.Synchronize();
  add("a hop between streams", Since(start), hops, 5);

  gpu.BeginCapture(here);
  chain();
  // The chain ends where `there` waits for `here`, as hops are even; join it again.
  GpuEvent* const end = gpu.NewEvent();
  gpu::Nothing(there);
  gpu.Record(end, there);
  gpu.Wait(here, end);
  GpuGraph* const graph = gpu.EndCapture(here);
  gpu.Launch(graph, here);
  gpu.Synchronize();
  start = HostClock::now();
  gpu.Launch(graph, here);
  add("host: a node of a replayed graph", Since(start), hops, 1);
  gpu.Synchronize();
  add("a hop in a replayed graph", Since(start), hops, 2);

  // The bound of a virtual link: its CTAs.
  bench->Reset();
  const int64_t bytes =
      std::min<int64_t>(int64_t{64} << 20, static_cast<int64_t>(bench->sizes().arena_bytes / 8));
  const std::byte* from = reinterpret_cast<std::byte*>(bench->Random(bytes / 2));
  std::byte* to = bench->Take<std::byte>(bytes);
  for (const int ctas : {1, 2, 4, 8, 16}) {
    const double seconds =
        bench->Seconds([&] { gpu::LinkCopy(here, from, to, static_cast<size_t>(bytes), ctas); });
    bench->Add({"link of " + std::to_string(ctas) + " CTAs, one way",
                static_cast<double>(bytes) / seconds * 1e-9, "GB/s"});
  }
  const int64_t floats = bytes / 8;
  const gpu::SumParts parts = {{bench->RandomFloats(floats), bench->RandomFloats(floats)}, 2};
  for (const int ctas : {1, 4, 16}) {
    const double seconds =
        bench->Seconds([&] { gpu::OrderedSum(here, parts, static_cast<size_t>(floats), ctas); });
    bench->Add({"sum of two parts by " + std::to_string(ctas) + " CTAs, each",
                static_cast<double>(4 * floats) / seconds * 1e-9, "GB/s"});
  }
}

}  // namespace contraflow
