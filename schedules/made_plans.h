#pragma once

#include <exception>
#include <functional>
#include <list>
#include <optional>
#include <vector>

#include "compiler/plan/plan.h"
#include "compiler/plan/spec.h"
#include "schedules/partition/stages.h"

namespace contraflow {

/// Plans of published schedules, kept for whoever asks for the same again: of layers they take long
/// to make, and a comparison has each as a row and `auto` beside what it finds. On one thread.
class MadePlans {
 public:
  /// The plan that `make` gives for the spec, made at the first call. Throws the Error that it
  /// threw.
  Plan Get(const Spec& spec, const std::function<Plan()>& make);

  /// What stages of these layers cost, the same for all that ask: to look at each takes long where
  /// layers have components.
  LayerStages& StagesOf(const CostModel& costs, Overlap overlap);

 private:
  struct Made {
    Spec spec;
    std::optional<Plan> plan;
    std::exception_ptr why_not;
  };
  std::vector<Made> all_;
  std::list<LayerStages> stages_;
};

}  // namespace contraflow
