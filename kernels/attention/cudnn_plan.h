#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/attention/cudnn_descriptor.h"

namespace contraflow::gpu {

/// The GPU to plan for: the one of a handle, or one described by what cuDNN calls its JSON
/// representation, which need not be there.
CudnnDescriptor CudnnDevice(cudnnHandle_t handle);
CudnnDescriptor CudnnDevice(const std::string& json);

/// How cuDNN computes a graph of operations.
class CudnnPlan {
 public:
  /// The first engine that cuDNN's heuristics (mode A) name for the device, that sums in a fixed
  /// order, and that can be built. Throws GpuError if there is none. It counts on all SMs of the
  /// device: the engines of attention refuse any other number, though they run on fewer.
  CudnnPlan(const CudnnDescriptor& graph, const CudnnDescriptor& device);

  size_t work_bytes() const { return work_bytes_; }

  /// A tensor's id, and what stands for it: device memory, or a float on the host.
  struct Binding {
    int64_t id;
    void* pointer;
  };
  /// Runs on the stream of the handle.
  void Execute(cudnnHandle_t handle, const std::vector<Binding>& bindings, void* work) const;

 private:
  CudnnDescriptor plan_;
  size_t work_bytes_ = 0;
};

}  // namespace contraflow::gpu
