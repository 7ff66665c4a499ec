#include "runtime/host/threaded_run.h"

#include <new>
#include <string>

#include "compiler/plan/error.h"
#include "runtime/core/executor.h"

namespace contraflow {
namespace {

/// The plan, if this process may start a thread for each of its devices.
const Plan& CheckSize(const Plan& plan) {
  CheckExecutable(plan);
  if (DeviceCount(plan) > kMaxThreads) {
    std::string text = "the plan has " + std::to_string(plan.ranks) + " ranks in " +
                       std::to_string(plan.data_parallel) + " replica(s)";
    if (plan.expert_parallel > 1) {
      text += " of " + std::to_string(plan.expert_parallel) + " devices a rank";
    }
    throw Error(text + ", which is more than " + std::to_string(kMaxThreads) +
                " threads in one process; compile it for fewer");
  }
  return plan;
}

}  // namespace

ThreadedRun::ThreadedRun(const Plan& plan, const Model& model, const Text& text, uint64_t seed,
                         ThreadNetwork::Options options, bool fill)
    : plan_(CheckSize(plan)),
      network_(plan.ranks, plan.data_parallel, plan.expert_parallel, options) {
  std::vector<Worker> workers;
  try {
    for (int replica = 0; replica < plan.data_parallel; ++replica) {
      for (int member = 0; member < plan.expert_parallel; ++member) {
        for (int rank = 0; rank < plan.ranks; ++rank) {
          const Device device = {replica, member, rank};
          devices_.push_back(device);
          Transport& transport = network_.At(device);
          backends_.push_back(
              std::make_unique<HostBackend>(plan, model, text, seed, device, transport, fill));
          workers.push_back({device, backends_.back().get(), &transport});
        }
      }
    }
    launch_.emplace(plan, workers);
  } catch (const std::bad_alloc&) {
    throw Error("not enough memory for the stages of all ranks; use a smaller model");
  }
}

StepResult ThreadedRun::Step(int step) {
  const Clock::time_point start = Clock::now();
  launch_->Step(step);
  const auto duration =
      std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
  std::vector<DeviceStep> steps;
  for (size_t w = 0; w < backends_.size(); ++w) {
    steps.push_back(DeviceStepOf(*backends_[w], launch_->spans(w)));
  }
  return JoinDevices(plan_, steps, duration);
}

Stage& ThreadedRun::StageAt(Device device, int stage) { return At(device).StageAt(stage); }

void ThreadedRun::Put(Device, int) {}  // StageAt is the stage itself.

const std::array<int64_t, kArenaCount>& ThreadedRun::ArenasAt(Device device) {
  return At(device).arena_bytes();
}

HostBackend& ThreadedRun::At(Device device) { return *backends_[DeviceNumber(plan_, device)]; }

}  // namespace contraflow
