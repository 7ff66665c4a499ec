#include "runtime/gpu/step_stamps.h"

#include "kernels/gpu/stream.h"

namespace contraflow {

StepStamps::StepStamps(size_t instructions, Gpu& gpu)
    : size_(instructions),
      gpu_(&gpu),
      device_(reinterpret_cast<uint64_t*>(gpu.Allocate(2 * instructions * sizeof(uint64_t)))),
      host_(reinterpret_cast<uint64_t*>(gpu.AllocateHost(2 * instructions * sizeof(uint64_t)))) {}

void StepStamps::Begin(size_t index, gpu::Stream stream) const {
  gpu::Stamp(stream, device_ + 2 * index);
}

void StepStamps::End(size_t index, gpu::Stream stream) const {
  gpu::Stamp(stream, device_ + 2 * index + 1);
}

void StepStamps::Download(gpu::Stream stream) const { Peek(stream, host_); }

void StepStamps::Clear(gpu::Stream stream) const { gpu_->Zero(stream, device_, bytes()); }

void StepStamps::Peek(gpu::Stream side, uint64_t* host) const {
  gpu_->CopyToHost(side, host, device_, bytes());
}

}  // namespace contraflow
