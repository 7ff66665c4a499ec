#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "kernels/gpu/stream.h"

namespace contraflow {

/// Throws GpuError with the call, what CUDA says of it, and where it is in the source.
inline void CheckCuda(cudaError_t code, const char* call, const char* file, int line) {
  if (code == cudaSuccess) return;
  throw gpu::GpuError(std::string(call) + ": " + cudaGetErrorString(code) + " (" +
                      cudaGetErrorName(code) + "), at " + file + ":" + std::to_string(line));
}

}  // namespace contraflow

#define CF_CUDA(call) ::contraflow::CheckCuda(call, #call, __FILE__, __LINE__)
