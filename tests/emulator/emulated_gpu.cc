#include "tests/emulator/emulated_gpu.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <utility>

#include "compiler/plan/error.h"
#include "runtime/exec/gpu.h"
#include "tests/support/sanitized.h"

namespace contraflow {

struct GpuEvent {
  int number;
  std::shared_ptr<EventMark> mark;  // of the last time it was recorded
};
struct GpuGraph : Graph {};

namespace {

constexpr std::align_val_t kAlignment{4096};

/// Memory of one kind, of all emulated GPUs, which threads may share: first byte and size.
class Blocks {
 public:
  void Add(const std::byte* block, size_t bytes) {
    const std::lock_guard lock(mutex_);
    blocks_[block] = bytes;
  }
  /// Its size; 0 if it is none of them.
  size_t Remove(const std::byte* block) {
    const std::lock_guard lock(mutex_);
    const auto removed = blocks_.extract(block);
    return removed.empty() ? 0 : removed.mapped();
  }
  bool Hold(const void* at, size_t bytes) {
    const auto* const first = static_cast<const std::byte*>(at);
    const std::lock_guard lock(mutex_);
    auto block = blocks_.upper_bound(first);
    if (block == blocks_.begin()) return false;
    --block;
    return first + bytes <= block->first + block->second;
  }

 private:
  std::mutex mutex_;
  std::map<const std::byte*, size_t> blocks_;
};

struct Memory {
  Blocks device, host;
};
Memory& Known() {
  static Memory* const memory = new Memory;  // outlives threads that still free some
  return *memory;
}

void CheckDevice(const char* what, const void* at, size_t bytes) {
  if (Known().device.Hold(at, bytes)) return;
  throw gpu::GpuError(std::string(what) + ": not " + std::to_string(bytes) +
                      " bytes of one allocation of device memory");
}

// Every bit of new memory is set. Large blocks are the same bytes of one file again and again,
// copied where they are written to: most of what kernels may work in is never touched. A sanitizer
// has to know of each block.
constexpr size_t kFileBytes = size_t{1} << 20;
bool IsLarge(size_t bytes) { return !kSanitized && bytes >= kFileBytes; }

void* Map(void* at, size_t bytes, int flags, int file) {
  void* const mapped = ::mmap(at, bytes, PROT_READ | PROT_WRITE, flags | MAP_PRIVATE, file, 0);
  if (mapped == MAP_FAILED) throw gpu::GpuError("the emulator has no memory for a block");
  return mapped;
}

std::byte* NewLargeBlock(size_t bytes) {
  static const int file = [] {
    const int made = ::memfd_create("emulated memory", MFD_CLOEXEC);
    const std::vector<char> set(kFileBytes, '\xff');
    CF_ASSERT(::write(made, set.data(), kFileBytes) == static_cast<ssize_t>(kFileBytes));
    return made;
  }();
  auto* const block =
      static_cast<std::byte*>(Map(nullptr, bytes, MAP_ANONYMOUS | MAP_NORESERVE, -1));
  for (size_t at = 0; at < bytes; at += kFileBytes) {
    Map(block + at, std::min(kFileBytes, bytes - at), MAP_FIXED | MAP_NORESERVE, file);
  }
  return block;
}

std::byte* NewBlock(size_t bytes) {
  if (IsLarge(bytes)) return NewLargeBlock(bytes);
  // One byte at least, so that no two have the same address.
  auto* const block =
      static_cast<std::byte*>(::operator new(std::max<size_t>(bytes, 1), kAlignment));
  std::memset(block, 0xff, bytes);
  return block;
}

std::string Name(const GpuEvent* event) { return "event " + std::to_string(event->number); }

}  // namespace

void EmulatedGpu::Free::operator()(std::byte* bytes) const {
  const size_t size = std::max(Known().device.Remove(bytes), Known().host.Remove(bytes));
  if (IsLarge(size)) {
    ::munmap(bytes, size);
  } else {
    ::operator delete(bytes, kAlignment);
  }
}

EmulatedGpu::EmulatedGpu(const EmulatedGpuOptions& options)
    : options_(options), streams_(options.turn, options.seed) {
  Known();  // It must outlive what is freed by static destructors.
}
EmulatedGpu::~EmulatedGpu() = default;

void EmulatedGpu::Partition(int count, int sms_each) {
  if (partitions_ > 0 || !queues_.empty()) {
    throw gpu::GpuError("the GPU is divided once, before it has streams");
  }
  const bool whole = count == 1 && sms_each == 0;
  if (!whole && (count < 1 || sms_each < kPartitionSms || sms_each % kPartitionSms != 0 ||
                 count > options_.sms / sms_each)) {
    throw gpu::GpuError("a GPU of " + std::to_string(options_.sms) + " SMs has no " +
                        std::to_string(count) + " partitions of " + std::to_string(sms_each));
  }
  partitions_ = count;
  sms_each_ = whole ? options_.sms : sms_each;
}

gpu::Stream EmulatedGpu::NewStream(int partition, Priority, const std::string& name) {
  if (partitions_ == 0) throw gpu::GpuError("stream " + name + ": the GPU is not divided yet");
  if (partition < 0 || partition >= partitions_) {
    throw gpu::GpuError("stream " + name + ": there is no partition " + std::to_string(partition));
  }
  queues_.push_back(std::make_unique<Queue>(this, streams_.Make(), name));
  return {static_cast<emulator::Queue*>(queues_.back().get()), sms_each_};
}

GpuEvent* EmulatedGpu::NewEvent() {
  events_.push_back({static_cast<int>(events_.size()), nullptr});
  return &events_.back();
}

std::byte* EmulatedGpu::Allocate(size_t bytes) {
  if (bytes > options_.memory - allocated_) {
    throw gpu::GpuError("out of device memory: " + std::to_string(bytes) + " bytes asked for, " +
                        std::to_string(options_.memory - allocated_) + " free");
  }
  allocated_ += bytes;
  memory_.emplace_back(NewBlock(bytes));
  Known().device.Add(memory_.back().get(), bytes);
  return memory_.back().get();
}

std::shared_ptr<std::byte> EmulatedGpu::NewDeviceMemory(size_t bytes) {
  std::shared_ptr<std::byte> block(NewBlock(bytes), Free());
  Known().device.Add(block.get(), bytes);
  return block;
}

std::byte* EmulatedGpu::AllocateHost(size_t bytes) {
  host_memory_.emplace_back(NewBlock(bytes));
  Known().host.Add(host_memory_.back().get(), bytes);
  return host_memory_.back().get();
}

std::shared_ptr<std::byte> EmulatedGpu::NewHostMemory(size_t bytes) {
  std::shared_ptr<std::byte> block(NewBlock(bytes), Free());
  Known().host.Add(block.get(), bytes);
  return block;
}

EmulatedGpu::Queue* EmulatedGpu::QueueOf(gpu::Stream stream) {
  return static_cast<Queue*>(static_cast<emulator::Queue*>(stream.handle));
}

void EmulatedGpu::Log(GpuCall::Kind kind, gpu::Stream stream, const GpuEvent* event) {
  if (options_.log == nullptr) return;
  const Queue* const queue = QueueOf(stream);
  options_.log->push_back(
      {kind, queue == nullptr ? "" : queue->name, "", event == nullptr ? -1 : event->number});
}

void EmulatedGpu::Queue::Add(const char* kernel, std::function<void()> work) {
  if (gpu->options_.log != nullptr) {
    gpu->options_.log->push_back({GpuCall::Kind::kKernel, name, kernel, -1});
  }
  gpu->Give(this, kernel, std::move(work));
}

void EmulatedGpu::CheckCapture(const Queue& queue, const std::string& what) const {
  if (!capture_ || queue.capture == capture_->number) return;
  throw gpu::GpuError(what + ": stream " + queue.name +
                      " is not reached by the capture of stream " + capture_->first->name);
}

void EmulatedGpu::Give(Queue* queue, const std::string& what, std::function<void()> work) {
  if (queue == nullptr) return work();
  CheckCapture(*queue, what);
  if (capture_) {
    AddNode(queue, std::move(work));
  } else {
    streams_.Give(queue->number, {.work = std::move(work)});
  }
}

void EmulatedGpu::AddNode(Queue* queue, std::function<void()> work) {
  std::vector<Graph::Node>& nodes = capture_->graph->nodes;
  nodes.push_back({std::move(work), queue->number, std::move(queue->after)});
  queue->after = {nodes.size() - 1};
}

const std::shared_ptr<EventMark>& EmulatedGpu::MarkOf(const GpuEvent* event,
                                                      const std::string& who) const {
  if (event->mark == nullptr) {
    throw gpu::GpuError(who + ": " + Name(event) + " has never been recorded");
  }
  return event->mark;
}

void EmulatedGpu::Record(GpuEvent* event, gpu::Stream stream) {
  Log(GpuCall::Kind::kRecord, stream, event);
  Queue* const queue = QueueOf(stream);
  auto mark = std::make_shared<EventMark>();
  if (queue == nullptr) {
    mark->done = true;
  } else {
    CheckCapture(*queue, "record of " + Name(event));
    if (capture_) {
      mark->capture = capture_->number;
      mark->nodes = queue->after;
    } else {
      streams_.Give(queue->number, {.marks = mark});
    }
  }
  event->mark = std::move(mark);
}

void EmulatedGpu::Wait(gpu::Stream stream, GpuEvent* event) {
  Log(GpuCall::Kind::kWait, stream, event);
  Queue* const queue = QueueOf(stream);
  const std::string who = "wait of stream " + (queue == nullptr ? "" : queue->name);
  const std::shared_ptr<EventMark>& mark = MarkOf(event, who);
  if (capture_ && mark->capture == capture_->number && queue != nullptr) {
    if (queue->capture != capture_->number) queue->after.clear();
    queue->capture = capture_->number;
    queue->after.insert(queue->after.end(), mark->nodes.begin(), mark->nodes.end());
    // A node that does nothing, which must be joined like any other.
    return AddNode(queue, nullptr);
  }
  if (mark->capture != 0) {
    throw gpu::GpuError(who + ": " + Name(event) + " was recorded in a capture");
  }
  if (queue == nullptr) return streams_.RunUntil(*mark);
  CheckCapture(*queue, "wait for " + Name(event));
  if (capture_) throw gpu::GpuError(who + ": " + Name(event) + " was recorded before the capture");
  streams_.Give(queue->number, {.waits_for = mark});
}

void EmulatedGpu::WaitOutside(gpu::Stream stream, GpuEvent* event) {
  Log(GpuCall::Kind::kWait, stream, event);
  Queue* const queue = QueueOf(stream);
  if (!capture_ || queue == nullptr) throw gpu::GpuError("WaitOutside: there is no capture");
  CheckCapture(*queue, "wait for " + Name(event));
  if (MarkOf(event, "wait of stream " + queue->name)->capture != 0) {
    throw gpu::GpuError("wait of stream " + queue->name + ": " + Name(event) +
                        " was recorded in a capture");
  }
  AddNode(queue, nullptr);
  capture_->graph->nodes.back().outside = [event] { return event->mark; };
}

void EmulatedGpu::CopyToDevice(gpu::Stream stream, void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  Log(GpuCall::Kind::kCopyToDevice, stream);
  CheckDevice("CopyToDevice", to, bytes);
  if (Known().host.Hold(from, bytes)) {
    return Give(QueueOf(stream), "CopyToDevice", [=] { std::memcpy(to, from, bytes); });
  }
  if (capture_) throw gpu::GpuError("CopyToDevice: pageable memory in a capture");
  // Pageable memory has been read when the call returns.
  const auto* const first = static_cast<const std::byte*>(from);
  Give(QueueOf(stream), "CopyToDevice", [to, copy = std::vector<std::byte>(first, first + bytes)] {
    std::memcpy(to, copy.data(), copy.size());
  });
}

void EmulatedGpu::CopyToHost(gpu::Stream stream, void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  Log(GpuCall::Kind::kCopyToHost, stream);
  CheckDevice("CopyToHost", from, bytes);
  const bool pinned = Known().host.Hold(to, bytes);
  if (!pinned && capture_) throw gpu::GpuError("CopyToHost: pageable memory in a capture");
  Queue* const queue = QueueOf(stream);
  Give(queue, "CopyToHost", [=] { std::memcpy(to, from, bytes); });
  if (pinned || queue == nullptr) return;
  // Pageable memory has been written when the call returns.
  const auto mark = std::make_shared<EventMark>();
  streams_.Give(queue->number, {.marks = mark});
  streams_.RunUntil(*mark);
}

void EmulatedGpu::Zero(gpu::Stream stream, void* at, size_t bytes) {
  if (bytes == 0) return;
  Log(GpuCall::Kind::kZero, stream);
  CheckDevice("Zero", at, bytes);
  Give(QueueOf(stream), "Zero", [=] { std::memset(at, 0, bytes); });
}

void EmulatedGpu::BeginCapture(gpu::Stream stream) {
  Log(GpuCall::Kind::kBeginCapture, stream);
  Queue* const queue = QueueOf(stream);
  if (queue == nullptr) throw gpu::GpuError("BeginCapture: the stream cannot be captured");
  if (capture_) {
    throw gpu::GpuError("BeginCapture: stream " + queue->name + ": the capture of stream " +
                        capture_->first->name + " has not ended");
  }
  capture_.emplace(Capture{++captures_, queue, std::make_unique<GpuGraph>()});
  queue->capture = capture_->number;
  queue->after.clear();
}

/// Throws if there is work after which the first stream is not.
void EmulatedGpu::CheckJoined() const {
  const std::vector<Graph::Node>& nodes = capture_->graph->nodes;
  std::vector<bool> joined(nodes.size());
  for (const size_t node : capture_->first->after) joined[node] = true;
  for (size_t node = nodes.size(); node-- > 0;) {  // earlier work has a lower number
    if (!joined[node]) {
      throw gpu::GpuError("EndCapture: stream " + queues_[nodes[node].stream]->name +
                          " has not been joined to stream " + capture_->first->name);
    }
    for (const size_t before : nodes[node].after) joined[before] = true;
  }
}

GpuGraph* EmulatedGpu::EndCapture(gpu::Stream stream) {
  Log(GpuCall::Kind::kEndCapture, stream);
  if (!capture_ || capture_->first != QueueOf(stream)) {
    throw gpu::GpuError("EndCapture: the stream began no capture");
  }
  try {
    CheckJoined();
  } catch (...) {
    capture_.reset();
    throw;
  }
  graphs_.push_back(std::move(capture_->graph));
  capture_.reset();
  return graphs_.back().get();
}

void EmulatedGpu::Launch(GpuGraph* graph, gpu::Stream stream) {
  Log(GpuCall::Kind::kGraph, stream);
  if (capture_) throw gpu::GpuError("Launch: a graph in a capture");
  if (std::ranges::none_of(graphs_, [&](const auto& one) { return one.get() == graph; })) {
    throw gpu::GpuError("Launch: there is no such graph");
  }
  Queue* const queue = QueueOf(stream);
  if (queue == nullptr) throw gpu::GpuError("Launch: the stream runs no graphs");
  const auto mark = std::make_shared<EventMark>();
  // A graph is not run twice at a time.
  streams_.Give(
      queue->number,
      {.waits_for = std::exchange(graph->last_launch, mark), .marks = mark, .graph = graph});
}

void EmulatedGpu::Drop(GpuGraph* graph) noexcept {
  const auto at =
      std::ranges::find_if(graphs_, [&](const auto& one) { return one.get() == graph; });
  if (at == graphs_.end()) return;
  if (graph->last_launch != nullptr && !graph->last_launch->done)
    dropped_.push_back(std::move(*at));
  graphs_.erase(at);
}

bool EmulatedGpu::Done(GpuEvent* event) {
  const std::shared_ptr<EventMark>& mark = MarkOf(event, "Done");
  if (mark->capture != 0)
    throw gpu::GpuError("Done: " + Name(event) + " was recorded in a capture");
  // A caller who asks again and again gets on, more and more: between two questions it may well
  // rest.
  for (int things = 1 + mark->asked++ / 8; things > 0 && !mark->done; --things) streams_.RunOne();
  return mark->done;
}

void EmulatedGpu::Synchronize(GpuEvent* event) {
  const std::shared_ptr<EventMark>& mark = MarkOf(event, "Synchronize");
  if (capture_ || mark->capture != 0) {
    throw gpu::GpuError("Synchronize: " + Name(event) + ": not in a capture");
  }
  streams_.RunUntil(*mark);
}

void EmulatedGpu::Synchronize() {
  if (capture_) throw gpu::GpuError("Synchronize: not in a capture");
  streams_.RunAll();
}

}  // namespace contraflow
