// Whether cuDNN has plans for our graphs of attention is asked without a GPU: of cuDNN itself, for
// an H200 that is described to it. The attention_test says what the plans compute, on a GPU.

#include "kernels/attention/cudnn.h"

#include <dlfcn.h>
#include <doctest/doctest.h>

#include <string>

#include "kernels/attention/attention.h"

namespace contraflow::cudnn_test {
namespace {

constexpr const char* kH200 = R"({"deviceName": "NVIDIA H200", "deviceVer": 900,
  "driverVer": 13000, "cudaDeviceId": 0, "pciDeviceId": 0, "isTccDriver": 0,
  "multiProcessorCount": 132, "warpSize": 32, "maxGridSize": [2147483647, 65535, 65535],
  "maxBlockSize": [1024, 1024, 64], "regsPerBlock": 65536, "maxRegistersPerSM": 65536,
  "maxCtasPerSM": 32, "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048,
  "maxSharedMemoryPerBlock": 49152, "maxSharedMemoryPerBlockOptin": 232448,
  "reservedSharedMemoryPerBlock": 1024, "supportCoopLaunch": 1, "l2CacheSize": 52428800,
  "totalGlobalMem": 150000000000, "smClockRateKHz": 1980000, "memClockRateKHz": 3201000})";

/// Loads what stands for the CUDA driver, unless there is one.
void NeedDriver() {
  if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) != nullptr) return;
  REQUIRE(dlopen(CF_DRIVER_STAND_IN, RTLD_NOW | RTLD_GLOBAL) != nullptr);
}

bool HaveDevice() {
  cudnnHandle_t handle = nullptr;
  if (cudnnCreate(&handle) != CUDNN_STATUS_SUCCESS) return false;
  cudnnDestroy(handle);
  return true;
}

size_t Up(int x, size_t unit) { return (static_cast<size_t>(x) + unit - 1) / unit * unit; }

size_t Queries(const AttentionShape& n) {
  return static_cast<size_t>(n.batch) * static_cast<size_t>(n.heads) * Up(n.sequence, 64);
}
/// A number for every score, in whole tiles, and one for every query: what the sums in a fixed
/// order cost. The engine without has a float for every element of dq instead.
size_t WorkOf(const AttentionShape& n) {
  const size_t heads = static_cast<size_t>(n.batch) * static_cast<size_t>(n.heads);
  return Queries(n) * Up(n.sequence, 128) * 2 + heads * static_cast<size_t>(n.sequence) * 4;
}

TEST_SUITE("unit") {
  TEST_CASE("cudnn: it has deterministic plans for both directions on an H200") {
    NeedDriver();
    const gpu::CudnnDescriptor h200 = gpu::CudnnDevice(kH200);
    for (const AttentionShape& n :
         {AttentionShape{2, 1024, 4, 128}, AttentionShape{1, 70, 3, 24}}) {
      CAPTURE(n.sequence);
      const gpu::CudnnAttentionForward forward(n, h200, gpu::Attention::kMostWork);
      const gpu::CudnnAttentionBackward backward(n, h200, gpu::Attention::kMostWork);
      CHECK(forward.parts() == 1);
      CHECK(backward.parts() == 1);
      CHECK(forward.work_bytes() <= backward.work_bytes());
      CHECK(backward.work_bytes() >= WorkOf(n));
      CHECK(backward.work_bytes() <= WorkOf(n) + sizeof(float) * Queries(n) + 2048);
    }
  }

  TEST_CASE("cudnn: heads that want too much work memory come in parts") {
    NeedDriver();
    const gpu::CudnnDescriptor h200 = gpu::CudnnDevice(kH200);
    const auto parts = [&](const AttentionShape& n, size_t most) {
      const gpu::CudnnAttentionBackward backward(n, h200, most);
      CHECK(backward.work_bytes() <= most);
      CHECK(backward.work_bytes() >= WorkOf(n) / static_cast<size_t>(backward.parts()));
      return backward.parts();
    };
    CHECK(parts({1, 8192, 32, 128}, gpu::Attention::kMostWork) == 2);
    CHECK(parts({2, 4096, 64, 128}, gpu::Attention::kMostWork) == 2);
    // Single heads of six sequences. With 70 sums for each, an odd number of heads ends where cuDNN
    // could not go on reading.
    CHECK(parts({6, 256, 3, 64}, size_t{1} << 18) == 18);
    CHECK(parts({1, 70, 6, 64}, 110'000) == 3);
    CHECK_THROWS_WITH_AS(parts({1, 65536, 4, 128}, gpu::Attention::kMostWork),
                         doctest::Contains(" bytes of work memory a head, of 4294967296 that"),
                         gpu::GpuError);
  }

  TEST_CASE("cudnn: what it will not have is an error that says so") {
    NeedDriver();
    const gpu::CudnnDescriptor h200 = gpu::CudnnDevice(kH200);
    // Rows of keys that are not 16-aligned.
    CHECK_THROWS_WITH_AS(gpu::CudnnAttentionBackward({1, 64, 1, 12}, h200, 1 << 20),
                         doctest::Contains("cuDNN has no plan: "), gpu::GpuError);
    CHECK_THROWS_WITH_AS(gpu::CudnnDevice("{}"), doctest::Contains("cudnnBackendFinalize: CUDNN_"),
                         gpu::GpuError);
  }

  TEST_CASE("cudnn: without a device our own kernels are taken") {
    NeedDriver();
    const AttentionShape n{1, 64, 2, 64};
    const gpu::Attention best(n, 132);
    CHECK(best.engine() == (HaveDevice() ? "cudnn" : "own"));
    CHECK(best.Report() == (HaveDevice() ? "cudnn" : "own (there is no CUDA device)"));
    CHECK(gpu::Attention(n, 132, gpu::Attention::Engine::kOwn).Report() == "own");
  }
}

}  // namespace
}  // namespace contraflow::cudnn_test
