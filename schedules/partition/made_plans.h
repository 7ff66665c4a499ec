#pragma once

#include <functional>
#include <memory>

#include "compiler/plan/plan.h"
#include "compiler/plan/spec.h"
#include "schedules/partition/stages.h"

namespace contraflow {

/// Cache of published plans, which take long to make from layers. A comparison uses each as a row
/// and as a seed of `auto`. Any thread may ask.
class MadePlans {
 public:
  MadePlans();
  ~MadePlans();

  /// The plan that `make` gives for the spec, made at the first call; another thread waits for it.
  /// Throws the Error that it threw.
  Plan Get(const Spec& spec, const std::function<Plan()>& make);

  /// Costs of stages of these layers, the same for all that ask on this thread: to look at each
  /// takes long where layers have components.
  LayerStages& StagesOf(const CostModel& costs, Overlap overlap);

 private:
  struct Kept;  // state that threads share
  std::unique_ptr<Kept> kept_;
};

}  // namespace contraflow
