#include "kernels/attention/cudnn_descriptor.h"

#include <array>
#include <string>
#include <utility>

namespace contraflow::gpu {

void CheckCudnn(cudnnStatus_t status, const char* what) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  std::array<char, 512> said = {};
  cudnnGetLastErrorString(said.data(), said.size());
  throw GpuError(std::string(what) + ": " + cudnnGetErrorString(status) + ": " + said.data());
}

CudnnDescriptor::CudnnDescriptor(cudnnBackendDescriptorType_t type) {
  CheckCudnn(cudnnBackendCreateDescriptor(type, &descriptor_), "cudnnBackendCreateDescriptor");
}
CudnnDescriptor::~CudnnDescriptor() {
  if (descriptor_ != nullptr) cudnnBackendDestroyDescriptor(descriptor_);
}
CudnnDescriptor::CudnnDescriptor(CudnnDescriptor&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, nullptr)) {}
CudnnDescriptor& CudnnDescriptor::operator=(CudnnDescriptor&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

CudnnDescriptor& CudnnDescriptor::Set(cudnnBackendAttributeName_t name,
                                      cudnnBackendAttributeType_t type, int64_t count,
                                      const void* values) {
  CheckCudnn(cudnnBackendSetAttribute(descriptor_, name, type, count, values),
             "cudnnBackendSetAttribute");
  return *this;
}
CudnnDescriptor& CudnnDescriptor::Set(cudnnBackendAttributeName_t name,
                                      const CudnnDescriptor& value) {
  const cudnnBackendDescriptor_t descriptor = value.get();
  return Set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &descriptor);
}
CudnnDescriptor& CudnnDescriptor::Set(cudnnBackendAttributeName_t name,
                                      const std::vector<int64_t>& values) {
  return Set(name, CUDNN_TYPE_INT64, static_cast<int64_t>(values.size()), values.data());
}
CudnnDescriptor& CudnnDescriptor::Set(cudnnBackendAttributeName_t name, cudnnDataType_t value) {
  return Set(name, CUDNN_TYPE_DATA_TYPE, 1, &value);
}

void CudnnDescriptor::Finalize() {
  CheckCudnn(cudnnBackendFinalize(descriptor_), "cudnnBackendFinalize");
}

int64_t CudnnDescriptor::Get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                             int64_t count, void* values) const {
  int64_t got = 0;
  CheckCudnn(cudnnBackendGetAttribute(descriptor_, name, type, count, &got, values),
             "cudnnBackendGetAttribute");
  return got;
}

}  // namespace contraflow::gpu
