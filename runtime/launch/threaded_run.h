#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "compiler/plan/plan.h"
#include "compiler/plan/timeline.h"
#include "runtime/core/executor.h"
#include "runtime/core/progress.h"
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

/// The same error, which begins with the replica and the member where the plan has several.
std::exception_ptr NamingDevice(const Plan& plan, Device device, std::exception_ptr error);

/// The plan, if this process may start a thread for each of its devices; else throws Error.
const Plan& CheckThreads(const Plan& plan);

/// The threads of a run, one for each worker, from the first step to the last.
class Launch {
 public:
  /// Starts the threads. Throws Error if not so many can be started. The plan, and what the workers
  /// point to, must outlive it. Of the options, what is to be done with a device that hangs.
  Launch(const Plan& plan, std::span<const Worker> workers, ThreadNetwork::Options options = {});
  Launch(const Launch&) = delete;
  /// Joins the threads.
  ~Launch();

  /// Runs every worker's program once, each in its thread. Returns when all have ended. If one
  /// fails, all others are aborted, and once every one has ended the first error is thrown again;
  /// it names device and instruction. Then the run is good for nothing but its destruction.
  void Step(int step);

  /// When the instructions of worker `w` ran in the last step, counted from its start.
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
  // By worker. They outlive the step, whoever fails in it: others may still be copying the messages
  // of one that has given up.
  std::vector<std::unique_ptr<Executor>> executors_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable begin_, end_;
  int64_t round_ = 0;   // steps begun
  int step_ = 0;        // number of the step under way, 0: end
  size_t running_ = 0;  // workers that have not ended it
  bool aborted_ = false;
  std::exception_ptr error_;  // the first
  Clock::time_point origin_;  // start of the step
  std::vector<std::thread> threads_;
};

/// Trains with a plan on the host: every device is a thread of this process.
class ThreadedRun : public Run {
 public:
  /// The plan is sound (Verify), the model fitted to its stages. Plan, model and dataset must
  /// outlive the run. With `fill` memory without a value is full of NaN. Throws Error if the plan
  /// cannot be executed or is too large for one process.
  ThreadedRun(const Plan& plan, const Model& model, const Dataset& dataset, uint64_t seed,
              ThreadNetwork::Options options, bool fill = kFillUnused);

  StepResult Step(int step) override;
  const std::vector<Device>& devices() const override { return devices_; }
  HostBackend& At(Device device) override;

 private:
  const Plan& plan_;
  ThreadNetwork network_;
  const std::vector<Device> devices_;
  std::vector<std::unique_ptr<HostBackend>> backends_;  // by device
  std::optional<Launch> launch_;
};

}  // namespace contraflow
