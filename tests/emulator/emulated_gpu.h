#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/exec/gpu.h"
#include "tests/emulator/emulated_streams.h"
#include "tests/emulator/emulator.h"

namespace contraflow {

/// A call that an EmulatedGpu has been given.
struct GpuCall {
  enum class Kind : uint8_t {
    kKernel,
    kRecord,
    kWait,
    kCopyToDevice,
    kCopyToHost,
    kZero,
    kBeginCapture,
    kEndCapture,
    kGraph,
  };
  Kind kind;
  std::string stream;  ///< its name
  std::string kernel;  ///< kKernel: the name of the launch
  int event = -1;      ///< kRecord, kWait: counted from 0 as they were made
};

struct EmulatedGpuOptions {
  int sms = 132;
  /// Bytes of device memory.
  size_t memory = std::numeric_limits<size_t>::max();
  Turn turn = Turn::kDrawn;
  uint64_t seed = 1;
  /// Gets all calls, if there is one.
  std::vector<GpuCall>* log = nullptr;
};

/// A GPU in host memory, whose kernels the emulator runs. Work given to its streams runs when
/// somebody waits for it, in an order that is as unfortunate as streams and events allow: a wait
/// that is missing gives a wrong result with some seed. A stream whose handle is null is not one of
/// them: what it is given is done at once.
///
/// Stricter than CUDA: this GPU is not lenient. A capture is an error in which a stream takes part
/// that was not reached by events of it, waits for events of outside, copies to or from pageable
/// memory, or is given anything after what the first stream has waited for. While it lasts, no
/// other stream is given anything. Copies are between the host and memory of Allocate.
class EmulatedGpu : public Gpu {
 public:
  explicit EmulatedGpu(int sms = 132) : EmulatedGpu(EmulatedGpuOptions{.sms = sms}) {}
  explicit EmulatedGpu(const EmulatedGpuOptions& options);
  ~EmulatedGpu() override;

  std::string name() const override { return "emulator"; }
  int sms() const override { return options_.sms; }
  void Partition(int count, int sms_each) override;
  gpu::Stream NewStream(int partition, Priority priority, const std::string& name) override;
  GpuEvent* NewEvent() override;
  /// Its bytes are 0xff.
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

  /// The most that has ever waited in one stream.
  size_t most_waiting() const { return streams_.most_waiting(); }

 private:
  /// Target of a gpu::Stream's handle.
  struct Queue : emulator::Queue {
    Queue(EmulatedGpu* its_gpu, size_t its_number, std::string its_name)
        : gpu(its_gpu), number(its_number), name(std::move(its_name)) {}
    void Add(const char* kernel, std::function<void()> work) override;

    EmulatedGpu* const gpu;
    const size_t number;
    const std::string name;
    uint64_t capture = 0;       // of which it is part
    std::vector<size_t> after;  // there: what comes next is after these nodes
  };
  struct Capture {
    uint64_t number;
    Queue* first;
    std::unique_ptr<GpuGraph> graph;
  };
  struct Free {
    void operator()(std::byte* bytes) const;
  };
  using Memory = std::vector<std::unique_ptr<std::byte, Free>>;

  static Queue* QueueOf(gpu::Stream stream);
  void Log(GpuCall::Kind kind, gpu::Stream stream, const GpuEvent* event = nullptr);
  /// Throws if the stream may not be given this now.
  void CheckCapture(const Queue& queue, const std::string& what) const;
  void Give(Queue* queue, const std::string& what, std::function<void()> work);
  void AddNode(Queue* queue, std::function<void()> work);
  void CheckJoined() const;
  const std::shared_ptr<EventMark>& MarkOf(const GpuEvent* event, const std::string& who) const;

  const EmulatedGpuOptions options_;
  int partitions_ = 0, sms_each_ = 0;
  EmulatedStreams streams_;
  std::vector<std::unique_ptr<Queue>> queues_;
  std::deque<GpuEvent> events_;
  std::vector<std::unique_ptr<GpuGraph>> graphs_, dropped_;  // there: while they were under way
  std::optional<Capture> capture_;
  uint64_t captures_ = 0;
  Memory memory_, host_memory_;
  size_t allocated_ = 0;
};

}  // namespace contraflow
