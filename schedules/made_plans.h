#pragma once

#include <exception>
#include <functional>
#include <optional>
#include <vector>

#include "compiler/plan/plan.h"
#include "compiler/plan/spec.h"

namespace contraflow {

/// Plans of published schedules, kept for whoever asks for the same again: of layers they take long
/// to make, and a comparison has each as a row and `auto` beside what it finds. On one thread.
class MadePlans {
 public:
  /// The plan that `make` gives for the spec, made at the first call. Throws the Error that it
  /// threw.
  Plan Get(const Spec& spec, const std::function<Plan()>& make);

 private:
  struct Made {
    Spec spec;
    std::optional<Plan> plan;
    std::exception_ptr why_not;
  };
  std::vector<Made> all_;
};

}  // namespace contraflow
