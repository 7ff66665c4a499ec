#pragma once

#include <optional>
#include <string>

#include "tools/planner/configuration.h"
#include "tools/profile/setup_options.h"

namespace CLI {
class App;
}

namespace contraflow {

/// Request of `contraflow plan`, as the user wrote it.
struct PlanFlags {
  std::string model, like, gpu, dtype = "bf16", memory, fix, only, framework, measured,
                                budget = "20s";
  KeptFlags kept = {
      .optimizer = "", .activations = "", .workspace = ""};  ///< "": as the framework keeps
  bool tp_overlap = false;
  int gpus = 0, global_batch = 0, seq = 0, top = 5;
  std::optional<std::string> config = {};  ///< text of the model's config.json, in place of a file
};

/// Adds these options to a command.
void AddPlanOptions(CLI::App* app, PlanFlags* flags);

/// Makes a request from the flags. Reads the model, and the GPU if that is a file. Throws
/// UsageError for an invalid value, Error for a combination that does not work.
PlanRequest ResolvePlan(const PlanFlags& flags);

}  // namespace contraflow
