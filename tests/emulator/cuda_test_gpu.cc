#include "runtime/gpu/cuda_gpu.h"
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

void ShuffleThreads(unsigned) {}

}  // namespace contraflow
