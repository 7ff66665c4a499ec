#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/gpu/exchange.h"
#include "kernels/gpu/experts.h"
#include "kernels/gpu/matmul.h"
#include "kernels/gpu/routing.h"
#include "tools/bench/gpu_bench.h"
#include "tools/bench/padded_experts.h"

namespace contraflow {

namespace {

using gpu::Bf16;

constexpr double kPermuteShare = 3.5 / 4.3, kCombineShare = 3.7 / 4.3;

}  // namespace

void MeasureRouting(GpuBench* bench) {
  bench->Reset();
  const BenchSizes& n = bench->sizes();
  const gpu::Stream stream = bench->stream();
  const int rows = n.tokens * n.top_k;
  const int64_t logits_bytes = int64_t{n.tokens} * n.experts * 4;
  const float* logits = bench->RandomFloats(int64_t{n.tokens} * n.experts);
  float* probabilities = bench->Take<float>(int64_t{n.tokens} * n.experts);
  int32_t* expert = bench->Take<int32_t>(rows);
  float *weight = bench->Take<float>(rows), *dweight = bench->RandomFloats(rows);
  Bf16* dlogits = bench->Take<Bf16>(int64_t{n.tokens} * n.experts);
  const auto microseconds = [&](const std::string& name, double target, double seconds) {
    bench->Add({name, seconds * 1e6, "us", target, true});
  };
  // The softmax is in place: applied to its own result again and again it would end in ties, and
  // every token choose the same experts.
  const auto restore = [=] {
    gpu::LinkCopy(stream, reinterpret_cast<const std::byte*>(logits),
                  reinterpret_cast<std::byte*>(probabilities), static_cast<size_t>(logits_bytes),
                  stream.sms);
  };
  const double copy = bench->Seconds(restore);
  const double both = bench->Seconds([=] {
    restore();
    gpu::RouterForward(stream, n.tokens, n.experts, n.top_k, probabilities, expert, weight);
  });
  microseconds("router F: softmax, top-k", 10, std::max(0.0, both - copy));
  microseconds("router B", 10, bench->Seconds([=] {
    gpu::RouterBackwardInput(stream, probabilities, expert, dweight, n.tokens, n.experts, n.top_k,
                             dlogits);
  }));
  std::byte* work =
      bench->Take<std::byte>(static_cast<int64_t>(gpu::SortWork(n.tokens, n.experts, n.top_k)));
  int32_t *first = bench->Take<int32_t>(n.experts + 1), *token_of = bench->Take<int32_t>(rows);
  int32_t* row_of = bench->Take<int32_t>(rows);
  microseconds("count, scan, stable sort", 0, bench->Seconds([=] {
    gpu::SortByExpert(stream, expert, n.tokens, n.experts, n.top_k, 0, work, first, token_of,
                      row_of, nullptr);
  }));

  const Bf16* x = bench->Random(int64_t{n.tokens} * n.width);
  Bf16* sorted = bench->Random(int64_t{rows} * n.width);
  Bf16* other = bench->Random(int64_t{rows} * n.width);
  Bf16* y = bench->Take<Bf16>(int64_t{n.tokens} * n.width);
  // Every row is written once, and every token read once: where it is read again, that comes from
  // the cache.
  const double row_bytes = 2.0 * rows * n.width, token_bytes = 2.0 * n.tokens * n.width;
  bench->Bandwidth("permute to experts", row_bytes + token_bytes, kPermuteShare, [=] {
    gpu::SpreadTokens(stream, x, row_of, token_of, n.tokens, rows, n.top_k, n.width, sorted);
  });
  bench->Bandwidth("permute to experts, row by row", row_bytes + token_bytes, 0,
                   [=] { gpu::GatherTokens(stream, x, token_of, rows, n.width, sorted); });
  bench->Bandwidth("permute B", row_bytes + token_bytes, kPermuteShare, [=] {
    gpu::GatherTokensBackwardInput(stream, sorted, row_of, n.tokens, n.top_k, n.width, y);
  });
  bench->Bandwidth("combine F", row_bytes + 2 * token_bytes, kCombineShare, [=] {
    gpu::CombineForward(stream, x, sorted, row_of, weight, n.tokens, n.top_k, n.width, y);
  });
  bench->Bandwidth("combine B", 2 * row_bytes + token_bytes, kCombineShare, [=] {
    gpu::CombineBackwardInput(stream, x, sorted, row_of, token_of, weight, n.tokens, rows, n.top_k,
                              n.width, other, dweight);
  });
}

namespace {

using gpu::Bf16;

constexpr double kMatmulTarget = 700;

void MeasureMatmul(GpuBench* bench, const std::string& name, const gpu::MatmulShape& shape,
                   double target) {
  bench->Reset();
  const Bf16* a = bench->Random(int64_t{shape.m} * shape.k);
  const Bf16* b = bench->Random(int64_t{shape.k} * shape.n);
  std::byte* d = bench->Take<std::byte>(int64_t{shape.m} * shape.n * (shape.float_out ? 4 : 2));
  bench->gpu().Zero(
      bench->stream(), d,
      static_cast<size_t>(shape.m) * static_cast<size_t>(shape.n) * (shape.float_out ? 4 : 2));
  std::byte* work = bench->Take<std::byte>(static_cast<int64_t>(gpu::Matmuls::kWorkBytes));
  const auto seconds_of = [&](int candidate) {
    gpu::Matmuls matmuls(bench->stream().sms);
    matmuls.Prepare(shape, candidate);
    return bench->Seconds([&] { matmuls.Run(bench->stream(), shape, a, b, d, d, work); });
  };
  const double operations = 2.0 * shape.m * shape.n * shape.k * 1e-12;
  double best = seconds_of(0);
  bench->Add({name, operations / best, "TFLOP/s", target});
  // Loss by cublasLt's estimate of which is the fastest.
  const int candidates = gpu::Matmuls(bench->stream().sms).Candidates(shape);
  for (int i = 1; i < candidates; ++i) best = std::min(best, seconds_of(i));
  bench->Add({name + ", the fastest candidate", operations / best, "TFLOP/s", target});
}

/// Returns whether the engine is our own.
bool MeasureEngine(GpuBench* bench, gpu::Attention::Engine engine, double forward_target,
                   double backward_target) {
  bench->Reset();
  const BenchSizes& n = bench->sizes();
  const AttentionShape shape = {n.tokens / n.sequence, n.sequence, n.heads, n.head_width};
  const gpu::Attention attention(shape, bench->stream().sms, engine);
  const int64_t values = int64_t{n.tokens} * n.heads * n.head_width;
  const Bf16 *qkv = bench->Random(3 * values), *dout = bench->Random(values);
  Bf16 *out = bench->Take<Bf16>(values), *dqkv = bench->Take<Bf16>(3 * values);
  float* lse = bench->Take<float>(int64_t{n.tokens} * n.heads);
  std::byte* work = bench->Take<std::byte>(static_cast<int64_t>(attention.work_bytes()));
  // Half of the products are above the diagonal. Two products forward, five backward.
  const double product = static_cast<double>(n.tokens) * n.sequence * n.heads * n.head_width;
  const std::string name = "attention (" + std::string(attention.engine()) + ") ";
  bench->Rate(name + "F", 2 * product, forward_target,
              [&] { attention.Forward(bench->stream(), qkv, work, out, lse); });
  bench->Rate(name + "B", 5 * product, backward_target,
              [&] { attention.BackwardInput(bench->stream(), qkv, out, lse, dout, work, dqkv); });
  return attention.engine() == "own";
}

/// The operands of the experts of one layer, with rows as a random router sends them.
struct ExpertOperands {
  ExpertOperands(GpuBench* bench, int tokens, int width, int inner, int experts, int top_k)
      : sizes{experts, width, inner, tokens * top_k},
        x(bench->Random(int64_t{tokens} * width)),
        gate_up(bench->Random(int64_t{experts} * width * 2 * inner)),
        down(bench->Random(int64_t{experts} * inner * width)),
        dy(bench->Random(int64_t{tokens} * width)),
        first(bench->Take<int32_t>(experts + 1)),
        token_of(bench->Take<int32_t>(sizes.most_rows)),
        row_of(bench->Take<int32_t>(sizes.most_rows)),
        weight(bench->Take<float>(sizes.most_rows)),
        dweight(bench->Take<float>(sizes.most_rows)),
        rows(bench->Random(int64_t{sizes.most_rows} * width)),
        drows(bench->Random(int64_t{sizes.most_rows} * width)),
        out(bench->Random(int64_t{sizes.most_rows} * width)),
        dsorted(bench->Take<Bf16>(int64_t{sizes.most_rows} * width)),
        gate(bench->Random(int64_t{sizes.most_rows} * 2 * inner)),
        dgate(bench->Random(int64_t{sizes.most_rows} * 2 * inner)),
        hidden(bench->Random(int64_t{sizes.most_rows} * inner)),
        y(bench->Take<Bf16>(int64_t{tokens} * width)),
        dgate_up(bench->RandomFloats(int64_t{experts} * width * 2 * inner)),
        ddown(bench->RandomFloats(int64_t{experts} * inner * width)) {
    float* logits = bench->RandomFloats(int64_t{tokens} * experts);
    int32_t* expert = bench->Take<int32_t>(sizes.most_rows);
    std::byte* work =
        bench->Take<std::byte>(static_cast<int64_t>(gpu::SortWork(tokens, experts, top_k)));
    gpu::RouterForward(bench->stream(), tokens, experts, top_k, logits, expert, weight);
    gpu::SortByExpert(bench->stream(), expert, tokens, experts, top_k, 0, work, first, token_of,
                      row_of, nullptr);
  }

  const gpu::ExpertsSizes sizes;
  const Bf16 *x, *gate_up, *down, *dy;
  int32_t *first, *token_of, *row_of;
  float *weight, *dweight;
  Bf16 *rows, *drows, *out, *dsorted, *gate, *dgate, *hidden, *y;
  float *dgate_up, *ddown;
};

}  // namespace

void MeasureExperts(GpuBench* bench) {
  const BenchSizes& n = bench->sizes();
  const gpu::Stream stream = bench->stream();
  bench->Reset();
  const ExpertOperands o(bench, n.tokens, n.width, n.inner, n.experts, n.top_k);
  const double product = 6.0 * n.tokens * n.top_k * n.width * n.inner;
  bench->Rate("grouped experts F: up, SwiGLU, down", product, 650, [&] {
    gpu::ExpertsForward(stream, o.sizes, o.first, o.rows, o.gate_up, o.down, o.gate, o.hidden,
                        o.out);
  });
  bench->Rate("grouped experts B", product, 650, [&] {
    gpu::ExpertsBackwardInput(stream, o.sizes, o.first, o.gate_up, o.down, o.gate, o.drows, o.dgate,
                              o.dsorted);
  });
  bench->Rate("grouped experts W, K-grouped", product, 600, [&] {
    gpu::ExpertsBackwardWeight(stream, o.sizes, o.first, o.rows, o.hidden, o.dgate, o.drows,
                               o.dgate_up, o.ddown);
  });

  // The reference that it has to be better than, on equally many rows for each expert.
  std::vector<int32_t> even;
  for (int e = 0; e <= n.experts; ++e) even.push_back(e * (o.sizes.most_rows / n.experts));
  const int32_t* first = bench->Integers(even);
  const gpu::PaddedExperts padded(stream.sms, o.sizes);
  std::byte* work = bench->Take<std::byte>(static_cast<int64_t>(padded.work_bytes()));
  bench->Rate("cublasLt batches F", product, 0, [&] {
    padded.Forward(stream, first, o.rows, o.gate_up, o.down, work, o.gate, o.hidden, o.out);
  });
  bench->Rate("cublasLt batches B", product, 0, [&] {
    padded.BackwardInput(stream, first, o.gate_up, o.down, o.gate, o.drows, work, o.dgate,
                         o.dsorted);
  });
  bench->Rate("cublasLt batches W", product, 0, [&] {
    padded.BackwardWeight(stream, o.rows, o.hidden, o.dgate, o.drows, work, o.dgate_up, o.ddown);
  });

  // One product for W of several micro-batches adds to the gradients once instead of once for each.
  for (const int batches : {2, 4}) {
    bench->Reset();
    const ExpertOperands m(bench, batches * n.tokens, n.width, n.inner, n.experts, n.top_k);
    bench->Rate("grouped experts W of " + std::to_string(batches) + " micro-batches in one product",
                batches * product, 0, [&] {
                  gpu::ExpertsBackwardWeight(stream, m.sizes, m.first, m.rows, m.hidden, m.dgate,
                                             m.drows, m.dgate_up, m.ddown);
                });
  }
}

double CopyTarget(const std::string& gpu) {
  if (gpu.find("H200") != std::string::npos) return 4.3;
  if (gpu.find("H100 80GB HBM3") != std::string::npos) return 3.0;
  return 0;
}

void MeasureCeilings(GpuBench* bench) {
  bench->Add(
      {"large copy, read and written", bench->CopyRate(), "TB/s", CopyTarget(bench->gpu().name())});
  const int n = bench->sizes().gemm;
  MeasureMatmul(bench, "square product (cublasLt)", {.m = n, .n = n, .k = n}, 790);
}

void MeasureProjections(GpuBench* bench) {
  const BenchSizes& n = bench->sizes();
  const int t = n.tokens, d = n.width;
  MeasureMatmul(bench, "QKV projection F", {.m = t, .n = 3 * d, .k = d}, kMatmulTarget);
  MeasureMatmul(bench, "QKV projection B",
                {.transpose_b = Transpose::kYes, .m = t, .n = d, .k = 3 * d}, kMatmulTarget);
  MeasureMatmul(
      bench, "QKV projection W, fp32 sums",
      {.transpose_a = Transpose::kYes, .m = d, .n = 3 * d, .k = t, .float_out = true, .add = true},
      kMatmulTarget);
  MeasureMatmul(bench, "output projection F", {.m = t, .n = d, .k = d}, kMatmulTarget);
  MeasureMatmul(bench, "head F", {.m = std::min(n.loss_rows, t), .n = n.vocabulary, .k = d},
                kMatmulTarget);
}

void MeasureAttention(GpuBench* bench) {
  if (!MeasureEngine(bench, gpu::Attention::Engine::kBest, 590, 470)) {
    MeasureEngine(bench, gpu::Attention::Engine::kOwn, 0, 0);
  }
}

void MeasureLayers(GpuBench* bench) {
  const BenchSizes& n = bench->sizes();
  const gpu::Stream stream = bench->stream();
  for (const BenchSizes::Layer& layer : n.layers) {
    bench->Reset();
    const int tokens = n.layer_tokens, width = n.layer_width, top_k = layer.top_k;
    const ExpertOperands o(bench, tokens, width, layer.inner, layer.experts, top_k);
    const double product = 6.0 * tokens * top_k * width * layer.inner;
    const std::string name = "MoE layer T=" + std::to_string(tokens) +
                             " d=" + std::to_string(width) + " n=" + std::to_string(layer.inner) +
                             " E=" + std::to_string(layer.experts) + " K=" + std::to_string(top_k);
    bench->Rate(name + " F: permute, experts, combine", product, layer.forward_target, [&] {
      gpu::SpreadTokens(stream, o.x, o.row_of, o.token_of, tokens, o.sizes.most_rows, top_k, width,
                        o.rows);
      gpu::ExpertsForward(stream, o.sizes, o.first, o.rows, o.gate_up, o.down, o.gate, o.hidden,
                          o.out);
      gpu::CombineForward(stream, o.x, o.out, o.row_of, o.weight, tokens, top_k, width, o.y);
    });
    bench->Rate(name + " B and W of these", 2 * product, layer.backward_target, [&] {
      gpu::CombineBackwardInput(stream, o.dy, o.out, o.row_of, o.token_of, o.weight, tokens,
                                o.sizes.most_rows, top_k, width, o.drows, o.dweight);
      gpu::ExpertsBackwardInput(stream, o.sizes, o.first, o.gate_up, o.down, o.gate, o.drows,
                                o.dgate, o.dsorted);
      gpu::ExpertsBackwardWeight(stream, o.sizes, o.first, o.rows, o.hidden, o.dgate, o.drows,
                                 o.dgate_up, o.ddown);
      gpu::GatherTokensBackwardInput(stream, o.dsorted, o.row_of, tokens, top_k, width, o.y);
    });
  }
}

}  // namespace contraflow
