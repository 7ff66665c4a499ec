#pragma once

#include <cstdint>
#include <stdexcept>

namespace contraflow::gpu {

/// Launch target of a kernel: an in-order queue of a GPU, and how many of its SMs the work on it
/// may count on (those of a green context, less what communication takes). The handle is a
/// cudaStream_t, or a queue of the emulator; null: the emulator runs the kernel at once.
struct Stream {
  void* handle = nullptr;
  int sms = 1;
};

/// A call of CUDA or one of its libraries has failed: which call, and what it said.
struct GpuError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// *at = the GPU's clock in nanoseconds (%globaltimer), when the stream gets there.
void Stamp(Stream stream, uint64_t* at);

/// Does nothing: what a launch costs.
void Nothing(Stream stream);

}  // namespace contraflow::gpu
