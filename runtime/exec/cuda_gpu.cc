#include "runtime/exec/cuda_gpu.h"

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>
#include <nvtx3/nvToolsExtCudaRt.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "compiler/plan/error.h"
#include "kernels/gpu/stream.h"
#include "runtime/exec/gpu.h"

#define CF_CUDA(call) ::contraflow::CheckCuda(call, #call, __FILE__, __LINE__)

namespace contraflow {
namespace {

/// Throws GpuError with the call, what CUDA says of it, and where it is in the source.
inline void CheckCuda(cudaError_t code, const char* call, const char* file, int line) {
  if (code == cudaSuccess) return;
  throw gpu::GpuError(std::string(call) + ": " + cudaGetErrorString(code) + " (" +
                      cudaGetErrorName(code) + "), at " + file + ":" + std::to_string(line));
}

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

  /// How many partitions of this many SMs there can be.
  unsigned Possible(const CUdevResource& all, unsigned sms_each) const {
    unsigned groups = 0;
    // A device that cannot be split so at all is an error of the call.
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

}  // namespace

/// Recorded in a capture of this number, 0: outside of captures.
struct GpuEvent {
  GpuEvent() { CF_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming)); }
  GpuEvent(const GpuEvent&) = delete;
  ~GpuEvent() { cudaEventDestroy(event); }

  cudaEvent_t event = nullptr;
  std::optional<uint64_t> recorded_in;
};

struct GpuGraph {
  explicit GpuGraph(cudaGraphExec_t its_graph) : graph(its_graph) {}
  GpuGraph(const GpuGraph&) = delete;
  ~GpuGraph() { cudaGraphExecDestroy(graph); }

  const cudaGraphExec_t graph;
};

namespace {

constexpr size_t kAlignment = 4096;

cudaStream_t Cuda(gpu::Stream stream) { return static_cast<cudaStream_t>(stream.handle); }

/// Streams share hardware queues, 8 by default. Work in a queue waits for all work before it, even
/// without an event.
void AskForQueues() { setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0); }

struct DestroyStream {
  void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
};
struct FreeDevice {
  void operator()(void* bytes) const { cudaFree(bytes); }
};
struct FreeHost {
  void operator()(void* bytes) const { cudaFreeHost(bytes); }
};
template <typename T, typename Deleter>
using Owned = std::vector<std::unique_ptr<T, Deleter>>;

class CudaGpu : public Gpu {
 public:
  explicit CudaGpu(int device);
  ~CudaGpu() override {
    for (const auto& stream : streams_) cudaStreamSynchronize(stream.get());
  }

  std::string name() const override { return properties_.name; }
  int sms() const override { return properties_.multiProcessorCount; }
  void Partition(int count, int sms_each) override;
  gpu::Stream NewStream(int partition, Priority priority, const std::string& name) override;
  GpuEvent* NewEvent() override;
  std::byte* Allocate(size_t bytes) override;
  std::shared_ptr<std::byte> NewDeviceMemory(size_t bytes) override;
  std::byte* AllocateHost(size_t bytes) override;
  std::shared_ptr<std::byte> NewHostMemory(size_t bytes) override;
  void Record(GpuEvent* event, gpu::Stream stream) override;
  void Wait(gpu::Stream stream, GpuEvent* event) override;
  void WaitOutside(gpu::Stream stream, GpuEvent* event) override;
  void CopyToDevice(gpu::Stream stream, void* to, const void* from, size_t bytes) override;
  void CopyToHost(gpu::Stream stream, void* to, const void* from, size_t bytes) override;
  void Zero(gpu::Stream stream, void* at, size_t bytes) override;
  void BeginCapture(gpu::Stream stream) override;
  GpuGraph* EndCapture(gpu::Stream stream) override;
  void Launch(GpuGraph* graph, gpu::Stream stream) override;
  void Drop(GpuGraph* graph) noexcept override;
  bool Done(GpuEvent* event) override;
  void Synchronize(GpuEvent* event) override;
  void Synchronize() override;

 private:
  void* NewMemory(size_t bytes);
  std::byte* NewPinned(size_t bytes) const;
  void CheckRecorded(const GpuEvent* event, uint64_t capture) const;

  const int device_;
  cudaDeviceProp properties_ = {};
  int normal_priority_ = 0, high_priority_ = 0;
  int partition_count_ = 0, sms_each_ = 0;
  uint64_t captures_ = 0, capture_ = 0;  // how many there were; the one under way, or 0
  // Destroyed from the last to the first.
  std::unique_ptr<CudaPartitions> partitions_;  // none: the whole GPU
  Owned<std::byte, FreeDevice> memory_;
  Owned<std::byte, FreeHost> host_memory_;
  Owned<CUstream_st, DestroyStream> streams_;
  std::deque<GpuEvent> events_;
  std::vector<std::unique_ptr<GpuGraph>> graphs_;
};

CudaGpu::CudaGpu(int device) : device_(device) {
  CF_CUDA(cudaSetDevice(device));
  CF_CUDA(cudaGetDeviceProperties(&properties_, device));
  constexpr int kMajor = 9, kMinor = 0;
  if (properties_.major != kMajor || properties_.minor != kMinor) {
    throw gpu::GpuError("GPU " + std::to_string(device) + " (" + properties_.name +
                        ") has compute capability " + std::to_string(properties_.major) + "." +
                        std::to_string(properties_.minor) +
                        "; the kernels are built for 9.0 (H100, H200)");
  }
  CF_CUDA(cudaDeviceGetStreamPriorityRange(&normal_priority_, &high_priority_));
}

void CudaGpu::Partition(int count, int sms_each) {
  if (partition_count_ > 0) throw gpu::GpuError("a GPU is divided once");
  const bool whole = count == 1 && sms_each == 0;
  if (!whole) {
    if (count < 1 || sms_each < 1) {
      throw gpu::GpuError("a GPU cannot be divided into " + std::to_string(count) +
                          " partitions of " + std::to_string(sms_each) + " SMs");
    }
    partitions_ = std::make_unique<CudaPartitions>(device_, count, sms_each);
  }
  partition_count_ = count;
  sms_each_ = whole ? sms() : sms_each;
}

gpu::Stream CudaGpu::NewStream(int partition, Priority priority, const std::string& name) {
  if (partition_count_ == 0) throw gpu::GpuError("stream " + name + ": the GPU is not divided yet");
  if (partition < 0 || partition >= partition_count_) {
    throw gpu::GpuError("stream " + name + ": there is no partition " + std::to_string(partition));
  }
  const int level = priority == Priority::kHigh ? high_priority_ : normal_priority_;
  cudaStream_t stream = nullptr;
  if (partitions_ != nullptr) {
    stream = partitions_->NewStream(partition, level);
  } else {
    CF_CUDA(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, level));
  }
  streams_.emplace_back(stream);
  nvtxNameCudaStreamA(stream, name.c_str());
  return {stream, sms_each_};
}

GpuEvent* CudaGpu::NewEvent() { return &events_.emplace_back(); }

void* CudaGpu::NewMemory(size_t bytes) {
  void* memory = nullptr;
  const cudaError_t code = cudaMalloc(&memory, bytes);
  if (code != cudaErrorMemoryAllocation) {
    CheckCuda(code, "cudaMalloc", __FILE__, __LINE__);
    return memory;
  }
  cudaGetLastError();  // This one is dealt with here.
  size_t free = 0, total = 0;
  CF_CUDA(cudaMemGetInfo(&free, &total));
  throw gpu::GpuError("GPU " + std::to_string(device_) +
                      " is out of memory: " + std::to_string(bytes) + " bytes asked for, " +
                      std::to_string(free) + " free of " + std::to_string(total));
}

std::byte* CudaGpu::Allocate(size_t bytes) {
  const size_t wanted = std::max<size_t>(bytes, 1);
  memory_.emplace_back(static_cast<std::byte*>(NewMemory(wanted)));
  void* at = memory_.back().get();
  if (reinterpret_cast<uintptr_t>(at) % kAlignment == 0) return memory_.back().get();
  // CUDA aligns small ones less. Only those get more than was asked for, so that a tool that
  // watches accesses sees the end of all others.
  memory_.pop_back();
  size_t room = wanted + kAlignment;
  memory_.emplace_back(static_cast<std::byte*>(NewMemory(room)));
  at = memory_.back().get();
  return static_cast<std::byte*>(std::align(kAlignment, wanted, at, room));
}

std::shared_ptr<std::byte> CudaGpu::NewDeviceMemory(size_t bytes) {
  // Room to align it, as small ones are aligned less.
  size_t room = std::max<size_t>(bytes, 1) + kAlignment;
  const std::shared_ptr<std::byte> memory(static_cast<std::byte*>(NewMemory(room)), FreeDevice());
  void* at = memory.get();
  return {memory, static_cast<std::byte*>(std::align(kAlignment, bytes, at, room))};
}

std::byte* CudaGpu::AllocateHost(size_t bytes) {
  host_memory_.emplace_back(NewPinned(bytes));
  return host_memory_.back().get();
}

std::shared_ptr<std::byte> CudaGpu::NewHostMemory(size_t bytes) {
  return {NewPinned(bytes), FreeHost()};
}

std::byte* CudaGpu::NewPinned(size_t bytes) const {
  void* memory = nullptr;
  const cudaError_t code = cudaMallocHost(&memory, std::max<size_t>(bytes, 1));
  if (code == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw gpu::GpuError("the host has no " + std::to_string(bytes) + " bytes of memory that GPU " +
                        std::to_string(device_) + " can read");
  }
  CheckCuda(code, "cudaMallocHost", __FILE__, __LINE__);
  return static_cast<std::byte*>(memory);
}

/// CUDA takes an event that was never recorded for one that is done.
void CudaGpu::CheckRecorded(const GpuEvent* event, uint64_t capture) const {
  if (event->recorded_in == capture) return;
  throw gpu::GpuError(!event->recorded_in        ? "an event has never been recorded"
                      : *event->recorded_in == 0 ? "an event was recorded before the capture"
                                                 : "an event was recorded in a capture");
}

void CudaGpu::Record(GpuEvent* event, gpu::Stream stream) {
  if (capture_ != 0) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    CF_CUDA(cudaStreamIsCapturing(Cuda(stream), &status));
    if (status != cudaStreamCaptureStatusActive) {
      throw gpu::GpuError("a stream is recorded that the capture has not reached");
    }
  }
  CF_CUDA(cudaEventRecord(event->event, Cuda(stream)));
  event->recorded_in = capture_;
}

void CudaGpu::Wait(gpu::Stream stream, GpuEvent* event) {
  CheckRecorded(event, capture_);
  CF_CUDA(cudaStreamWaitEvent(Cuda(stream), event->event, 0));
}

void CudaGpu::WaitOutside(gpu::Stream stream, GpuEvent* event) {
  if (capture_ == 0) throw gpu::GpuError("WaitOutside: there is no capture");
  CheckRecorded(event, 0);
  CF_CUDA(cudaStreamWaitEvent(Cuda(stream), event->event, cudaEventWaitExternal));
}

void CudaGpu::CopyToDevice(gpu::Stream stream, void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  CF_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, Cuda(stream)));
}

void CudaGpu::CopyToHost(gpu::Stream stream, void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  CF_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, Cuda(stream)));
}

void CudaGpu::Zero(gpu::Stream stream, void* at, size_t bytes) {
  if (bytes == 0) return;
  CF_CUDA(cudaMemsetAsync(at, 0, bytes, Cuda(stream)));
}

void CudaGpu::BeginCapture(gpu::Stream stream) {
  if (capture_ != 0) throw gpu::GpuError("BeginCapture: another capture has not ended");
  // Relaxed: libraries may load kernels and take memory meanwhile, which is no part of the graph.
  CF_CUDA(cudaStreamBeginCapture(Cuda(stream), cudaStreamCaptureModeRelaxed));
  capture_ = ++captures_;
}

GpuGraph* CudaGpu::EndCapture(gpu::Stream stream) {
  if (capture_ == 0) throw gpu::GpuError("EndCapture: there is no capture");
  capture_ = 0;  // an error ends it as well
  cudaGraph_t captured = nullptr;
  CF_CUDA(cudaStreamEndCapture(Cuda(stream), &captured));
  cudaGraphExec_t graph = nullptr;
  // Else all nodes get the priority of the stream that the graph is launched in.
  const cudaError_t code =
      cudaGraphInstantiate(&graph, captured, cudaGraphInstantiateFlagUseNodePriority);
  cudaGraphDestroy(captured);
  CheckCuda(code, "cudaGraphInstantiate", __FILE__, __LINE__);
  graphs_.push_back(std::make_unique<GpuGraph>(graph));
  // Not uploaded before its first launch: driver 580.159.04 crashes in cuGraphUpload on the edges
  // by which NCCL keeps the order of its kernels (launch-completion events).
  return graphs_.back().get();
}

void CudaGpu::Launch(GpuGraph* graph, gpu::Stream stream) {
  CF_CUDA(cudaGraphLaunch(graph->graph, Cuda(stream)));
}

void CudaGpu::Drop(GpuGraph* graph) noexcept {
  std::erase_if(graphs_, [&](const auto& one) { return one.get() == graph; });
}

bool CudaGpu::Done(GpuEvent* event) {
  CheckRecorded(event, 0);
  const cudaError_t code = cudaEventQuery(event->event);
  if (code == cudaErrorNotReady) return false;
  CheckCuda(code, "cudaEventQuery", __FILE__, __LINE__);
  return true;
}

// The device's primary context knows nothing of what runs in partitions.
void CudaGpu::Synchronize() {
  for (const auto& stream : streams_) CF_CUDA(cudaStreamSynchronize(stream.get()));
}

void CudaGpu::Synchronize(GpuEvent* event) {
  CheckRecorded(event, 0);
  CF_CUDA(cudaEventSynchronize(event->event));
}

}  // namespace

int CudaDeviceCount(std::string* why_none) {
  AskForQueues();
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaSuccess && count > 0) return count;
  cudaGetLastError();
  int driver = 0;
  if (why_none != nullptr) {
    *why_none = cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0
                    ? "no CUDA driver is installed"
                    : cudaGetErrorString(code == cudaSuccess ? cudaErrorNoDevice : code);
  }
  return 0;
}

std::unique_ptr<Gpu> NewCudaGpu(int device) {
  AskForQueues();
  return std::make_unique<CudaGpu>(device);
}

}  // namespace contraflow
