#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "compiler/plan/error.h"
#include "compiler/plan/plan.h"
#include "compiler/plan/timeline.h"
#include "runtime/core/devices.h"
#include "runtime/core/executor.h"
#include "runtime/core/progress.h"
#include "runtime/core/step.h"
#include "runtime/core/transport.h"
#include "runtime/host/backend.h"
#include "runtime/host/run.h"
#include "runtime/transport/thread_transport.h"

namespace contraflow {

/// One device of a run.
struct Worker {
  Device device;
  Backend* backend = nullptr;
  Transport* transport = nullptr;
};

/// Returns the error with the replica and the member before its text, where the plan has several.
std::exception_ptr NamingDevice(const Plan& plan, Device device, std::exception_ptr error);

/// Returns the plan. Throws Error if it has more devices than this process may have threads.
const Plan& CheckThreads(const Plan& plan);

/// The threads of a run, one for each worker, from the first step to the last.
class Launch {
 public:
  /// Starts the threads. Throws Error if the system has no room for them. The plan, and all that
  /// the workers point to, must outlive it. The options say when a device hangs, and tell of it.
  Launch(const Plan& plan, std::span<const Worker> workers, ThreadNetwork::Options options = {});
  Launch(const Launch&) = delete;
  /// Joins the threads.
  ~Launch();

  /// Runs every worker's program once, each in its thread. Returns when all have ended. If one
  /// fails, all others are aborted. Then the first error is thrown again; it names device and
  /// instruction. After that the run can only be destroyed.
  void Step(int step);

  /// Times of worker `w`'s instructions in the last step, counted from its start.
  const std::vector<Span>& spans(size_t w) const { return executors_[w]->spans(); }

 private:
  void Serve(size_t w);
  void Run(size_t w, int step);
  void Join();
  Clock::time_point LastMove() const;
  std::exception_ptr Hang() const;

  const Plan& plan_;
  const std::vector<Worker> workers_;
  const ThreadNetwork::Options options_;
  std::deque<Progress> progress_;  // by worker
  // One for each worker. They outlive a step that fails: a worker may still copy the messages of
  // another that has given up.
  std::vector<std::unique_ptr<Executor>> executors_;
  std::mutex mutex_;  // guards all below
  std::condition_variable begin_, end_;
  int64_t round_ = 0;   // steps begun
  int step_ = 0;        // number of the step under way, 0: end
  size_t running_ = 0;  // workers that have not ended it
  bool aborted_ = false;
  std::exception_ptr error_;  // the first
  Clock::time_point origin_;  // start of the step
  std::vector<std::thread> threads_;
};

/// The devices of a plan that this process has on the host, each with a backend of kind B.
template <typename B>
class HostDevices {
 public:
  virtual ~HostDevices() = default;

  virtual StepResult Step(int step) = 0;
  virtual const std::vector<Device>& devices() const = 0;
  virtual B& At(Device device) const = 0;
  /// Returns the number that process 0 has; all processes call it.
  virtual double Shared(double number) { return number; }
};

/// All devices of a plan, each with a thread of this process.
template <typename B>
class DeviceThreads : public HostDevices<B> {
 public:
  /// `make(device, transport)` returns a backend. Plan and transports outlive the backends. Throws
  /// Error if the plan has too many devices or memory does not suffice.
  template <typename Make>
  DeviceThreads(const Plan& plan, const ThreadNetwork::Options& options, const Make& make)
      : plan_(CheckThreads(plan)),
        network_(plan.ranks, plan.data_parallel, plan.expert_parallel, options),
        devices_(AllDevices(plan)) {
    std::vector<Worker> workers;
    try {
      for (const Device& device : devices_) {
        Transport& transport = network_.At(device);
        backends_.push_back(make(device, transport));
        workers.push_back({device, backends_.back().get(), &transport});
      }
      launch_.emplace(plan, workers, options);
    } catch (const std::bad_alloc&) {
      throw Error("not enough memory for the stages of all ranks; use a smaller model");
    }
  }

  StepResult Step(int step) override {
    const Clock::time_point start = Clock::now();
    launch_->Step(step);
    std::vector<DeviceStep> steps;
    for (size_t w = 0; w < backends_.size(); ++w) {
      steps.push_back(backends_[w]->Results(launch_->spans(w)));
    }
    return JoinDevices(plan_, steps, Nanoseconds(Clock::now() - start));
  }
  const std::vector<Device>& devices() const override { return devices_; }
  B& At(Device device) const override { return *backends_[DeviceNumber(plan_, device)]; }

 private:
  const Plan& plan_;
  ThreadNetwork network_;
  const std::vector<Device> devices_;
  std::vector<std::unique_ptr<B>> backends_;  // by device
  std::optional<Launch> launch_;
};

/// Trains with a plan on the host.
class HostRun : public Run {
 public:
  StepResult Step(int step) override;
  const std::vector<Device>& devices() const override { return devices_->devices(); }
  HostBackend& At(Device device) override { return devices_->At(device); }

 protected:
  HostRun(const Model& model, std::unique_ptr<HostDevices<HostBackend>> devices);

 private:
  const bool clips_;
  const std::unique_ptr<HostDevices<HostBackend>> devices_;
};

/// The same where every device is a thread of this process.
class ThreadedRun : public HostRun {
 public:
  /// The plan is sound (Verify), the model fitted to its stages. Plan, model and dataset must
  /// outlive the run. With `fill` memory without a value is full of NaN. Throws Error if the plan
  /// cannot be executed or is too large for one process.
  ThreadedRun(const Plan& plan, const Model& model, const Dataset& dataset, uint64_t seed,
              const ThreadNetwork::Options& options, bool fill = kFillUnused);
};

}  // namespace contraflow
