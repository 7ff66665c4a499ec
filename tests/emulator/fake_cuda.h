#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <vector>

namespace contraflow {

/// CUDA's runtime and driver as runtime/cuda_*.cc sees them in contraflow_cuda_calls_test, which is
/// linked with fake_cuda.cc in their place: nothing runs, but every call is written down, and all
/// that is made must be destroyed, once.
struct FakeCuda {
  int devices = 1, driver = 13000;
  int major = 9, sms = 132;
  /// Functions that the driver does not have.
  std::set<std::string> missing;
  size_t memory = 1 << 20;  ///< bytes of device memory that are free
  size_t alignment = 512;   ///< of device memory
  bool done = true;         ///< all events are
  std::string fails;        ///< the call that fails
  /// Calls that change something, as "cudaMalloc 100"; objects are numbered, as "stream 1".
  std::vector<std::string> calls;
  std::set<std::string> alive;
  std::string wrong;  ///< a misuse of CUDA, if there was one
};

/// The one that is asked.
FakeCuda& Fake();
/// From now on it is this one, and what is made is numbered from 1 again.
void Reset(const FakeCuda& cuda);

}  // namespace contraflow
