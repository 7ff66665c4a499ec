// Stands for the CUDA driver where there is none, as far as cuDNN needs one to plan for a GPU that
// is not there: it takes the kernels that cuDNN has compiled, and has no device. Loaded as
// libcuda.so.1.

namespace {

constexpr int kSuccess = 0, kNoDevice = 100;

// Whoever asks for a kernel gets this.
int something;

}  // namespace

extern "C" {

int cuLibraryLoadData(void** library, ...) {
  *library = &something;
  return kSuccess;
}
int cuLibraryGetKernel(void** kernel, ...) {
  *kernel = &something;
  return kSuccess;
}
int cuKernelSetAttribute(...) { return kSuccess; }
int cuLibraryUnload(...) { return kSuccess; }

#define CF_NO_DEVICE(function) \
  int function(...) { return kNoDevice; }

CF_NO_DEVICE(cuCtxGetCurrent)
CF_NO_DEVICE(cuCtxGetDevice)
CF_NO_DEVICE(cuCtxGetLimit)
CF_NO_DEVICE(cuCtxPopCurrent)
CF_NO_DEVICE(cuCtxPushCurrent)
CF_NO_DEVICE(cuDeviceGet)
CF_NO_DEVICE(cuDeviceGetAttribute)
CF_NO_DEVICE(cuDeviceGetCount)
CF_NO_DEVICE(cuDevicePrimaryCtxRelease)
CF_NO_DEVICE(cuDevicePrimaryCtxReset)
CF_NO_DEVICE(cuDevicePrimaryCtxRetain)
CF_NO_DEVICE(cuDriverGetVersion)
CF_NO_DEVICE(cuFuncGetAttribute)
CF_NO_DEVICE(cuFuncSetAttribute)
CF_NO_DEVICE(cuGetErrorName)
CF_NO_DEVICE(cuGetErrorString)
CF_NO_DEVICE(cuInit)
CF_NO_DEVICE(cuKernelGetAttribute)
CF_NO_DEVICE(cuLaunchCooperativeKernel)
CF_NO_DEVICE(cuLaunchKernel)
CF_NO_DEVICE(cuLaunchKernelEx)
CF_NO_DEVICE(cuLibraryLoadFromFile)
CF_NO_DEVICE(cuLinkAddData)
CF_NO_DEVICE(cuLinkAddData_v2)
CF_NO_DEVICE(cuLinkAddFile_v2)
CF_NO_DEVICE(cuLinkComplete)
CF_NO_DEVICE(cuLinkCreate)
CF_NO_DEVICE(cuLinkCreate_v2)
CF_NO_DEVICE(cuLinkDestroy)
CF_NO_DEVICE(cuMemcpyDtoH_v2)
CF_NO_DEVICE(cuModuleGetFunction)
CF_NO_DEVICE(cuModuleGetGlobal_v2)
CF_NO_DEVICE(cuModuleLoadData)
CF_NO_DEVICE(cuModuleLoadDataEx)
CF_NO_DEVICE(cuModuleLoadFatBinary)
CF_NO_DEVICE(cuModuleUnload)
CF_NO_DEVICE(cuOccupancyMaxActiveBlocksPerMultiprocessor)
CF_NO_DEVICE(cuOccupancyMaxPotentialClusterSize)
CF_NO_DEVICE(cuStreamGetCtx)
CF_NO_DEVICE(cuStreamSynchronize)
CF_NO_DEVICE(cuTensorMapEncodeTiled)

}  // extern "C"
