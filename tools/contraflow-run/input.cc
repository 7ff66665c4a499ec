#include "tools/contraflow-run/input.h"

#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <utility>

#include "compiler/files/json.h"
#include "compiler/files/plan_io.h"
#include "compiler/plan/error.h"
#include "compiler/verify/verify.h"
#include "runtime/core/digest.h"
#include "runtime/core/executor.h"
#include "tools/contraflow-run/build_id.h"

namespace contraflow {
namespace {

void RequireSoundPlan(const Plan& plan, const std::string& path) {
  const std::vector<Finding> findings = Verify(plan);
  if (findings.empty()) return;
  std::string text = path + ": the plan is not sound and is not executed:";
  for (const Finding& finding : findings) text += "\n  " + ToString(finding, plan);
  throw Error(text);
}

Plan ReadSoundPlan(const std::string& path) {
  Plan plan = ReadPlanFile(path);
  try {
    CheckExecutable(plan);
  } catch (const Error& error) {
    throw Error(path + ": " + error.what());
  }
  RequireSoundPlan(plan, path);
  return plan;
}

Model ModelOf(const RunOptions& options, const Plan& plan) {
  const Hardware on = options.device == "cuda" ? Hardware::kGpus : Hardware::kHost;
  Model model = ReadModel(options.model, on);
  if (options.capacity) model.capacity_factor = static_cast<float>(*options.capacity);
  const auto fit = [&](Hardware hardware) {
    return FitModel(model, plan.stages, plan.layers, plan.expert_parallel, hardware);
  };
  if (on == Hardware::kGpus && options.check) {
    try {
      fit(Hardware::kHost);
    } catch (const Error& error) {
      throw Error(std::string("--check: computes on the host as well; leave it out, as ") +
                  error.what());
    }
  }
  return fit(on);
}

Fact PlanFact(const std::string& path, const Plan& plan) {
  const std::string digest = Hex(Sha256(WritePlan(plan)));
  std::string shown = path + " (" + plan.schedule + ", " + std::to_string(plan.ranks) + " ranks, " +
                      std::to_string(plan.microbatches) + " micro-batches, SHA-256 " +
                      digest.substr(0, 12) + ")";
  return {"plan", digest, std::move(shown)};
}

/// Two models that differ in nothing but the name are the same.
Fact ModelFact(const Model& model) {
  Model nameless = model;
  nameless.name = "";
  std::string fields;
  WriteJson(ModelToJson(nameless), &fields);
  return {"model", fields, model.name + " " + fields};
}

Fact NumberFact(const std::string& noun, int64_t number) {
  return {noun, std::to_string(number), std::to_string(number)};
}

Fact SwitchFact(const std::string& flag, bool on) {
  return {flag, on ? "on" : "off", on ? "with" : "without"};
}

}  // namespace

RunInput ReadInput(const RunOptions& options) {
  RunInput input;
  input.plan = ReadSoundPlan(options.plan);
  input.model = ModelOf(options, input.plan);
  input.dataset = ReadDataset(options.data, input.model);
  input.dataset_digest = Hex(Sha256(input.dataset.bytes));
  return input;
}

void RequireWritable(const RunOptions& options) {
  namespace fs = std::filesystem;
  struct File {
    const char* what;
    const std::string& path;
  };
  // What is written first, then what is read.
  const File files[] = {{"--trace", options.trace}, {"--calibrate", options.calibrate},
                        {"the plan", options.plan}, {"--data", options.data},
                        {"--model", options.model}, {"--secret-file", options.secret_file}};
  constexpr size_t kWritten = 2;
  for (size_t i = 0; i < kWritten; ++i) {
    const std::string& path = files[i].path;
    if (path.empty()) continue;
    std::error_code error;
    if (fs::is_directory(path, error)) {
      throw Error(path + ": cannot be written: is a folder; name a file");
    }
    const fs::path folder = fs::path(path).parent_path();
    if (access(folder.empty() ? "." : folder.c_str(), W_OK) != 0) {
      throw Error(path + ": cannot be written: " + std::generic_category().message(errno) +
                  "; does its folder exist?");
    }
    const fs::path target = fs::weakly_canonical(path, error);
    for (size_t other = i + 1; other < std::size(files); ++other) {
      if (files[other].path.empty()) continue;
      if (error || target != fs::weakly_canonical(files[other].path, error)) continue;
      throw Error(std::string(files[i].what) + " " + path + ": is also " + files[other].what +
                  ", which it would overwrite; name another file");
    }
  }
}

std::vector<Fact> FactsOf(const RunOptions& options, const RunInput& input) {
  const std::string build = "contraflow-run " CF_VERSION " (build " + BuildId() + ")";
  return {
      {"build", build, build},
      PlanFact(options.plan, input.plan),
      ModelFact(input.model),
      {"text", input.dataset_digest,
       input.dataset.name + " (SHA-256 " + input.dataset_digest.substr(0, 12) + ")"},
      {"seed", std::to_string(options.seed), std::to_string(options.seed)},
      NumberFact("number of steps (--steps)", options.steps),
      {"--rank-order", options.rank_order, options.rank_order},
      {"--transport", options.transport, options.transport},
      SwitchFact("--strict", options.strict),
      SwitchFact("--check", options.check),
      {"--checkpoint", options.checkpoint,
       options.checkpoint.empty() ? "none" : options.checkpoint},
      NumberFact("--checkpoint-every", options.checkpoint_every),
      SwitchFact("--resume", options.resume),
      NumberFact("--resume-step", options.resume_step.value_or(0)),
  };
}

}  // namespace contraflow
