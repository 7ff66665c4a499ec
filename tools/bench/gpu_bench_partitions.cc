#include <algorithm>
#include <chrono>
#include <memory>
#include <set>
#include <vector>

#include "kernels/gpu/exchange.h"
#include "kernels/gpu/matmul.h"
#include "tools/bench/gpu_bench.h"
#include "tools/bench/sm_probe.h"

namespace contraflow {
namespace {

using gpu::Bf16;
using HostClock = std::chrono::steady_clock;

// TFLOP/s of an SM: one partition alone, and all of them together.
constexpr double kAlone = 182.0 / 32, kTogether = 700.0 / 128;
constexpr uint64_t kSpin = 2'000'000;
constexpr size_t kCopyBytes = size_t{64} << 20;

/// A GPU in partitions, with a stream in each.
class Partitions {
 public:
  Partitions(std::unique_ptr<Gpu> gpu, int count, int sms, const BenchSizes& sizes,
             const std::function<void(Figure)>& add)
      : gpu_(std::move(gpu)), sms_(sms), sizes_(sizes), add_(add) {
    gpu_->Partition(count, sms);
    for (int i = 0; i < count; ++i) {
      streams_.push_back(gpu_->NewStream(i, Priority::kNormal, "probe " + std::to_string(i)));
    }
  }

  void MeasureIsolation() {
    const auto blocks = static_cast<size_t>(sms_);
    std::vector<int*> found;
    for (size_t i = 0; i < streams_.size(); ++i) {
      found.push_back(reinterpret_cast<int*>(gpu_->Allocate(blocks * sizeof(int))));
    }
    const auto spin = [&] {
      for (size_t i = 0; i < streams_.size(); ++i) ProbeSms(streams_[i], sms_, kSpin, found[i]);
    };
    const auto report = [&](const std::string& how, double seconds) {
      std::set<int> distinct;
      for (size_t i = 0; i < streams_.size(); ++i) {
        std::vector<int> sms(blocks);
        gpu_->CopyToHost(streams_[i], sms.data(), found[i], blocks * sizeof(int));
        // The next report is not of what this one has found.
        gpu_->Zero(streams_[i], found[i], blocks * sizeof(int));
        gpu_->Synchronize();
        distinct.insert(sms.begin(), sms.end());
      }
      Add("2 ms in every SM of all at once, " + how, seconds * 1e3, "ms", 2.2, true);
      Add("different SMs, " + how, static_cast<double>(distinct.size()), "",
          static_cast<double>(streams_.size() * blocks));
    };
    spin();  // Loads the kernel.
    gpu_->Synchronize();
    report("in streams", Seconds(spin));
    GpuGraph* const graph =
        Capture([&](size_t i) { ProbeSms(streams_[i], sms_, kSpin, found[i]); });
    report("as a graph", Seconds([&] { gpu_->Launch(graph, streams_[0]); }));
  }

  void MeasureProducts() {
    const int n = sizes_.gemm;
    const int64_t values = int64_t{n} * n;
    BenchSizes sizes = sizes_;
    const size_t count = streams_.size(), matrix = 2 * static_cast<size_t>(values);
    sizes.arena_bytes = (2 + count) * matrix + count * gpu::Matmuls::kWorkBytes + 3 * kCopyBytes;
    GpuBench bench(*gpu_, sizes);
    const Bf16 *a = bench.Random(values), *b = bench.Random(values);
    const gpu::MatmulShape shape = {.m = n, .n = n, .k = n};
    std::vector<Bf16*> out;
    std::vector<std::byte*> work;
    auto matmuls = std::make_unique<gpu::Matmuls>(sms_);
    matmuls->Prepare(shape);
    for (size_t i = 0; i < count; ++i) {
      out.push_back(bench.Take<Bf16>(values));
      work.push_back(bench.Take<std::byte>(static_cast<int64_t>(gpu::Matmuls::kWorkBytes)));
    }
    const int calls = sizes_.seconds > 0 ? 10 : 1;
    const auto multiply = [&](size_t partitions) {
      return Seconds([&] {
               for (int call = 0; call < calls; ++call) {
                 for (size_t i = 0; i < partitions; ++i) {
                   matmuls->Run(streams_[i], shape, a, b, nullptr, out[i], work[i]);
                 }
               }
             }) /
             calls;
    };
    // cublasLt's estimate of which algorithm is the fastest knows little of so few SMs.
    multiply(count);
    const double estimated = multiply(1);
    double alone = estimated;
    const int candidates = matmuls->Candidates(shape);
    for (int candidate = 1; candidate < candidates; ++candidate) {
      auto other = std::make_unique<gpu::Matmuls>(sms_);
      other->Prepare(shape, candidate);
      std::swap(matmuls, other);
      multiply(1);
      const double seconds = multiply(1);
      if (seconds < alone) {
        alone = seconds;
      } else {
        std::swap(matmuls, other);
      }
    }
    multiply(count);
    const double operations = 2.0 * static_cast<double>(values) * n;
    const double together = multiply(count);
    Add("a product in one, by cublasLt's estimate", operations / estimated * 1e-12, "TFLOP/s");
    Add("a product in one", operations / alone * 1e-12, "TFLOP/s", kAlone * sms_);
    Add("a product in each, sum", static_cast<double>(count) * operations / together * 1e-12,
        "TFLOP/s", kTogether * sms_ * static_cast<double>(count));
    Add("a product, all busy / alone", together / alone, "", 1.03, true);

    // A copy of one that has CTAs of its own, during the product of another.
    const auto* const from = reinterpret_cast<std::byte*>(bench.Random(kCopyBytes / 2));
    std::byte* const to = bench.Take<std::byte>(kCopyBytes);
    const double beside = Seconds([&] {
      for (int call = 0; call < calls; ++call) {
        matmuls->Run(streams_[0], shape, a, b, nullptr, out[0], work[0]);
        for (int copy = 0; copy < 4; ++copy) {
          gpu::LinkCopy(streams_[1], from, to, kCopyBytes, 4);
        }
      }
    });
    Add("a product and 256 MiB copied by another / alone", beside / calls / alone, "");
  }

  void MeasureHops() {
    const size_t hops = sizes_.seconds > 0 ? 2000 : 8;
    std::vector<GpuEvent*> events;
    for (size_t i = 0; i < hops; ++i) events.push_back(gpu_->NewEvent());
    const auto chain = [&] {
      for (size_t i = 0; i < hops; ++i) {
        const gpu::Stream from = streams_[i % streams_.size()];
        gpu::Nothing(from);
        gpu_->Record(events[i], from);
        gpu_->Wait(streams_[(i + 1) % streams_.size()], events[i]);
      }
    };
    chain();
    gpu_->Synchronize();
    const auto add = [&](const std::string& name, double seconds, double target) {
      Add(name, seconds / static_cast<double>(hops) * 1e6, "us", target, true);
    };
    add("a hop to the next, in streams", Seconds(chain), 5);
    GpuGraph* graph = nullptr;
    const double seconds = Seconds([&] {
      graph = Capture([&](size_t i) {
        if (i == 0) chain();
      });
    });
    add("capture and instantiate, a hop", seconds, 0);
    const auto launch = [&] { gpu_->Launch(graph, streams_[0]); };
    Seconds(launch);
    add("a hop to the next, in a graph", Seconds(launch), 2);
  }

 private:
  void Add(const std::string& what, double value, const std::string& unit, double target = 0,
           bool at_most = false) {
    add_({std::to_string(streams_.size()) + " x " + std::to_string(sms_) + " SMs: " + what, value,
          unit, target, at_most});
  }

  /// Until all is done, by the clock of the host.
  template <typename Work>
  double Seconds(Work work) {
    const HostClock::time_point start = HostClock::now();
    work();
    gpu_->Synchronize();
    return std::chrono::duration<double>(HostClock::now() - start).count();
  }

  /// Forks to all streams, gives each of them its work, and joins them.
  template <typename Give>
  GpuGraph* Capture(Give give) {
    const auto order = [&](gpu::Stream before, gpu::Stream after) {
      GpuEvent* const event = gpu_->NewEvent();
      gpu_->Record(event, before);
      gpu_->Wait(after, event);
    };
    gpu_->BeginCapture(streams_[0]);
    for (size_t i = 1; i < streams_.size(); ++i) order(streams_[0], streams_[i]);
    for (size_t i = 0; i < streams_.size(); ++i) give(i);
    for (size_t i = 1; i < streams_.size(); ++i) order(streams_[i], streams_[0]);
    return gpu_->EndCapture(streams_[0]);
  }

  const std::unique_ptr<Gpu> gpu_;
  const int sms_;
  const BenchSizes& sizes_;
  const std::function<void(Figure)>& add_;
  std::vector<gpu::Stream> streams_;
};

}  // namespace

void MeasurePartitions(const std::function<std::unique_ptr<Gpu>()>& new_gpu,
                       const BenchSizes& sizes, const std::function<void(Figure)>& add) {
  for (const int count : {4, 8}) {
    std::unique_ptr<Gpu> gpu = new_gpu();
    const int sms = BudgetOf(gpu->sms(), count, {}).sms;
    Partitions partitions(std::move(gpu), count, sms, sizes, add);
    partitions.MeasureIsolation();
    partitions.MeasureHops();
    partitions.MeasureProducts();
  }
}

}  // namespace contraflow
