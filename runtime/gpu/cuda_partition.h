#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <memory>
#include <vector>

namespace contraflow {

/// A GPU divided into partitions of its SMs: green contexts, which share memory and events with the
/// device's primary context. They go with it; their streams must be destroyed before.
class CudaPartitions {
 public:
  /// `count` disjoint partitions of at least `sms_each` SMs each. Throws GpuError with what is
  /// possible on this GPU.
  CudaPartitions(int device, int count, int sms_each);
  ~CudaPartitions();

  /// A stream whose kernels run on the SMs of a partition.
  cudaStream_t NewStream(int partition, int priority) const;

 private:
  struct Driver;
  struct Destroy {
    const Driver* driver;
    void operator()(CUgreenCtx context) const;
  };
  using Context = std::unique_ptr<CUgreenCtx_st, Destroy>;

  const std::unique_ptr<const Driver> driver_;
  std::vector<Context> contexts_;
};

}  // namespace contraflow
