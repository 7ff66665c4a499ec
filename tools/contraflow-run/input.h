#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compiler/plan/plan.h"
#include "runtime/launch/process_run.h"
#include "runtime/model/dataset.h"
#include "runtime/model/model.h"
#include "tools/cli/run_options.h"

namespace contraflow {

/// Sources of a training.
struct RunInput {
  Plan plan;  ///< sound, and executable
  /// SHA-256, hexadecimal; of a folder's plan that of its head, which has the checksums of the
  /// rest.
  std::string plan_digest;
  std::string stages_digest;  ///< of --stages, SHA-256, hexadecimal; "": none, but what follows
  Model model;                ///< settled
  Dataset dataset;
  std::string dataset_digest;  ///< SHA-256, hexadecimal
  std::optional<Dataset> validation;
};

/// Reads the files of the options, and proves the plan. Throws Error for a flaw.
RunInput ReadInput(const RunOptions& options);

/// Like ReadInput, for a process of a job: of a plan with a file for each rank it opens the head
/// and its own rank's file. The other programs are empty, and nothing is proven yet.
RunInput ReadInputOf(const RunOptions& options, int process);
/// Whether a process reads only its own file.
bool ReadsOwnFile(const RunOptions& options);

/// Throws Error with every violation unless the plan, read from `path`, is sound.
void RequireSoundPlan(const Plan& plan, const std::string& path);

/// Says before the training, not after it, that a file of the options cannot be written.
void RequireWritable(const RunOptions& options);

/// Facts that the processes of a job must have alike.
std::vector<Fact> FactsOf(const RunOptions& options, const RunInput& input);

}  // namespace contraflow
