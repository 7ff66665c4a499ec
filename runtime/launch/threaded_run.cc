#include "runtime/launch/threaded_run.h"

#include <algorithm>
#include <string>
#include <utility>

#include "compiler/plan/error.h"
#include "runtime/core/executor.h"
#include "runtime/core/quiet_thread.h"
#include "runtime/core/seconds.h"

namespace contraflow {
namespace {

/// Returns the plan, for which this process is ready.
const Plan& Prepared(const Plan& plan) {
  CheckExecutable(CheckThreads(plan));
  ReserveForRanks(DeviceCount(plan));
  return plan;
}

}  // namespace

std::exception_ptr NamingDevice(const Plan& plan, Device device, std::exception_ptr error) {
  std::string place;
  if (plan.data_parallel > 1) place += "replica " + std::to_string(device.replica) + ", ";
  if (plan.expert_parallel > 1) place += "member " + std::to_string(device.member) + ", ";
  if (place.empty()) return error;
  try {
    std::rethrow_exception(error);
  } catch (const InternalError& e) {
    return std::make_exception_ptr(InternalError(place + e.what()));
  } catch (const Error& e) {
    return std::make_exception_ptr(Error(place + e.what()));
  }
}

Launch::Launch(const Plan& plan, std::span<const Worker> workers, ThreadNetwork::Options options)
    : plan_(plan), workers_(workers.begin(), workers.end()), options_(std::move(options)) {
  for (const Worker& worker : workers_) {
    executors_.push_back(std::make_unique<Executor>(plan, worker.device.rank, *worker.backend,
                                                    *worker.transport, &progress_.emplace_back()));
  }
  try {
    for (size_t w = 0; w < workers_.size(); ++w) {
      threads_.push_back(StartQuietly("a rank", [this, w] { Serve(w); }));
    }
  } catch (...) {
    Join();
    throw;
  }
}

Launch::~Launch() { Join(); }

void Launch::Join() {
  {
    const std::lock_guard lock(mutex_);
    ++round_;
    step_ = 0;
  }
  begin_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Launch::Step(int step) {
  CF_ASSERT(step > 0 && !error_ && !aborted_);
  std::unique_lock lock(mutex_);
  step_ = step;
  running_ = workers_.size();
  origin_ = Clock::now();
  ++round_;
  begin_.notify_all();
  const auto ended = [this] { return running_ == 0; };
  if (!options_.stuck) end_.wait(lock, ended);
  // A rank that waits for a message gives up first, and says more.
  const auto patience = options_.timeout + std::chrono::seconds(1);
  while (!end_.wait_until(lock, LastMove() + patience, ended)) {
    if (Clock::now() >= LastMove() + patience) options_.stuck(error_ ? error_ : Hang());
  }
  if (error_) std::rethrow_exception(error_);
  if (aborted_) throw Aborted();
}

Clock::time_point Launch::LastMove() const {
  Clock::time_point last = origin_;
  for (const Progress& progress : progress_) last = std::max(last, progress.Read().since);
  return last;
}

std::exception_ptr Launch::Hang() const {
  std::string text = "no rank has made progress for " + SecondsText(options_.timeout);
  for (size_t w = 0; w < workers_.size(); ++w) {
    const Progress::Snapshot at = progress_[w].Read();
    if (at.index < 0) continue;
    const int rank = workers_[w].device.rank;
    text += ": rank " + std::to_string(rank) + " is still at " +
            ToString(plan_.program(rank)[static_cast<size_t>(at.index)]);
    break;
  }
  return std::make_exception_ptr(Error(text + "; allow more time with `timeout`"));
}

void Launch::Serve(size_t w) {
  int64_t served = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    begin_.wait(lock, [&] { return round_ > served; });
    ++served;
    const int step = step_;
    if (step == 0) return;
    lock.unlock();
    Run(w, step);
    lock.lock();
    if (--running_ == 0) end_.notify_one();
  }
}

void Launch::Run(size_t w, int step) {
  const Worker& worker = workers_[w];
  try {
    executors_[w]->Run(step, origin_);
  } catch (const Aborted&) {
    // It follows from another's error, or from the caller's wish.
    const std::lock_guard lock(mutex_);
    aborted_ = true;
  } catch (...) {
    // Kept before the others are woken, since they throw then too.
    {
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = NamingDevice(plan_, worker.device, std::current_exception());
    }
    worker.transport->Abort();
  }
}

const Plan& CheckThreads(const Plan& plan) {
  constexpr size_t kMaxThreads = 1024;
  if (DeviceCount(plan) > kMaxThreads) {
    std::string text = "the plan has " + std::to_string(plan.ranks) + " ranks in " +
                       std::to_string(plan.data_parallel) + " replica(s)";
    if (plan.expert_parallel > 1) {
      text += " of " + std::to_string(plan.expert_parallel) + " devices per rank";
    }
    throw Error(text + ", which is more than " + std::to_string(kMaxThreads) +
                " threads in one process; compile it for fewer");
  }
  return plan;
}

HostRun::HostRun(const Model& model, std::unique_ptr<HostDevices<HostBackend>> devices)
    : clips_(model.clip > 0), devices_(std::move(devices)) {}

StepResult HostRun::Step(int step) {
  const Clock::time_point start = Clock::now();
  StepResult result = devices_->Step(step);
  if (clips_) {
    const double norm = devices_->Shared(result.gradient_norm);
    for (const Device& device : devices()) At(device).ClippedStep(norm);
  }
  result.duration = Nanoseconds(Clock::now() - start);
  return result;
}

ThreadedRun::ThreadedRun(const Plan& plan, const Model& model, const Dataset& dataset,
                         uint64_t seed, const ThreadNetwork::Options& options, bool fill)
    : HostRun(model, std::make_unique<DeviceThreads<HostBackend>>(
                         Prepared(plan), options, [&](Device device, Transport& transport) {
                           return std::make_unique<HostBackend>(plan, model, dataset, seed, device,
                                                                transport, fill);
                         })) {}

}  // namespace contraflow
