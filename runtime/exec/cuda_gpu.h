#pragma once

#include <memory>
#include <string>

#include "runtime/exec/gpu.h"

namespace contraflow {

/// GPUs that CUDA can use here. Never throws: without a GPU, or a driver for it, there are 0, and
/// *why_none says why.
int CudaDeviceCount(std::string* why_none = nullptr);

/// One of them, counted from 0, by CUDA's runtime; streams of partitions are those of green
/// contexts. Made by the thread that will use it. Throws gpu::GpuError if there is no such GPU, or
/// if it is none for which the kernels are built (compute capability 9.0).
///
/// Unless the environment sets CUDA_DEVICE_MAX_CONNECTIONS, both set it to 32, so that streams do
/// not wait for each other by sharing a hardware queue; they should come before other calls of
/// CUDA, and before there are threads that read the environment.
std::unique_ptr<Gpu> NewCudaGpu(int device);

}  // namespace contraflow
