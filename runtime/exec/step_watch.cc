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

namespace {

using std::chrono::milliseconds;

/// Most instructions that are named.
constexpr int kMost = 8;

}  // namespace

HangWatch::HangWatch(const Plan& plan, std::vector<Watched> watched, Gpu& gpu, milliseconds timeout)
    : plan_(plan),
      watched_(std::move(watched)),
      gpu_(gpu),
      timeout_(timeout),
      interval_(std::clamp(timeout / 8, milliseconds(1), milliseconds(500))) {
  if (watched_.empty() || watched_[0].stamps == nullptr) return;
  side_ = gpu.NewStream(0, Priority::kHigh, "hang watch");
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
  Peek();
  gpu.Synchronize(copied_);
  copying_ = false;
}

void HangWatch::Begin(int step, bool stamped) {
  step_ = step;
  stamped_ = stamped && now_ != nullptr;
  still_ = {};
  looked_ = Clock::now();
  next_ = looked_ + interval_;
}

void HangWatch::Peek() {
  uint64_t* at = now_;
  for (const Watched& one : watched_) {
    one.stamps->Peek(side_, at);
    at += 2 * one.stamps->size();
  }
  gpu_.Record(copied_, side_);
  copying_ = true;
}

void HangWatch::Look() {
  const Clock::time_point now = Clock::now();
  // A process that was stopped for a while has not waited meanwhile.
  still_ += std::min<Clock::duration>(now - looked_, interval_);
  looked_ = now;
  if (copying_ && gpu_.Done(copied_)) {
    copying_ = false;
    const std::span<const uint64_t> stamps(now_, last_.size());
    if (!std::equal(stamps.begin(), stamps.end(), last_.begin())) {
      std::copy(stamps.begin(), stamps.end(), last_.begin());
      still_ = {};
    }
  } else if (stamped_ && !copying_ && now >= next_) {
    Peek();
    next_ = now + interval_;
  }
  if (still_ < timeout_) return;
  throw GpuHang("the GPU has made no progress for " + SecondsText(timeout_) + " in step " +
                std::to_string(step_) + "; " + Running());
}

std::string HangWatch::Running() const {
  if (!stamped_) return "what it is at is not known without stamps";
  std::string text;
  int count = 0;
  const uint64_t* at = last_.data();
  for (const auto& [device, stamps] : watched_) {
    const Program& program = plan_.program(device.rank);
    for (size_t i = 0; i < stamps->size(); ++i, at += 2) {
      const bool begun = at[0] != stamps->begin(i), ended = at[1] != stamps->end(i);
      if (!begun || ended || ++count > kMost) continue;
      text += text.empty() ? "" : ", ";
      if (plan_.data_parallel > 1) text += "replica " + std::to_string(device.replica) + " ";
      if (plan_.expert_parallel > 1) text += "member " + std::to_string(device.member) + " ";
      text += "rank " + std::to_string(device.rank) + " instruction " + std::to_string(i) + " (" +
              ToString(program[i]) + ")";
    }
  }
  if (count > kMost) text += " and " + std::to_string(count - kMost) + " more";
  return count == 0 ? "no instruction has begun that has not ended"
                    : "begun and not ended: " + text;
}

namespace {

/// Before the first look, and between two.
constexpr std::chrono::milliseconds kInterval{500};

}  // namespace

StepWatch::StepWatch(Gpu& gpu, const StepStamps* stamps, Progress& progress)
    : gpu_(gpu), stamps_(stamps), progress_(progress) {
  if (stamps_ == nullptr) return;
  side_ = gpu.NewStream(0, Priority::kHigh, "watch");
  copied_ = gpu.NewEvent();
  now_ = reinterpret_cast<uint64_t*>(gpu.AllocateHost(stamps_->bytes()));
  // The last download holds the stamps as they were before the step, from the first one on.
  stamps_->Clear(side_);
  stamps_->Download(side_);
  gpu.Record(copied_, side_);
  gpu.Synchronize(copied_);
}

void StepWatch::Begin(int step, bool stamped) {
  step_ = step;
  stamped_ = stamped;
  published_ = Progress::kStart;
  next_ = Clock::now() + kInterval;
  if (copying_) gpu_.Synchronize(copied_);
  copying_ = false;
}

void StepWatch::Look() {
  if (stamps_ == nullptr || !stamped_ || Clock::now() < next_) return;
  if (!copying_) {
    stamps_->Peek(side_, now_);
    gpu_.Record(copied_, side_);
    copying_ = true;
    return;
  }
  if (!gpu_.Done(copied_)) return;
  copying_ = false;
  next_ = Clock::now() + kInterval;
  const int64_t reached = Reached();
  if (reached == published_) return;
  published_ = reached;
  progress_.Enter(step_, reached);
}

/// The first in program order of several lanes that are at something holds up the others.
int64_t StepWatch::Reached() const {
  for (size_t i = 0; i < stamps_->size(); ++i) {
    const bool begun = now_[2 * i] != stamps_->begin(i);
    const bool ended = now_[2 * i + 1] != stamps_->end(i);
    if (begun && !ended) return static_cast<int64_t>(i);
  }
  return published_;
}

}  // namespace contraflow
