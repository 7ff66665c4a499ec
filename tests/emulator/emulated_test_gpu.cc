#include "tests/emulator/emulated_gpu.h"
#include "tests/emulator/emulator.h"
#include "tests/emulator/test_gpu.h"

namespace contraflow {

Gpu& TestGpu() {
  static EmulatedGpu gpu;
  return gpu;
}

gpu::Stream TestStream() { return {nullptr, TestGpu().sms()}; }

bool Emulated() { return true; }
bool SmallShapes() { return true; }

void ShuffleThreads(unsigned seed) { emulator::SetOrder(emulator::Order::kShuffled, seed); }

}  // namespace contraflow
