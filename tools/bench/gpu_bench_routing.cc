#include "kernels/gpu/exchange.h"
#include "kernels/gpu/routing.h"
#include "tools/bench/gpu_bench.h"

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
  float* probabilities = bench->RandomFloats(int64_t{n.tokens} * n.experts);
  int32_t* expert = bench->Take<int32_t>(rows);
  float *weight = bench->Take<float>(rows), *dweight = bench->RandomFloats(rows);
  Bf16* dlogits = bench->Take<Bf16>(int64_t{n.tokens} * n.experts);
  const auto microseconds = [&](const std::string& name, double target,
                                const std::function<void()>& work) {
    bench->Add({name, bench->Seconds(work) * 1e6, "us", target, true});
  };
  microseconds("router F: softmax, top-k", 10, [=] {
    gpu::RouterForward(stream, n.tokens, n.experts, n.top_k, probabilities, expert, weight);
  });
  microseconds("router B", 10, [=] {
    gpu::RouterBackwardInput(stream, probabilities, expert, dweight, n.tokens, n.experts, n.top_k,
                             dlogits);
  });
  std::byte* work =
      bench->Take<std::byte>(static_cast<int64_t>(gpu::SortWork(n.tokens, n.experts, n.top_k)));
  int32_t *first = bench->Take<int32_t>(n.experts + 1), *token_of = bench->Take<int32_t>(rows);
  int32_t* row_of = bench->Take<int32_t>(rows);
  microseconds("count, scan, stable sort", 0, [=] {
    gpu::SortByExpert(stream, expert, n.tokens, n.experts, n.top_k, 0, work, first, token_of,
                      row_of, nullptr);
  });

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

}  // namespace contraflow
