#pragma once

#include <string>
#include <vector>

#include "compiler/plan/plan.h"
#include "runtime/launch/process_run.h"
#include "runtime/model/dataset.h"
#include "runtime/model/model.h"
#include "tools/cli/run_options.h"

namespace contraflow {

/// What a training is made from.
struct RunInput {
  Plan plan;    ///< sound, and executable
  Model model;  ///< settled
  Dataset dataset;
  std::string dataset_digest;  ///< SHA-256, hexadecimal
};

/// Reads what the options name and proves the plan. Throws Error if anything is wrong with it.
RunInput ReadInput(const RunOptions& options);

/// Says before the training, not after it, that a file of the options cannot be written.
void RequireWritable(const RunOptions& options);

/// What the processes of a job must have alike.
std::vector<Fact> FactsOf(const RunOptions& options, const RunInput& input);

}  // namespace contraflow
