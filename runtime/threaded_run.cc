#include "runtime/threaded_run.h"

#include <new>
#include <string>

#include "compiler/error.h"
#include "runtime/executor.h"

namespace contraflow {
namespace {

/// The plan, if this process may start a thread for each of its devices.
const Plan& CheckSize(const Plan& plan) {
  CheckExecutable(plan);
  const int64_t threads = int64_t{plan.ranks} * plan.data_parallel * plan.expert_parallel;
  if (threads > kMaxThreads) {
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

double MeanLoss(const std::vector<float>& losses) {
  double sum = 0;
  for (const float loss : losses) sum += static_cast<double>(loss);
  return losses.empty() ? 0 : sum / static_cast<double>(losses.size());
}

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
  StepResult result;
  const Clock::time_point start = Clock::now();
  launch_->Step(step);
  result.duration =
      std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
  result.timeline = {true, Unit::kMicroseconds, {}};
  for (int rank = 0; rank < plan_.ranks; ++rank) {
    result.timeline.ranks.push_back(launch_->spans(static_cast<size_t>(rank)));
  }
  result.losses = CollectLosses();
  result.loss = MeanLoss(result.losses);
  for (const auto& backend : backends_) result.dropped += backend->dropped();
  return result;
}

std::vector<float> ThreadedRun::CollectLosses() {
  std::vector<float> losses;
  const std::vector<int> route_of = RouteOfMicrobatch(plan_);
  for (int replica = 0; replica < plan_.data_parallel; ++replica) {
    for (int member = 0; member < plan_.expert_parallel; ++member) {
      for (int m = 0; m < plan_.microbatches; ++m) {
        const Route& route = plan_.routes[static_cast<size_t>(route_of[static_cast<size_t>(m)])];
        const auto& here = At({replica, member, route.ranks.back()}).losses();
        const auto loss = here.find(m);
        if (loss == here.end()) {
          throw Error("micro-batch " + std::to_string(m) +
                      " never reached the last stage; verify the plan");
        }
        losses.push_back(loss->second);
      }
    }
  }
  return losses;
}

HostBackend& ThreadedRun::At(Device device) {
  return *backends_[static_cast<size_t>(
      (device.replica * plan_.expert_parallel + device.member) * plan_.ranks + device.rank)];
}

}  // namespace contraflow
