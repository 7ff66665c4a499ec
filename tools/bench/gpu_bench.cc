#include "tools/bench/gpu_bench.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "compiler/plan/error.h"
#include "kernels/gpu/exchange.h"
#include "kernels/gpu/stream.h"
#include "kernels/host/random.h"

namespace contraflow {
namespace {

constexpr size_t kAlignment = 256;
// Larger than the caches would only take longer to make.
constexpr int64_t kPoolValues = int64_t{1} << 20;
constexpr int kMostRounds = 5;
// Resolution of the event clock; a shorter time is repeated until it is longer.
constexpr double kClockSeconds = 2e-6;

}  // namespace

BenchSizes BenchSizes::Full() {
  return {.tokens = 8192,
          .width = 4096,
          .heads = 32,
          .head_width = 128,
          .sequence = 4096,
          .experts = 64,
          .top_k = 8,
          .inner = 1024,
          .vocabulary = 128 << 10,
          .loss_rows = 4096,
          .parameters = int64_t{1} << 28,
          .gemm = 8192,
          .layer_tokens = 32768,
          .layer_width = 4096,
          .layers = {{1024, 64, 4, 560, 560}, {512, 128, 8, 505, 512}},
          .arena_bytes = size_t{24} << 30,
          .seconds = 0.02};
}

BenchSizes BenchSizes::Tiny() {
  return {.tokens = 32,
          .width = 32,
          .heads = 2,
          .head_width = 16,
          .sequence = 16,
          .experts = 4,
          .top_k = 2,
          .inner = 16,
          .vocabulary = 64,
          .loss_rows = 16,
          .parameters = 512,
          .gemm = 32,
          .layer_tokens = 32,
          .layer_width = 32,
          .layers = {{16, 4, 2, 560, 560}},
          .arena_bytes = size_t{64} << 20,
          .seconds = 0,
          .rounds = 1};
}

GpuBench::GpuBench(Gpu& gpu, BenchSizes sizes)
    : gpu_(gpu),
      sizes_(std::move(sizes)),
      stream_(gpu.NewStream(0, Priority::kNormal, "bench")),
      arena_(gpu.Allocate(sizes_.arena_bytes)),
      stamps_(reinterpret_cast<uint64_t*>(gpu.Allocate(2 * kMostRounds * sizeof(uint64_t)))) {
  std::vector<float> values(static_cast<size_t>(kPoolValues));
  FillUniform(1, 1.0f, values.size(), values.data());
  std::vector<gpu::Bf16> rounded;
  for (const float value : values) rounded.push_back(gpu::ToBf16(value));
  float_pool_ = gpu_.Allocate(values.size() * sizeof(float));
  pool_ = gpu_.Allocate(rounded.size() * sizeof(gpu::Bf16));
  gpu_.CopyToDevice(stream_, float_pool_, values.data(), values.size() * sizeof(float));
  gpu_.CopyToDevice(stream_, pool_, rounded.data(), rounded.size() * sizeof(gpu::Bf16));
  gpu_.Synchronize();
}

std::byte* GpuBench::TakeBytes(size_t bytes) {
  const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (rounded > sizes_.arena_bytes - used_) {
    throw Error("the benchmark needs more than its " + std::to_string(sizes_.arena_bytes) +
                " bytes of device memory");
  }
  std::byte* const at = arena_ + used_;
  used_ += rounded;
  return at;
}

void GpuBench::Repeat(std::byte* to, size_t bytes, const std::byte* from, size_t period) {
  for (size_t done = 0; done < bytes; done += period) {
    // The last piece is rounded up to what a link copies; memory is taken in such pieces too.
    const size_t piece = (std::min(period, bytes - done) + 15) / 16 * 16;
    gpu::LinkCopy(stream_, from, to + done, piece, stream_.sms);
  }
}

gpu::Bf16* GpuBench::Random(int64_t count) {
  gpu::Bf16* const values = Take<gpu::Bf16>(count);
  Repeat(reinterpret_cast<std::byte*>(values), static_cast<size_t>(count) * sizeof(gpu::Bf16),
         pool_, kPoolValues * sizeof(gpu::Bf16));
  return values;
}

float* GpuBench::RandomFloats(int64_t count) {
  float* const values = Take<float>(count);
  Repeat(reinterpret_cast<std::byte*>(values), static_cast<size_t>(count) * sizeof(float),
         float_pool_, kPoolValues * sizeof(float));
  return values;
}

int32_t* GpuBench::Integers(const std::vector<int32_t>& values) {
  int32_t* const at = Take<int32_t>(static_cast<int64_t>(values.size()));
  gpu_.CopyToDevice(stream_, at, values.data(), values.size() * sizeof(int32_t));
  gpu_.Synchronize();
  return at;
}

double GpuBench::Seconds(const std::function<void()>& work) {
  const auto run = [&](int rounds, int64_t calls) {
    for (int round = 0; round < rounds; ++round) {
      gpu::Stamp(stream_, stamps_ + 2 * round);
      for (int64_t call = 0; call < calls; ++call) work();
      gpu::Stamp(stream_, stamps_ + 2 * round + 1);
    }
    std::array<uint64_t, 2 * kMostRounds> at{};
    gpu_.CopyToHost(stream_, at.data(), stamps_, sizeof at);
    gpu_.Synchronize();
    std::vector<double> seconds;
    for (size_t round = 0; round < static_cast<size_t>(rounds); ++round) {
      seconds.push_back(static_cast<double>(at[2 * round + 1] - at[2 * round]) * 1e-9 /
                        static_cast<double>(calls));
    }
    std::nth_element(seconds.begin(), seconds.begin() + rounds / 2, seconds.end());
    return seconds[static_cast<size_t>(rounds / 2)];
  };
  run(1, 1);  // Loads the kernel.
  const double once = std::max(run(1, 1), kClockSeconds);
  return run(sizes_.rounds, std::clamp<int64_t>(std::llround(sizes_.seconds / once), 1, 5000));
}

double GpuBench::CopyRate() {
  if (copy_rate_ > 0) return copy_rate_;
  const size_t before = used_;
  const auto bytes = static_cast<int64_t>(std::min(size_t{2} << 30, sizes_.arena_bytes / 16));
  const auto* const from = reinterpret_cast<std::byte*>(Random(bytes / 2));
  std::byte* const to = Take<std::byte>(bytes);
  double seconds = HUGE_VAL;
  for (const int ctas : {2, 4, 8, 16}) {
    seconds =
        std::min(seconds, Seconds([&] {
                   gpu::LinkCopy(stream_, from, to, static_cast<size_t>(bytes), ctas * stream_.sms);
                 }));
  }
  used_ = before;
  return copy_rate_ = 2 * static_cast<double>(bytes) / seconds * 1e-12;
}

void GpuBench::Bandwidth(const std::string& name, double bytes, double share_of_copy,
                         const std::function<void()>& work) {
  Add({name, bytes / Seconds(work) * 1e-12, "TB/s", share_of_copy * CopyRate()});
}

void GpuBench::Rate(const std::string& name, double operations, double target,
                    const std::function<void()>& work) {
  Add({name, operations / Seconds(work) * 1e-12, "TFLOP/s", target});
}

void GpuBench::Add(Figure figure) {
  figures_.push_back(std::move(figure));
  if (seen_) seen_(figures_.back());
}

std::span<const KernelFamily> KernelFamilies() {
  static constexpr KernelFamily kFamilies[] = {
      {"ceilings", MeasureCeilings},   {"experts", MeasureExperts},
      {"layers", MeasureLayers},       {"projections", MeasureProjections},
      {"attention", MeasureAttention}, {"host", MeasureHost},
      {"routing", MeasureRouting},     {"norms", MeasureNorms},
      {"positions", MeasurePositions}, {"activation", MeasureActivation},
      {"ends", MeasureEnds},           {"optimizer", MeasureOptimizer},
  };
  return kFamilies;
}

}  // namespace contraflow
