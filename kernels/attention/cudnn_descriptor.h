#pragma once

// cuDNN's backend API, in which everything is a descriptor with attributes. Included only by
// sources that are compiled where cuDNN is.

#include <cudnn_graph.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/gpu/stream.h"

namespace contraflow::gpu {

/// Throws GpuError with what cuDNN says, unless it succeeded.
void CheckCudnn(cudnnStatus_t status, const char* what);

/// An owned descriptor. Every call throws GpuError with what cuDNN says of it.
class CudnnDescriptor {
 public:
  explicit CudnnDescriptor(cudnnBackendDescriptorType_t type);
  ~CudnnDescriptor();
  CudnnDescriptor(CudnnDescriptor&&) noexcept;
  CudnnDescriptor& operator=(CudnnDescriptor&&) noexcept;

  cudnnBackendDescriptor_t get() const { return descriptor_; }

  CudnnDescriptor& Set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                       int64_t count, const void* values);
  CudnnDescriptor& Set(cudnnBackendAttributeName_t name, const CudnnDescriptor& value);
  CudnnDescriptor& Set(cudnnBackendAttributeName_t name, const std::vector<int64_t>& values);
  CudnnDescriptor& Set(cudnnBackendAttributeName_t name, cudnnDataType_t value);
  void Finalize();

  /// As many values as there are, at most `count`; how many.
  int64_t Get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
              void* values) const;

 private:
  cudnnBackendDescriptor_t descriptor_ = nullptr;
};

}  // namespace contraflow::gpu
