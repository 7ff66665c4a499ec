// Tests that need a GPU, on a real one: without one they are skipped, and say why. Listing the
// tests needs no GPU.

#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "runtime/exec/cuda_gpu.h"
#include "tests/emulator/test_gpu.h"

namespace contraflow {

Gpu& TestGpu() {
  static const std::unique_ptr<Gpu> gpu = [] {
    std::unique_ptr<Gpu> first = NewCudaGpu(0);
    first->Partition(1, 0);
    return first;
  }();
  return *gpu;
}

gpu::Stream TestStream() {
  static const gpu::Stream stream = TestGpu().NewStream(0, Priority::kNormal, "test");
  return stream;
}

bool Emulated() { return false; }

bool SmallShapes() { return std::getenv("CONTRAFLOW_SMALL_SHAPES") != nullptr; }

void ShuffleThreads(unsigned) {}

}  // namespace contraflow

int main(int argc, char** argv) {
  constexpr int kSkipped = 77;
  bool asks = false;
  for (int i = 1; i < argc; ++i) asks = asks || std::string(argv[i]).rfind("--list-test-", 0) == 0;
  std::string why;
  if (!asks && contraflow::CudaDeviceCount(&why) == 0) {
    std::printf("SKIP: no GPU: %s\n", why.c_str());
    return kSkipped;
  }
  return doctest::Context(argc, argv).run();
}
