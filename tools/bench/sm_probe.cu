#include "kernels/gpu/simt.h"
#include "tools/bench/sm_probe.h"

namespace contraflow {
namespace {

__device__ uint64_t Now() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__device__ void Stay(uint64_t nanoseconds) {
  const uint64_t start = Now();
  while (Now() - start < nanoseconds) {
  }
}

__global__ void __launch_bounds__(1024) ProbeKernel(uint64_t nanoseconds, int* sm_of_block) {
  if (threadIdx.x == 0) {
    int sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    sm_of_block[blockIdx.x] = sm;
  }
  Stay(nanoseconds);
}

__global__ void CountKernel(uint64_t nanoseconds, int* at) {
  Stay(nanoseconds);
  *at += 1;
}

__global__ void CopyKernel(const int* from, int* to) { *to = *from; }

}  // namespace

void ProbeSms(gpu::Stream stream, int blocks, uint64_t nanoseconds, int* sm_of_block) {
  gpu::Launch("ProbeSms", stream, static_cast<unsigned>(blocks), 1024, 0, ProbeKernel, nanoseconds,
              sm_of_block);
}

void CountLate(gpu::Stream stream, uint64_t nanoseconds, int* at) {
  gpu::Launch("CountLate", stream, 1, 1, 0, CountKernel, nanoseconds, at);
}

void CopyOne(gpu::Stream stream, const int* from, int* to) {
  gpu::Launch("CopyOne", stream, 1, 1, 0, CopyKernel, from, to);
}

}  // namespace contraflow
