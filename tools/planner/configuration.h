#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tools/interop/launch.h"
#include "tools/profile/model_shape.h"
#include "tools/profile/setup.h"

namespace contraflow {

/// One way to train a model on a number of GPUs.
struct Configuration {
  int tp = 1, cp = 1, ep = 1, etp = 1, pp = 1;
  int dp = 1;            ///< replicas of a pipeline, GPUs / (tp x cp x pp)
  int micro_batch = 1;   ///< sequences
  int microbatches = 0;  ///< of one step, of each of the dp replicas
  int zero = 0;

  Parallel parallel() const { return {.tp = tp, .cp = cp, .ep = ep, .etp = etp}; }
  /// Replicas of the whole pipeline of expert groups, as `contraflow compile` counts them.
  int replicas() const { return dp / parallel().batches(); }
  bool operator==(const Configuration&) const = default;
};

/// Calls `take` for each pair of "KEY=X,KEY=X"; X is empty where there is none. Throws Error for a
/// key that is none of `keys`.
void ForEachPair(std::string_view text, std::span<const std::string_view> keys,
                 const std::function<void(const std::string& key, std::string_view value)>& take);

/// Reads a whole number from `least` up. None if the text is no such number.
std::optional<int> WholeNumber(std::string_view text, int least);

/// Values that a configuration must have, by "tp", "cp", "ep", "etp", "pp", "dp", "micro-batch" and
/// "zero", and the stages of each rank that its plan must have ("vpp").
using FixedValues = std::map<std::string, int, std::less<>>;

/// Reads "tp=8,pp=4". Throws Error that says what is wrong.
FixedValues ParseFixed(std::string_view text);

/// A model, a machine and the work of a step.
struct PlanRequest {
  ModelShape model;
  GpuSheet gpu;
  int gpus = 0;
  int global_batch = 0;  ///< sequences of a step
  int64_t sequence = 4096;
  bool fp8 = false;
  bool tp_overlap = false;  ///< as in CostSetup
  const OptimizerSheet* optimizer = &kOptimizers[0];
  Activations activations = Activations::kIdeal;
  int64_t workspace = 0;       ///< bytes, as in CostSetup
  double scale = 1;            ///< of all efficiencies, from a run that was measured
  std::string scaled_by = {};  ///< that run, in words
  FixedValues fixed = {};
  Framework framework = Framework::kAny;  ///< that shall run the plan
  std::vector<std::string> schedules = {"auto"};
  int64_t budget = 20'000'000'000;  ///< of all searches, as SearchOptions counts it
  size_t top = 5;

  /// True if the framework waits for each all-to-all.
  bool waits() const {
    return framework == Framework::kTorch || framework == Framework::kTorchtitan;
  }
  /// Value of --overlap of `compile`: Megatron-LM hides all-to-alls in F&B pairs alone; "": as
  /// far as the plan can.
  std::string overlap() const { return framework == Framework::kMegatron ? "published" : ""; }
  /// Bytes of a GPU for a plan.
  int64_t room() const { return gpu.memory - workspace; }
  /// True if the framework recomputes all of its stages or none.
  bool recomputes_all() const { return framework != Framework::kAny; }
  /// Setup of the costs of a configuration; points into this request.
  CostSetup SetupOf(const Configuration& configuration) const;
  /// Run of the framework with a configuration.
  Launch LaunchOf(const Configuration& configuration) const;
};

/// Configurations that were not searched, by reason.
struct Rejected {
  int shape = 0;      ///< the model, the GPUs or the batch do not divide so
  int memory = 0;     ///< over the memory of a GPU
  int bound = 0;      ///< proven to take longer than a row
  int budget = 0;     ///< estimated to take longer than all that were searched
  int framework = 0;  ///< not what the framework runs
};

/// Returns all configurations whose numbers divide, in a fixed order. Throws Error with the field
/// and a remedy if there is none.
std::vector<Configuration> ConfigurationsOf(const PlanRequest& request, Rejected* rejected);

}  // namespace contraflow
