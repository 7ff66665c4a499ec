#pragma once

#include <functional>
#include <memory>

#include "compiler/plan/plan.h"
#include "compiler/plan/spec.h"
#include "schedules/partition/stages.h"

namespace contraflow {

/// Plans of published schedules, kept for whoever asks for the same again: of layers they take long
/// to make, and a comparison has each as a row and `auto` beside what it finds. Any thread may ask.
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
