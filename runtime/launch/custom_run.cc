#include "runtime/launch/custom_run.h"

#include <chrono>
#include <utility>

#include "compiler/plan/error.h"
#include "runtime/launch/process_run.h"

namespace contraflow {

CustomRun::CustomRun(const CustomStages& stages, ThreadNetwork::Options options, bool fill)
    : plan_(CheckThreads(stages.plan())),
      options_(options),
      network_(plan_.ranks, plan_.data_parallel, plan_.expert_parallel, options),
      devices_(AllDevices(plan_)) {
  std::vector<Worker> workers;
  for (const Device& device : devices_) {
    backends_.push_back(std::make_unique<CustomBackend>(stages, device, fill));
    workers.push_back({device, backends_.back().get(), &network_.At(device)});
  }
  launch_.emplace(plan_, workers, std::move(options));
}

StepResult CustomRun::Step(int step) {
  const Clock::time_point start = Clock::now();
  launch_->Step(step);
  const Time duration = Nanoseconds(Clock::now() - start);
  std::vector<DeviceStep> steps;
  for (size_t w = 0; w < backends_.size(); ++w) {
    steps.push_back(backends_[w]->Results(launch_->spans(w)));
  }
  return JoinDevices(plan_, steps, duration);
}

std::unique_ptr<CustomTraining> CustomRun::NewBeside(const CustomStages& stages) {
  return std::make_unique<CustomRun>(stages, options_);
}

CustomProcessRun::CustomProcessRun(const CustomStages& stages, const RankOrder& order,
                                   Transport& transport, Control& control, Progress& progress,
                                   bool fill)
    : plan_(stages.plan()),
      order_(order),
      control_(control),
      devices_{order.DeviceOf(control.rank())},
      backend_(stages, devices_[0], fill),
      executor_(plan_, devices_[0].rank, backend_, transport, &progress) {}

StepResult CustomProcessRun::Step(int step) {
  const Clock::time_point start = Clock::now();
  const std::vector<DeviceStep> steps =
      WalkAndGather(plan_, order_, control_, devices_[0], step, &executor_,
                    [this](std::vector<Span> spans) { return backend_.Results(std::move(spans)); });
  return JoinDevices(plan_, steps, Nanoseconds(Clock::now() - start));
}

CustomDevice& CustomProcessRun::At(Device device) {
  CF_ASSERT(device == devices_[0]);
  return backend_.device();
}

// The watch over the job ends what hangs.
std::unique_ptr<CustomTraining> CustomProcessRun::NewBeside(const CustomStages& stages) {
  return std::make_unique<CustomRun>(stages,
                                     ThreadNetwork::Options{.timeout = std::chrono::hours(24)});
}

}  // namespace contraflow
