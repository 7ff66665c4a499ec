#include "tools/interop/launch.h"

#include <algorithm>
#include <optional>

#include "compiler/plan/error.h"
#include "schedules/published/rows.h"
#include "schedules/registry.h"
#include "schedules/target.h"
#include "tools/cli/layer_layout.h"
#include "tools/interop/interop.h"

namespace contraflow {
namespace {

/// AdamW in the type of the model.
constexpr std::string_view kAllBf16 = "adam-all-bf16";

constexpr Framework kFrameworks[] = {Framework::kMegatron, Framework::kTorch,
                                     Framework::kTorchtitan};

/// "1f1b, interleaved-1f1b"
std::string Listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

/// Schedules that a framework runs.
std::vector<std::string> RunsOf(Framework framework) {
  std::vector<std::string> names;
  if (framework == Framework::kMegatron) {
    for (const Schedule* schedule : SchedulesOf(Target::kMegatron)) {
      names.emplace_back(schedule->name);
    }
    return names;
  }
  for (const Schedule* schedule : Schedules()) {
    const bool two_routes = schedule == &kChimera || schedule == &kDualPipe;
    if (framework == Framework::kTorchtitan && two_routes) continue;
    names.emplace_back(schedule->name);
  }
  return names;
}

/// Throws Error if the plan recomputes other than whole stages, all or none of them.
void CheckRecompute(const Plan& plan, bool all_or_none) {
  const RecomputedCells cells(plan);
  if (!cells.any()) return;
  for (int s = 0; s < plan.stages; ++s) {
    if (cells.HasStage(s) ? cells.extent(s).whole() : !all_or_none) continue;
    throw Error("it recomputes parts of the model; take `recompute` full or none");
  }
}

/// Type of Adam's moments in Megatron-LM's arguments; empty: not one that it has.
std::string_view MomentsOf(std::string_view optimizer) {
  if (optimizer == "adam-bf16") return "bf16";
  return optimizer == "adam-8bit" ? "fp8" : "";
}

std::string MegatronArguments(const Launch& launch, const Plan& plan) {
  std::string text = WriteMegatronLayout(plan, {}, launch.micro_batch);
  text += "--seq-length " + std::to_string(launch.sequence) + "\n";
  if (launch.tp_overlap && ParallelOf(plan, *plan.costs).tp > 1) text += "--tp-comm-overlap\n";
  if (launch.zero > 0) text += "--use-distributed-optimizer\n";
  if (launch.optimizer == "muon") text += "--optimizer muon\n";
  if (const std::string moments(MomentsOf(launch.optimizer)); !moments.empty()) {
    text += "--use-precision-aware-optimizer\n--exp-avg-dtype " + moments +
            "\n--exp-avg-sq-dtype " + moments + "\n";
  }
  text += "--bf16\n";
  if (launch.fp8) text += "--fp8-format hybrid\n";
  return text;
}

std::vector<LaunchFile> TorchtitanFiles(const Launch& launch, const Plan& plan,
                                        const std::string& folder) {
  const std::string csv = folder + "run.csv";
  CheckRecompute(plan, true);
  return {{csv, WriteTorchCsv(plan)},
          {folder + "run.py", WriteTorchtitan(plan, csv, {}, "python", &launch)},
          {folder + "torchtitan.args", WriteTorchtitan(plan, csv, {}, "flags", &launch)}};
}

void CheckModules(const Plan& plan) {
  for (const std::string& stage : LayoutOf(plan)) {
    if (stage.find('m') == std::string::npos) continue;
    throw Error("models of transformers have no layers of multi-token prediction");
  }
}

}  // namespace

std::string_view Name(Framework framework) {
  switch (framework) {
    case Framework::kAny:
      break;
    case Framework::kMegatron:
      return "megatron";
    case Framework::kTorch:
      return "torch";
    case Framework::kTorchtitan:
      return "torchtitan";
  }
  return "any";
}

Framework ParseFramework(std::string_view name) {
  for (const Framework framework : kFrameworks) {
    if (Name(framework) == name) return framework;
  }
  throw Error("`for`: must be megatron, torch or torchtitan, is \"" + std::string(name) + "\"");
}

std::string_view OptimizerOf(Framework framework) {
  return framework == Framework::kTorch ? kAllBf16 : "adam";
}

std::vector<std::string> SchedulesFor(Framework framework, const std::vector<std::string>& only) {
  const std::vector<std::string> runs = RunsOf(framework);
  const bool searched = std::ranges::count(runs, kAuto.name) > 0;
  const std::vector<std::string> all =
      searched ? std::vector<std::string>{std::string(kAuto.name)} : runs;
  if (only.empty()) return all;
  std::vector<std::string> both;
  for (const std::string& name : only) {
    if (name == kAuto.name) return all;
    if (std::ranges::count(runs, name) > 0) both.push_back(name);
  }
  if (!both.empty()) return both;
  throw Error("`only`: `for` " + std::string(Name(framework)) + " runs no " + Listed(only) +
              "; give one of " + Listed(runs));
}

std::string CompileTarget(Framework framework, std::string_view schedule) {
  return framework == Framework::kTorchtitan && schedule == kAuto.name ? "torch" : "";
}

std::string FlawFor(const Launch& launch, const Parallel& parallel, std::string_view schedule) {
  if (launch.framework != Framework::kAny && launch.zero > 1) {
    return "it has no ZeRO-" + std::to_string(launch.zero);
  }
  switch (launch.framework) {
    case Framework::kAny:
      break;
    case Framework::kMegatron:
      if (schedule == kCombined.name && parallel.ep < 2) {
        return "it overlaps pairs only with experts on several devices";
      }
      if (launch.optimizer == "adam-all-bf16") {
        return "it keeps parameters in fp32, too; take another `optimizer`";
      }
      if (!MomentsOf(launch.optimizer).empty() && launch.zero == 0) {
        return "it shortens moments only with ZeRO; take `optimizer` adam";
      }
      break;
    case Framework::kTorch:
      if (parallel.tp > 1) return "its stages are not split over tensor-parallel devices";
      if (parallel.cp > 1) return "it does not split sequences; fix cp=1";
      if (launch.fp8) return "train.py has no fp8; give `dtype` bf16";
      if (launch.optimizer != kAllBf16) {
        return "train.py has no other optimizer than " + std::string(kAllBf16);
      }
      break;
    case Framework::kTorchtitan:
      if (launch.fp8) return "its flags have no fp8; give `dtype` bf16";
      if (launch.tp_overlap && parallel.tp > 1) {
        return "it overlaps messages of tp only in compiled models; leave `tp_overlap` out";
      }
      if (launch.optimizer != "adam" && launch.optimizer != kAllBf16) {
        return "its flags have no such optimizer; take `optimizer` adam or " +
               std::string(kAllBf16);
      }
      if (launch.experts && parallel.ep < parallel.tp) return "its experts need ep >= tp";
      if (parallel.etp > 1) return "its experts are whole; fix etp=1";
      // Devices that share experts are those that shard all else.
      if (launch.zero == 0 && parallel.ep > parallel.tp) return "its ep needs ZeRO; fix less";
      break;
  }
  return "";
}

std::vector<LaunchFile> LaunchFiles(const Launch& launch, const Plan& plan,
                                    const std::string& folder) {
  switch (launch.framework) {
    case Framework::kAny:
      break;
    case Framework::kMegatron:
      return {{folder + "megatron.args", MegatronArguments(launch, plan)}};
    case Framework::kTorch:
      CheckRecompute(plan, false);
      CheckModules(plan);
      return {{folder + "train.py", WriteTrainScript(launch)}};
    case Framework::kTorchtitan:
      return TorchtitanFiles(launch, plan, folder);
  }
  return {};
}

std::string FlawFor(const Launch& launch, const Plan& plan) {
  try {
    LaunchFiles(launch, plan, "");
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace contraflow
