#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "compiler/plan/plan.h"
#include "compiler/plan/spec.h"
#include "schedules/partition/stages.h"

namespace contraflow {

/// Plans of published schedules, kept for whoever asks for the same again: of layers they take long
/// to make, and a comparison has each as a row and `auto` beside what it finds. Any thread may ask.
class MadePlans {
 public:
  /// The plan that `make` gives for the spec, made at the first call; another thread waits for it.
  /// Throws the Error that it threw.
  Plan Get(const Spec& spec, const std::function<Plan()>& make);

  /// What stages of these layers cost, the same for all that ask on this thread: to look at each
  /// takes long where layers have components.
  LayerStages& StagesOf(const CostModel& costs, Overlap overlap);

 private:
  struct Made {
    Spec spec;
    bool done = false;
    std::optional<Plan> plan;
    std::exception_ptr why_not;
  };
  std::mutex mutex_;  // of both lists and what is in the first
  std::condition_variable made_;
  std::list<Made> all_;
  std::list<std::pair<std::thread::id, LayerStages>> stages_;
};

}  // namespace contraflow
