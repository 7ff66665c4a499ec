#include "runtime/gpu/cuda_partition.h"

#include <cudaTypedefs.h>

#include <string>

#include "compiler/plan/error.h"
#include "runtime/gpu/cuda_call.h"
#include "runtime/gpu/sm_budget.h"

namespace contraflow {

// CUDA's runtime 13.0 knows nothing of green contexts; the driver does. It is asked for its
// functions at run time: linked with it, the program would not start where there is no driver.
struct CudaPartitions::Driver {
  PFN_cuGetErrorString_v6000 error_string;
  PFN_cuDeviceGet_v2000 device_get;
  PFN_cuDeviceGetDevResource_v12040 get_resource;
  PFN_cuDevSmResourceSplitByCount_v12040 split;
  PFN_cuDevResourceGenerateDesc_v12040 describe;
  PFN_cuGreenCtxCreate_v12040 create;
  PFN_cuGreenCtxDestroy_v12040 destroy;
  PFN_cuGreenCtxStreamCreate_v12050 create_stream;

  Driver() {
    Find("cuGetErrorString", 6000, &error_string);
    Find("cuDeviceGet", 2000, &device_get);
    Find("cuDeviceGetDevResource", 12040, &get_resource);
    Find("cuDevSmResourceSplitByCount", 12040, &split);
    Find("cuDevResourceGenerateDesc", 12040, &describe);
    Find("cuGreenCtxCreate", 12040, &create);
    Find("cuGreenCtxDestroy", 12040, &destroy);
    Find("cuGreenCtxStreamCreate", 12050, &create_stream);
  }

  void Check(CUresult result, const char* call) const {
    if (result == CUDA_SUCCESS) return;
    const char* text = nullptr;
    if (error_string(result, &text) != CUDA_SUCCESS || text == nullptr) text = "unknown error";
    throw gpu::GpuError(std::string(call) + ": " + text);
  }

  /// How many partitions of so many SMs there can be.
  unsigned Possible(const CUdevResource& all, unsigned sms_each) const {
    unsigned groups = 0;
    // What cannot be split so at all is an error of the call.
    if (split(nullptr, &groups, &all, nullptr, 0, sms_each) != CUDA_SUCCESS) return 0;
    return groups;
  }

 private:
  template <typename Function>
  static void Find(const char* name, unsigned version, Function* function) {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    CF_CUDA(cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &result));
    if (result != cudaDriverEntryPointSuccess || found == nullptr) {
      throw gpu::GpuError(std::string("the CUDA driver is too old to divide a GPU: it has no ") +
                          name + "; CUDA 13.0 needs driver 580 or newer");
    }
    *function = reinterpret_cast<Function>(found);
  }
};

void CudaPartitions::Destroy::operator()(CUgreenCtx context) const { driver->destroy(context); }

CudaPartitions::CudaPartitions(int device, int count, int sms_each)
    : driver_(std::make_unique<const Driver>()) {
  CF_ASSERT(count > 0 && sms_each > 0);
  const auto wanted = static_cast<unsigned>(count), sms = static_cast<unsigned>(sms_each);
  CUdevice handle = 0;
  driver_->Check(driver_->device_get(&handle, device), "cuDeviceGet");
  CUdevResource all = {};
  driver_->Check(driver_->get_resource(handle, &all, CU_DEV_RESOURCE_TYPE_SM),
                 "cuDeviceGetDevResource");
  if (driver_->Possible(all, sms) < wanted) {
    unsigned largest = all.sm.smCount / kPartitionSms * kPartitionSms;
    while (largest > 0 && driver_->Possible(all, largest) < wanted) largest -= kPartitionSms;
    throw gpu::GpuError("GPU " + std::to_string(device) + " of " + std::to_string(all.sm.smCount) +
                        " SMs cannot be divided into " + std::to_string(count) + " partitions of " +
                        std::to_string(sms_each) + " SMs: " +
                        (largest == 0 ? "there are not so many partitions of any size"
                                      : "so many can have " + std::to_string(largest) + " each"));
  }
  // Groups of several calls would overlap.
  std::vector<CUdevResource> groups(wanted);
  unsigned made = wanted;
  driver_->Check(driver_->split(groups.data(), &made, &all, nullptr, 0, sms),
                 "cuDevSmResourceSplitByCount");
  CF_ASSERT(made == wanted);
  for (CUdevResource& group : groups) {
    CF_ASSERT(group.sm.smCount >= sms);
    CUdevResourceDesc description = nullptr;
    driver_->Check(driver_->describe(&description, &group, 1), "cuDevResourceGenerateDesc");
    CUgreenCtx context = nullptr;
    driver_->Check(driver_->create(&context, description, handle, CU_GREEN_CTX_DEFAULT_STREAM),
                   "cuGreenCtxCreate");
    contexts_.push_back(Context(context, Destroy{driver_.get()}));
  }
}

CudaPartitions::~CudaPartitions() = default;

cudaStream_t CudaPartitions::NewStream(int partition, int priority) const {
  CUstream stream = nullptr;
  driver_->Check(driver_->create_stream(&stream, contexts_.at(static_cast<size_t>(partition)).get(),
                                        CU_STREAM_NON_BLOCKING, priority),
                 "cuGreenCtxStreamCreate");
  return stream;
}

}  // namespace contraflow
