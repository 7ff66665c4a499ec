#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/plan/plan.h"

namespace contraflow {

/// Systems that train with a plan: Megatron-LM, contraflow.torch and torchtitan.
enum class Framework : uint8_t { kAny, kMegatron, kTorch, kTorchtitan };
std::string_view Name(Framework framework);  ///< "any" "megatron" "torch" "torchtitan"
/// "megatron", "torch" or "torchtitan". Throws Error with these names.
Framework ParseFramework(std::string_view name);

/// Arguments of a run, in addition to the plan itself.
struct Launch {
  Framework framework = Framework::kAny;
  int micro_batch = 1;   ///< sequences
  int64_t sequence = 0;  ///< tokens
  int zero = 0;
  bool fp8 = false;
  bool tp_overlap = false;         ///< messages of tensor parallelism run concurrently with matmuls
  bool experts = false;            ///< the model has experts
  std::string optimizer = "adam";  ///< as --optimizer of `contraflow plan` takes it
};

/// Name of the optimizer that a framework takes where nobody says one.
std::string_view OptimizerOf(Framework framework);

/// Returns the schedules to compile for a framework: its own, or those of them in `only`. There
/// `auto` stands for all. Throws Error if that leaves none.
std::vector<std::string> SchedulesFor(Framework framework, const std::vector<std::string>& only);

/// Returns the `for` of `contraflow compile` that a schedule needs to become a plan for the
/// framework, or "".
std::string CompileTarget(Framework framework, std::string_view schedule);

/// Why the framework cannot train with a schedule on devices that split a model so, or "".
std::string FlawFor(const Launch& launch, const Parallel& parallel, std::string_view schedule);

/// A file that starts a run.
struct LaunchFile {
  std::string path, text;
};

/// Names of all files that LaunchFiles may give.
inline constexpr std::string_view kLaunchNames[] = {"megatron.args", "run.csv", "run.py",
                                                    "torchtitan.args", "train.py"};

/// Returns the files with which a framework trains by a plan that stands in `folder`, which ends
/// with a slash:
///   megatron    megatron.args, an argument a line, quoted for a shell
///   torch       train.py, a script for contraflow.torch
///   torchtitan  run.csv, run.py (WriteTorchtitan) and torchtitan.args, the same as flags
/// Throws Error that says why if the framework cannot run the plan.
std::vector<LaunchFile> LaunchFiles(const Launch& launch, const Plan& plan,
                                    const std::string& folder);

/// Why the framework cannot run the plan, or "".
std::string FlawFor(const Launch& launch, const Plan& plan);

/// Returns a script that trains a model of Hugging Face by the plan.json next to it. It shares the
/// optimizer's state over replicas, not over devices that share experts.
std::string WriteTrainScript(const Launch& launch);

}  // namespace contraflow
