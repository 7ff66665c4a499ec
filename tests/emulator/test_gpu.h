#pragma once

#include <cstddef>
#include <cstring>
#include <vector>

#include "kernels/host/bf16.h"
#include "runtime/exec/gpu.h"

namespace contraflow {

/// Device on which kernels are tested: the emulator in contraflow_kernel_test, the machine's GPU in
/// contraflow_gpu_test, from the same sources.
Gpu& TestGpu();
gpu::Stream TestStream();
bool Emulated();
/// Whether shapes have to be small: in the emulator, and where compute-sanitizer looks at each
/// access (CONTRAFLOW_SMALL_SHAPES=1).
bool SmallShapes();
/// The emulator's threads take their turns in another order from now on; on a GPU nothing. Results
/// must stay the same, bit for bit.
void ShuffleThreads(unsigned seed);

/// An array in device memory.
template <typename T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& values) : OnDevice(values.size()) { Put(values); }
  /// Poisoned: every byte is 0xff, which is NaN or -1.
  explicit OnDevice(size_t size)
      : size_(size), data_(reinterpret_cast<T*>(TestGpu().Allocate(size * sizeof(T)))) {
    Poison();
  }
  T* data() { return data_; }
  size_t size() const { return size_; }
  void Put(const std::vector<T>& values) {
    TestGpu().CopyToDevice(TestStream(), data_, values.data(), values.size() * sizeof(T));
    TestGpu().Synchronize();
  }
  void Poison() {
    std::vector<T> values(size_);
    if (size_ > 0) std::memset(static_cast<void*>(values.data()), 0xff, size_ * sizeof(T));
    Put(values);
  }
  std::vector<T> Get() const {
    std::vector<T> values(size_);
    TestGpu().CopyToHost(TestStream(), values.data(), data_, size_ * sizeof(T));
    TestGpu().Synchronize();
    return values;
  }

 private:
  size_t size_;
  T* data_;
};

/// Uniform in [-limit, limit), rounded to bf16; depends on the seed alone.
std::vector<gpu::Bf16> RandomBf16(size_t size, unsigned seed, double limit = 1);
std::vector<float> RandomFloats(size_t size, unsigned seed, double limit = 1);

std::vector<double> Doubles(const std::vector<gpu::Bf16>& values);
std::vector<double> Doubles(const std::vector<float>& values);

/// The relative error of a whole result: |a - b| / |b| in the Euclidean norm; infinite if a value
/// is not finite.
double RelativeError(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace contraflow
