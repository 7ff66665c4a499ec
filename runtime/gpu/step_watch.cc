#include "runtime/gpu/step_watch.h"

#include <chrono>

namespace contraflow {
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
  // What was downloaded last is what stamps were before the step, from the first one on.
  stamps_->Clear(side_);
  stamps_->Download(side_);
  gpu.Record(copied_, side_);
  gpu.Synchronize(copied_);
}

void StepWatch::Begin(int step) {
  step_ = step;
  published_ = Progress::kStart;
  next_ = Clock::now() + kInterval;
  if (copying_) gpu_.Synchronize(copied_);
  copying_ = false;
}

void StepWatch::Look() {
  if (stamps_ == nullptr || Clock::now() < next_) return;
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

/// Of several lanes that are at something: what is first in program order holds up the others.
int64_t StepWatch::Reached() const {
  for (size_t i = 0; i < stamps_->size(); ++i) {
    const bool begun = now_[2 * i] != stamps_->begin(i);
    const bool ended = now_[2 * i + 1] != stamps_->end(i);
    if (begun && !ended) return static_cast<int64_t>(i);
  }
  return published_;
}

}  // namespace contraflow
