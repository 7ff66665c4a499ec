#include "runtime/exec/step_watch.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>

#include "kernels/gpu/stream.h"
#include "runtime/core/seconds.h"

namespace contraflow {

StepStamps::StepStamps(size_t instructions, Gpu& gpu)
    : size_(instructions),
      gpu_(&gpu),
      device_(reinterpret_cast<uint64_t*>(gpu.Allocate(2 * instructions * sizeof(uint64_t)))),
      host_(reinterpret_cast<uint64_t*>(gpu.AllocateHost(2 * instructions * sizeof(uint64_t)))) {}

void StepStamps::Begin(size_t index, gpu::Stream stream) const {
  gpu::Stamp(stream, device_ + 2 * index);
}

void StepStamps::End(size_t index, gpu::Stream stream) const {
  gpu::Stamp(stream, device_ + 2 * index + 1);
}

void StepStamps::Download(gpu::Stream stream) const { Peek(stream, host_); }

void StepStamps::Clear(gpu::Stream stream) const { gpu_->Zero(stream, device_, bytes()); }

void StepStamps::Peek(gpu::Stream side, uint64_t* host) const {
  gpu_->CopyToHost(side, host, device_, bytes());
}

using std::chrono::milliseconds;

GpuWatch::GpuWatch(std::vector<Watched> watched, Gpu& gpu, milliseconds interval,
                   const std::string& name)
    : watched_(std::move(watched)), interval_(interval), gpu_(gpu) {
  if (watched_.empty() || watched_[0].stamps == nullptr) return;
  side_ = gpu.NewStream(0, Priority::kHigh, name);
  copied_ = gpu.NewEvent();
  size_t bytes = 0;
  for (const Watched& one : watched_) bytes += one.stamps->bytes();
  now_ = reinterpret_cast<uint64_t*>(gpu.AllocateHost(bytes));
  last_.resize(bytes / sizeof(uint64_t));
  // The last download holds the stamps as they were before the step, from the first one on.
  for (const Watched& one : watched_) {
    one.stamps->Clear(side_);
    one.stamps->Download(side_);
  }
  gpu.Record(copied_, side_);
  gpu.Synchronize(copied_);
}

void GpuWatch::Begin(int step, bool stamped) {
  step_ = step;
  stamped_ = stamped && now_ != nullptr;
  next_ = Clock::now() + interval_;
  if (copying_) gpu_.Synchronize(copied_);
  copying_ = false;
}

void GpuWatch::Peek() {
  uint64_t* at = now_;
  for (const Watched& one : watched_) {
    one.stamps->Peek(side_, at);
    at += 2 * one.stamps->size();
  }
  gpu_.Record(copied_, side_);
  copying_ = true;
}

bool GpuWatch::Changed(Clock::time_point now) {
  if (copying_ && gpu_.Done(copied_)) {
    copying_ = false;
    if (std::equal(last_.begin(), last_.end(), now_)) return false;
    std::copy_n(now_, last_.size(), last_.begin());
    return true;
  }
  if (stamped_ && !copying_ && now >= next_) {
    Peek();
    next_ = now + interval_;
  }
  return false;
}

std::vector<IssuePlace> GpuWatch::Running() const {
  std::vector<IssuePlace> running;
  const uint64_t* at = last_.data();
  for (uint32_t device = 0; device < watched_.size(); ++device) {
    const StepStamps& stamps = *watched_[device].stamps;
    for (uint32_t i = 0; i < stamps.size(); ++i, at += 2) {
      const bool begun = at[0] != stamps.begin(i), ended = at[1] != stamps.end(i);
      if (begun && !ended) running.push_back({device, i});
    }
  }
  return running;
}

HangWatch::HangWatch(const Plan& plan, std::vector<Watched> watched, Gpu& gpu, milliseconds timeout)
    : GpuWatch(std::move(watched), gpu, std::clamp(timeout / 8, milliseconds(1), milliseconds(500)),
               "hang watch"),
      plan_(plan),
      timeout_(timeout) {}

void HangWatch::Begin(int step, bool stamped) {
  GpuWatch::Begin(step, stamped);
  still_ = {};
  looked_ = Clock::now();
}

void HangWatch::Look() {
  const Clock::time_point now = Clock::now();
  // A process that was stopped for a while has not waited meanwhile.
  still_ += std::min<Clock::duration>(now - looked_, interval_);
  looked_ = now;
  if (Changed(now)) still_ = {};
  if (still_ < timeout_) return;
  throw GpuHang("the GPU has made no progress for " + SecondsText(timeout_) + " in step " +
                std::to_string(step_) + "; " + Names());
}

std::string HangWatch::Names() const {
  constexpr size_t kMost = 8;  // instructions that are named
  if (!stamped_) return "what it is at is not known without stamps";
  const std::vector<IssuePlace> running = Running();
  if (running.empty()) return "no instruction has begun that has not ended";
  std::string text;
  for (const IssuePlace& place : std::span(running).first(std::min(kMost, running.size()))) {
    const Device device = watched_[place.device].device;
    text += text.empty() ? "begun and not ended: " : ", ";
    if (plan_.data_parallel > 1) text += "replica " + std::to_string(device.replica) + " ";
    if (plan_.expert_parallel > 1) text += "member " + std::to_string(device.member) + " ";
    text += "rank " + std::to_string(device.rank) + " instruction " + std::to_string(place.index) +
            " (" + ToString(plan_.program(device.rank)[place.index]) + ")";
  }
  if (running.size() > kMost) text += " and " + std::to_string(running.size() - kMost) + " more";
  return text;
}

StepWatch::StepWatch(const Watched& watched, Gpu& gpu, Progress& progress)
    : GpuWatch({watched}, gpu, milliseconds(500), "watch"), progress_(progress) {}

void StepWatch::Begin(int step, bool stamped) {
  progress_.Enter(step, Progress::kStart);
  published_ = Progress::kStart;
  GpuWatch::Begin(step, stamped);
}

/// The first in program order of several lanes that are at something holds up the others.
void StepWatch::Look() {
  if (!Changed(Clock::now())) return;
  const std::vector<IssuePlace> running = Running();
  if (running.empty() || running[0].index == published_) return;
  published_ = running[0].index;
  progress_.Enter(step_, published_);
}

}  // namespace contraflow
