#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "compiler/plan/plan.h"
#include "kernels/gpu/stream.h"

namespace contraflow {

/// Point that can be recorded in one stream and waited for in another. Owned by the Gpu that made
/// it.
struct GpuEvent;
/// The work of many streams, captured once and replayed as a whole. Owned by the Gpu.
struct GpuGraph;

/// How streams stand to each other where SMs are free for both.
enum class Priority : uint8_t { kNormal, kHigh };

/// One GPU, or what stands for one. Calls are made by one thread, the issuing thread of the
/// process; all but Synchronize, Done and the copies to and from pageable memory return before the
/// work is done. Whatever fails is a gpu::GpuError that says what. Everything it made is given back
/// with it.
class Gpu {
 public:
  virtual ~Gpu() = default;

  virtual std::string name() const = 0;
  /// Streaming multiprocessors of the whole GPU.
  virtual int sms() const = 0;

  /// Divides the GPU into `count` disjoint partitions of `sms_each` SMs (a green context each); 0
  /// SMs: one partition, the whole GPU. Called once, before any stream is made. Throws with what
  /// is possible if the GPU cannot be divided so.
  virtual void Partition(int count, int sms_each) = 0;
  /// A stream of a partition, counted from 0; `name` is for reports and profiles.
  virtual gpu::Stream NewStream(int partition, Priority priority, const std::string& name) = 0;
  virtual GpuEvent* NewEvent() = 0;

  /// 4096-aligned device memory that lives as long as the Gpu; its bytes are undefined. Throws
  /// with how much was asked for and how much is free.
  virtual std::byte* Allocate(size_t bytes) = 0;
  /// Like Allocate, with shared ownership within the life of the Gpu.
  virtual std::shared_ptr<std::byte> NewDeviceMemory(size_t bytes) = 0;
  /// Like Allocate, in pinned memory of the host.
  virtual std::byte* AllocateHost(size_t bytes) = 0;
  /// Like AllocateHost, with shared ownership that may outlive the Gpu.
  virtual std::shared_ptr<std::byte> NewHostMemory(size_t bytes) = 0;

  /// The event now stands for all that was given to the stream so far. Waiting for an event that
  /// has not been recorded since the program began, or since the capture began, is an error.
  virtual void Record(GpuEvent* event, gpu::Stream stream) = 0;
  /// Work given to the stream from now on begins once the event's work is done.
  virtual void Wait(gpu::Stream stream, GpuEvent* event) = 0;
  /// In a capture: each time it is replayed, the stream waits for the event as it was recorded last
  /// before, outside of the capture.
  virtual void WaitOutside(gpu::Stream stream, GpuEvent* event) = 0;

  /// Copies in stream order.
  virtual void CopyToDevice(gpu::Stream stream, void* to, const void* from, size_t bytes) = 0;
  virtual void CopyToHost(gpu::Stream stream, void* to, const void* from, size_t bytes) = 0;
  virtual void Zero(gpu::Stream stream, void* at, size_t bytes) = 0;

  /// From now on what is given to this stream, and to those that wait for its events, is captured
  /// instead of run.
  virtual void BeginCapture(gpu::Stream stream) = 0;
  /// Every stream of the capture must have been joined to this one by events.
  virtual GpuGraph* EndCapture(gpu::Stream stream) = 0;
  virtual void Launch(GpuGraph* graph, gpu::Stream stream) = 0;
  /// Gives a graph back, and with it what holds on to libraries whose work it captured. Never
  /// waits: one that is under way is given back when it is done.
  virtual void Drop(GpuGraph* graph) noexcept = 0;

  /// Whether the event's work is done; never waits.
  virtual bool Done(GpuEvent* event) = 0;
  virtual void Synchronize(GpuEvent* event) = 0;
  /// Waits for everything.
  virtual void Synchronize() = 0;
};

/// Gives device memory as Gpu::Allocate does, or more of it.
using AllocateMemory = std::function<std::span<std::byte>(size_t bytes)>;

/// Other work of a device while it computes.
struct SmUse {
  int links = 0;         ///< to and from other ranks that can be in flight at once
  bool experts = false;  ///< exchanges in an expert group
  bool sums = false;     ///< REDUCE of one stage while another computes
};
/// Use of the busiest rank, with a link for each of its directed edges. Copies between virtual
/// ranks end soon, and NCCL's kernels hold their CTAs while they wait, but both leave the same SMs
/// to compute, as the bits of matrix products depend on their number.
SmUse UseOf(const Plan& plan);

/// How the SMs of a GPU are shared: between the devices of a plan that it stands for (a green
/// context each), and in each of them between compute and communication. Every CTA of a link, an
/// exchange, a sum and a static grid of a compute kernel has an SM: compute + links * link_ctas +
/// expert_ctas, and sum_ctas where SmUse says so, are the SMs of a partition.
struct SmBudget {
  int partitions = 1;
  int sms = 0;          ///< of a partition; 0: the whole GPU, which is not partitioned
  int compute = 0;      ///< SMs that compute kernels count on
  int link_ctas = 0;    ///< of a pipeline link
  int expert_ctas = 0;  ///< of an exchange among experts; 0 where there is none
  int sum_ctas = 1;     ///< of a REDUCE
};

/// Smallest partition and its granularity on compute capability 9.0.
inline constexpr int kPartitionSms = 8;

/// For `devices` devices on a GPU of `sms` SMs that do so much at once, in partitions of `wanted`
/// SMs each or, where that is 0, as large as possible. Throws Error, with how many devices or SMs
/// are possible, if they do not fit.
SmBudget BudgetOf(int sms, int devices, SmUse use, int wanted = 0);

}  // namespace contraflow
