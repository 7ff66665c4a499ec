#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/gpu/stream.h"
#include "runtime/gpu/gpu.h"

namespace contraflow {

/// When the instructions of one device began and ended in a step, by the clock of the GPU.
class StepStamps {
 public:
  /// For a program of so many instructions.
  StepStamps(size_t instructions, Gpu& gpu);

  /// Stamps the time when the stream gets there.
  void Begin(size_t index, gpu::Stream stream) const;
  void End(size_t index, gpu::Stream stream) const;
  /// Brings the stamps to the host, behind all of them.
  void Download(gpu::Stream stream) const;

  /// All become 0, which no time is.
  void Clear(gpu::Stream stream) const;
  /// Copies the stamps as they are to `host`, of bytes() and begin and end by turns, in a stream
  /// that waits for none of them.
  void Peek(gpu::Stream side, uint64_t* host) const;
  size_t bytes() const { return 2 * size_ * sizeof(uint64_t); }

  /// Those downloaded, in nanoseconds of the GPU's clock.
  uint64_t begin(size_t index) const { return host_[2 * index]; }
  uint64_t end(size_t index) const { return host_[2 * index + 1]; }
  size_t size() const { return size_; }

 private:
  size_t size_;
  Gpu* gpu_;
  uint64_t *device_, *host_;  // of each instruction begin, end
};

}  // namespace contraflow
