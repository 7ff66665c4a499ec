#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "compiler/plan/plan.h"
#include "runtime/core/step.h"
#include "runtime/stages/custom_stages.h"
#include "runtime/stages/custom_training.h"

namespace contraflow {

/// Compares a training of custom stages with the same one without a pipeline (SerialPlan).
class CustomCheck {
 public:
  /// Both must outlive it.
  CustomCheck(const CustomStages& stages, CustomTraining& training);

  /// Does the step that the training has just done without a pipeline too, and compares: every loss
  /// (in the process that knows them), and all gradients and blocks of every copy that this process
  /// has, bit for bit; and the copies of a stage with each other. Returns where they first differ;
  /// "": nowhere. `bytes` grows by how many were compared.
  std::string DifferenceIn(int step, const StepResult& result, int64_t* bytes);

  CustomTraining& serial() { return *serial_; }

 private:
  const Plan& plan_;
  CustomTraining& training_;
  const Plan serial_plan_;
  const CustomStages serial_stages_;
  const std::unique_ptr<CustomTraining> serial_;
};

}  // namespace contraflow
