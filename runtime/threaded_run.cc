#include "runtime/threaded_run.h"

#include <new>
#include <string>

#include "compiler/error.h"
#include "runtime/executor.h"

namespace contraflow {
namespace {

/// The plan, if this process may start a thread for each of its ranks.
const Plan& CheckSize(const Plan& plan) {
  CheckExecutable(plan);
  const int64_t threads = int64_t{plan.ranks} * plan.data_parallel;
  if (threads > kMaxThreads) {
    throw Error("the plan has " + std::to_string(plan.ranks) + " ranks in " +
                std::to_string(plan.data_parallel) + " replica(s), which is more than " +
                std::to_string(kMaxThreads) + " threads in one process; compile it for fewer");
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
                         ThreadNetwork::Options options)
    : plan_(CheckSize(plan)), network_(plan.ranks, plan.data_parallel, options) {
  try {
    for (int d = 0; d < plan.data_parallel; ++d) {
      for (int r = 0; r < plan.ranks; ++r) {
        backends_.push_back(std::make_unique<HostBackend>(plan, model, text, seed, d, r));
        workers_.push_back({d, r, backends_.back().get(), &network_.At(d, r)});
      }
    }
  } catch (const std::bad_alloc&) {
    throw Error("not enough memory for the stages of all ranks; use a smaller model");
  }
}

StepResult ThreadedRun::Step(int step) {
  StepResult result;
  const Clock::time_point start = Clock::now();
  std::vector<std::vector<Span>> spans = LaunchStep(plan_, step, workers_);
  result.duration =
      std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
  network_.CheckEmpty();
  spans.resize(static_cast<size_t>(plan_.ranks));
  result.timeline = {true, Unit::kMicroseconds, std::move(spans)};
  result.losses = CollectLosses();
  result.loss = MeanLoss(result.losses);
  return result;
}

std::vector<float> ThreadedRun::CollectLosses() {
  std::vector<float> losses;
  const std::vector<int> route_of = RouteOfMicrobatch(plan_);
  for (int d = 0; d < plan_.data_parallel; ++d) {
    for (int m = 0; m < plan_.microbatches; ++m) {
      const Route& route = plan_.routes[static_cast<size_t>(route_of[static_cast<size_t>(m)])];
      const std::map<int, float>& here = At(d, route.ranks.back()).losses();
      const auto loss = here.find(m);
      if (loss == here.end()) {
        throw Error("micro-batch " + std::to_string(m) +
                    " never reached the last stage; verify the plan");
      }
      losses.push_back(loss->second);
    }
  }
  return losses;
}

HostBackend& ThreadedRun::At(int replica, int rank) {
  return *backends_[static_cast<size_t>(replica * plan_.ranks + rank)];
}

}  // namespace contraflow
