#include "tests/emulator/fake_cuda.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>

namespace contraflow {

FakeCuda& Fake() {
  static FakeCuda fake;
  return fake;
}

namespace {

struct Objects {
  std::map<const void*, std::string> names;  // of those alive
  std::map<std::string, int> made;
};
Objects& All() {
  static Objects objects;
  return objects;
}

}  // namespace

void Reset(const FakeCuda& cuda) {
  Fake() = cuda;
  All().made.clear();
}

namespace {

std::string Name(const void* object) {
  const auto found = All().names.find(object);
  if (found != All().names.end()) return found->second;
  Fake().wrong += "use of something that is not alive; ";
  return "nothing";
}

template <typename T>
void Make(const std::string& kind, T** object, size_t bytes = 1, size_t alignment = 64) {
  // 4096 bytes more, so that an address can be aligned as badly as is wanted.
  char* const block = static_cast<char*>(std::aligned_alloc(4096, (bytes / 4096 + 2) * 4096));
  void* const at = block + alignment % 4096;
  *object = static_cast<T*>(at);
  const std::string name = kind + " " + std::to_string(++All().made[kind]);
  All().names[at] = name;
  Fake().alive.insert(name);
}

void Destroy(void* object) {
  Fake().calls.push_back("destroy " + Name(object));
  if (Fake().alive.erase(Name(object)) == 0) return;
  All().names.erase(object);
  std::free(reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(object) / 4096 * 4096));
}

/// Writes a call down; whether it fails.
bool Call(const std::string& name, const std::string& arguments = "") {
  Fake().calls.push_back(arguments.empty() ? name : name + " " + arguments);
  return Fake().fails == name;
}
cudaError_t Result(bool failed) { return failed ? cudaErrorUnknown : cudaSuccess; }
CUresult DriverResult(bool failed) { return failed ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS; }

CUresult ErrorString(CUresult, const char** text) {
  *text = "the driver's words";
  return CUDA_SUCCESS;
}
CUresult DeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return CUDA_SUCCESS;
}
CUresult GetResource(CUdevice, CUdevResource* resource, CUdevResourceType) {
  std::memset(static_cast<void*>(resource), 0, sizeof(*resource));
  resource->sm.smCount = static_cast<unsigned>(Fake().sms);
  return CUDA_SUCCESS;
}
CUresult Split(CUdevResource* groups, unsigned* count, const CUdevResource* all, CUdevResource*,
               unsigned flags, unsigned sms_each) {
  if (flags != 0 || sms_each == 0 || sms_each > all->sm.smCount) return CUDA_ERROR_INVALID_VALUE;
  const unsigned each = (sms_each + 7) / 8 * 8, possible = all->sm.smCount / each;
  if (groups == nullptr) {
    *count = possible;
    return CUDA_SUCCESS;
  }
  const bool fails =
      Call("cuDevSmResourceSplitByCount", std::to_string(*count) + " " + std::to_string(sms_each));
  *count = possible < *count ? possible : *count;
  for (unsigned i = 0; i < *count; ++i) {
    std::memset(static_cast<void*>(groups + i), 0, sizeof(*groups));
    groups[i].sm.smCount = each;
  }
  return DriverResult(fails);
}
CUresult Describe(CUdevResourceDesc* description, CUdevResource*, unsigned count) {
  *description = nullptr;
  return DriverResult(Call("cuDevResourceGenerateDesc", std::to_string(count)));
}
CUresult CreateContext(CUgreenCtx* context, CUdevResourceDesc, CUdevice, unsigned flags) {
  if (Call("cuGreenCtxCreate")) return CUDA_ERROR_UNKNOWN;
  if (flags != CU_GREEN_CTX_DEFAULT_STREAM) return CUDA_ERROR_INVALID_VALUE;
  Make("context", context);
  return CUDA_SUCCESS;
}
CUresult DestroyContext(CUgreenCtx context) {
  Destroy(context);
  return CUDA_SUCCESS;
}
CUresult CreateStream(CUstream* stream, CUgreenCtx context, unsigned flags, int priority) {
  if (flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  if (Call("cuGreenCtxStreamCreate", Name(context) + " " + std::to_string(priority))) {
    return CUDA_ERROR_UNKNOWN;
  }
  Make("stream", stream);
  return CUDA_SUCCESS;
}

const std::map<std::string, void*>& DriverFunctions() {
  static const std::map<std::string, void*> functions = {
      {"cuGetErrorString", reinterpret_cast<void*>(&ErrorString)},
      {"cuDeviceGet", reinterpret_cast<void*>(&DeviceGet)},
      {"cuDeviceGetDevResource", reinterpret_cast<void*>(&GetResource)},
      {"cuDevSmResourceSplitByCount", reinterpret_cast<void*>(&Split)},
      {"cuDevResourceGenerateDesc", reinterpret_cast<void*>(&Describe)},
      {"cuGreenCtxCreate", reinterpret_cast<void*>(&CreateContext)},
      {"cuGreenCtxDestroy", reinterpret_cast<void*>(&DestroyContext)},
      {"cuGreenCtxStreamCreate", reinterpret_cast<void*>(&CreateStream)}};
  return functions;
}

bool capturing = false;

}  // namespace

// The runtime's functions: C knows no namespaces, they are those that cuda_runtime_api.h declares.
extern "C" {

const char* cudaGetErrorString(cudaError_t) { return "the runtime's words"; }
const char* cudaGetErrorName(cudaError_t) { return "its name"; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) {
  *count = Fake().devices;
  return Fake().driver == 0 ? cudaErrorInsufficientDriver : cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = Fake().driver;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  Call("cudaSetDevice", std::to_string(device));
  return device < Fake().devices ? cudaSuccess : cudaErrorInvalidDevice;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  std::strcpy(properties->name, "Fake");
  properties->major = Fake().major;
  properties->multiProcessorCount = Fake().sms;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  const auto found = DriverFunctions().find(name);
  const bool has = found != DriverFunctions().end() && Fake().missing.count(name) == 0;
  *function = has ? found->second : nullptr;
  if (result != nullptr) {
    *result = has ? cudaDriverEntryPointSuccess : cudaDriverEntryPointVersionNotSufficent;
  }
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  if (flags != cudaStreamNonBlocking) return cudaErrorInvalidValue;
  if (Call("cudaStreamCreateWithPriority", std::to_string(priority))) return cudaErrorUnknown;
  Make("stream", stream);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Destroy(stream);
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** at, size_t bytes) {
  Call("cudaMalloc", std::to_string(bytes));
  if (bytes > Fake().memory) return cudaErrorMemoryAllocation;
  Make("memory", at, bytes, bytes < 8192 ? Fake().alignment : 4096);
  return cudaSuccess;
}
cudaError_t cudaFree(void* at) {
  Destroy(at);
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** at, size_t bytes) {
  Call("cudaMallocHost", std::to_string(bytes));
  if (Fake().fails == "cudaMallocHost") return cudaErrorMemoryAllocation;
  Make("host memory", at, bytes);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* at) {
  Destroy(at);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = Fake().memory;
  *total = 2 * Fake().memory;
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  if (flags != cudaEventDisableTiming) return cudaErrorInvalidValue;
  if (Fake().fails == "cudaEventCreateWithFlags") return cudaErrorUnknown;
  Make("event", event);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  Destroy(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return Result(Call("cudaEventRecord", Name(event) + " " + Name(stream)));
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  return Result(
      Call("cudaStreamWaitEvent",
           Name(stream) + " " + Name(event) + (flags == cudaEventWaitExternal ? " outside" : "")));
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  Name(event);
  return Fake().fails == "cudaEventQuery" ? cudaErrorUnknown
         : Fake().done                    ? cudaSuccess
                                          : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return Result(Call("cudaEventSynchronize", Name(event)));
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return Result(Call("cudaStreamSynchronize", Name(stream)));
}
cudaError_t cudaMemcpyAsync(void*, const void*, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  const std::string way = kind == cudaMemcpyHostToDevice   ? "to device"
                          : kind == cudaMemcpyDeviceToHost ? "to host"
                                                           : "somewhere";
  return Result(Call("cudaMemcpyAsync", std::to_string(bytes) + " " + way + " " + Name(stream)));
}
cudaError_t cudaMemsetAsync(void*, int value, size_t bytes, cudaStream_t stream) {
  return Result(Call("cudaMemsetAsync",
                     std::to_string(bytes) + " of " + std::to_string(value) + " " + Name(stream)));
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (mode != cudaStreamCaptureModeRelaxed) return cudaErrorInvalidValue;
  capturing = true;
  return Result(Call("cudaStreamBeginCapture", Name(stream)));
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  // Streams but the first are not reached.
  *status = capturing && Name(stream) == "stream 1" ? cudaStreamCaptureStatusActive
                                                    : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  capturing = false;
  if (Call("cudaStreamEndCapture", Name(stream))) return cudaErrorStreamCaptureUnjoined;
  Make("graph", graph);
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph,
                                 unsigned long long flags) {
  if (flags != cudaGraphInstantiateFlagUseNodePriority) return cudaErrorInvalidValue;
  if (Call("cudaGraphInstantiate", Name(graph))) return cudaErrorUnknown;
  Make("executable", exec);
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  Destroy(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  Destroy(exec);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  return Result(Call("cudaGraphLaunch", Name(exec) + " " + Name(stream)));
}

}  // extern "C"

}  // namespace contraflow
