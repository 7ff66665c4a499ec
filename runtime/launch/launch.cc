#include "runtime/launch/launch.h"

#include <string>
#include <system_error>
#include <utility>

#include "compiler/plan/error.h"

namespace contraflow {

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

Launch::Launch(const Plan& plan, std::span<const Worker> workers)
    : plan_(plan), workers_(workers.begin(), workers.end()) {
  CheckExecutable(plan);
  if (workers_.size() > kMaxThreads) {
    throw Error("the plan needs " + std::to_string(workers_.size()) +
                " threads (ranks times replicas times members of an expert group), at most " +
                std::to_string(kMaxThreads) + " are possible in one process");
  }
  for (const Worker& worker : workers_) {
    executors_.push_back(
        std::make_unique<Executor>(plan, worker.device.rank, *worker.backend, *worker.transport));
  }
  try {
    for (size_t w = 0; w < workers_.size(); ++w) threads_.emplace_back([this, w] { Serve(w); });
  } catch (const std::system_error& error) {
    Join();
    throw Error("cannot start " + std::to_string(workers_.size()) +
                " threads: " + error.code().message() + "; use a plan with fewer ranks");
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
  end_.wait(lock, [&] { return running_ == 0; });
  if (error_) std::rethrow_exception(error_);
  if (aborted_) throw Aborted();
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
    // Only follows from another's error, or the caller's wish.
    const std::lock_guard lock(mutex_);
    aborted_ = true;
  } catch (...) {
    // Kept before anyone is woken: what the others then throw comes later.
    Keep(NamingDevice(plan_, worker.device, std::current_exception()));
    worker.transport->Abort();
  }
}

void Launch::Keep(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  if (!error_) error_ = std::move(error);
}

}  // namespace contraflow
