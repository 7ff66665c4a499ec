#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "compiler/files/file.h"
#include "compiler/files/json.h"
#include "compiler/files/plan_io.h"
#include "compiler/plan/error.h"
#include "compiler/plan/spec.h"
#include "compiler/plan/text.h"
#include "compiler/plan/units.h"
#include "tools/interop/launch.h"
#include "tools/planner/estimate.h"
#include "tools/planner/planner.h"
#include "tools/report/report.h"
#include "tools/report/text.h"

namespace contraflow {
namespace {

std::string Rounded(double value, double scale) {
  return FormatReal(std::round(value * scale) / scale);
}

/// "compute 84 %, drain 9 %".
std::string LimitsOf(const PlannerRow& row) {
  std::string text;
  for (size_t i = 0; i < std::min<size_t>(2, row.parts.size()); ++i) {
    const auto& [name, share] = row.parts[i];
    text += (text.empty() ? "" : ", ") + name + " " + Rounded(share * 100, 1) + " %";
  }
  return text;
}

/// Largest part of the step other than compute; "compute" if all others are less than a tenth.
std::string LimitOf(const PlannerRow& row) {
  for (const auto& [name, share] : row.parts) {
    if (name != "compute" && share >= 0.1) return name;
  }
  return "compute";
}

/// Names the GPUs whose work the efficiencies are of.
std::string MeasuredOn(const PlanRequest& request) {
  const MeasuredShares& own = request.gpu.shares;
  const bool some = !(request.fp8 ? own.fp8 : own.bf16).empty();
  return some ? request.gpu.name + ", where it has its own, H100 and H800" : "H100 and H800";
}

constexpr const char* kTpOverlaps = "messages of tp overlap matmuls, all but one part of tp";
constexpr const char* kTpWaits =
    "messages of tp and matmuls wait for each other; --tp-overlap where the framework overlaps "
    "them";

std::string ActivationsText(Activations activations) {
  switch (activations) {
    case Activations::kIdeal:
      return "fused kernels keep them, which is less than frameworks do";
    case Activations::kMegatron:
      return "Megatron-LM keeps them";
    case Activations::kTorch:
      break;
  }
  return "PyTorch keeps them without fused kernels";
}

std::string AllToAllText(const PlanRequest& request) {
  std::string text = "all-to-alls overlap with compute as components do";
  if (request.waits()) text = "every all-to-all is waited for";
  if (!request.overlap().empty()) text = "all-to-alls overlap with compute in F&B pairs alone";
  return text + "; tokens spread evenly over experts";
}

std::vector<std::string> AssumptionsOf(const PlanRequest& request) {
  const CostSetup setup = request.SetupOf({});
  std::string efficiency;
  for (size_t kind = 0; kind < kWorkKinds; ++kind) {
    efficiency += (efficiency.empty() ? "" : ", ") +
                  std::string(Name(static_cast<WorkKind>(kind))) + " " +
                  Rounded(setup.efficiency[kind], 1000);
  }
  std::vector<std::string> lines = {
      "GPU " + request.gpu.name + ": " + FormatBytes(request.gpu.memory) + ", matmuls in " +
          (request.fp8 ? "fp8" : "bf16") + "; " +
          (request.workspace == 0 ? "no memory is" : FormatBytes(request.workspace) + " are") +
          " set aside for libraries and fragments",
      "efficiencies, measured on " + MeasuredOn(request) +
          (request.scaled_by.empty() ? "" : " and scaled") + ": " + efficiency,
      "MFU: forward and backward FLOPs without recompute, by the GPU's " +
          std::string(request.fp8 ? "fp8" : "bf16") + " peak",
      AllToAllText(request),
      request.tp_overlap ? kTpOverlaps : kTpWaits,
      "optimizer " + std::string(request.optimizer->name) + ": " +
          std::to_string(request.optimizer->of_matrices) + " bytes a parameter (" +
          std::string(request.optimizer->text) + "), gradients of " +
          std::to_string(request.optimizer->gradient) + "; activations as " +
          ActivationsText(request.activations)};
  const auto zero = request.fixed.find("zero");
  const bool fixed_zero = zero != request.fixed.end();
  if (!fixed_zero) {
    lines.push_back(
        "ZeRO-1 where replicas share parameters: in these costs it is never longer than ZeRO-0");
  } else if (zero->second >= 2) {
    lines.push_back(
        "ZeRO-" + std::to_string(zero->second) +
        ": gradients are summed once a step; to sum them after each micro-batch" +
        (zero->second == 3 ? ", and to gather parameters of more than two stages a rank" : "") +
        ", takes time that is not in the step");
  }
  lines.push_back(
      "not looked at: " + std::string(fixed_zero ? "" : "ZeRO-2 and ZeRO-3 without --fix, ") +
      "offloading, cp for parts below 4096 tokens");
  if (!request.scaled_by.empty()) {
    lines.push_back("efficiencies are " + Rounded(request.scale, 1000) +
                    " times as high: " + request.scaled_by);
  }
  if (!request.model.unread.empty()) lines.push_back("not in the costs: " + request.model.unread);
  for (const std::string& note : request.model.notes) lines.push_back(note);
  return lines;
}

/// Why the second row is longer than the first, from the largest difference in its parts.
std::string WhyNot(const PlanRequest& request, const std::vector<PlannerRow>& rows) {
  if (rows.size() < 2) return "";
  const PlannerRow &best = rows[0], &next = rows[1];
  const auto time = [](const PlannerRow& row, const std::string& name) {
    for (const auto& [part, share] : row.parts) {
      if (part == name) return share * static_cast<double>(row.step);
    }
    return 0.0;
  };
  std::string most;
  double difference = 0;
  for (const auto& [name, share] : next.parts) {
    const double more = time(next, name) - time(best, name);
    if (more > difference) {
      difference = more;
      most = name;
    }
  }
  const double longer = static_cast<double>(next.step) / static_cast<double>(best.step) - 1;
  std::string text = "row 2 takes " + FormatPercent(longer) + " longer";
  if (most.empty()) return text;
  return text + ": most of all " +
         FormatWithUnit(static_cast<Time>(difference), Unit::kNanoseconds) + " more " + most +
         " on the average rank of " + std::to_string(request.gpus / next.configuration.pp) +
         " GPUs";
}

/// "auto (v)": a searched schedule with its placement.
std::string ScheduleOf(const PlannerRow& row) {
  const std::optional<Provenance>& provenance = row.plan.provenance;
  return row.schedule + (provenance ? " (" + provenance->placement + ")" : "");
}

/// "none" too where a plan that might recompute does not.
std::string RecomputeOf(const PlannerRow& row) {
  return RecomputedCells(row.plan).any() ? row.recompute : "none";
}

/// Says how little memory the first row leaves for libraries and fragments; "" if some was set
/// aside, or there is a twentieth.
std::string RoomText(const PlanRequest& request, const std::vector<PlannerRow>& rows) {
  if (rows.empty() || request.workspace > 0 || request.gpu.memory <= 0) return "";
  const int64_t left = request.gpu.memory - rows.front().memory.total();
  if (left >= request.gpu.memory / 20) return "";
  return "row 1 leaves " + FormatBytes(std::max<int64_t>(0, left)) + " of " +
         FormatBytes(request.gpu.memory) +
         " for CUDA, communicators and fragments; --workspace 4GB sets some aside";
}

/// Counts the configurations that were compiled and those that were not, by reason.
std::string CountsText(const PlanRequest& request, const PlannerResult& result) {
  const Rejected& rejected = result.rejected;
  std::string reasons;
  const auto count = [&](int number, const std::string& reason) {
    if (number > 0)
      reasons += (reasons.empty() ? "; not: " : ", ") + FormatCount(number) + " " + reason;
  };
  count(rejected.shape, "that do not divide");
  count(rejected.framework, "that " + std::string(Name(request.framework)) + " does not run");
  count(rejected.memory, "over the memory");
  count(rejected.bound, "proven longer");
  count(rejected.budget, std::string("guessed to be longer, for which ") +
                             (result.interrupted ? "there was no time" : "--budget had no time"));
  return "compiled " + Counted(result.compiled, "configuration") + reasons +
         (result.interrupted ? "; these rows are the best so far"
                             : "; more of --budget improves the rows, too");
}

Json MemoryJson(const PlannerRow& row) {
  Json memory = Json::object();
  for (const MemoryKind& kind : MemoryKinds(row.memory, row.plan.level)) {
    memory[std::string(kind.key)] = kind.bytes;
  }
  return memory;
}

}  // namespace

std::string CompileLine(const PlannerRow& row, const std::string& costs,
                        const std::string& output) {
  const Configuration& c = row.configuration;
  std::string line = "contraflow compile --schedule " + row.schedule + " --ranks " +
                     std::to_string(c.pp) + " --microbatches " + std::to_string(c.microbatches);
  if (row.chunks > 0) line += " --chunks " + std::to_string(row.chunks);
  if (!row.target.empty()) line += " --for " + row.target;
  if (!row.overlap.empty()) line += " --overlap " + row.overlap;
  if (c.replicas() > 1) line += " --data-parallel " + std::to_string(c.replicas());
  line += " --costs " + costs;
  if (c.zero > 0) line += " --zero " + std::to_string(c.zero);
  if (row.recompute != "none") line += " --recompute " + row.recompute;
  if (row.schedule == "auto") line += " --budget " + std::to_string(row.budget / 1'000'000) + "ms";
  return line + " -o " + output;
}

std::vector<std::string> WriteRow(const PlanRequest& request, const PlannerRow& row,
                                  const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw Error(folder + ": cannot be made: " + error.message());
  const std::string at = folder.ends_with('/') ? folder : folder + "/";
  WriteFile(at + "costs.json", PlannerCosts(request).TextOf(row.configuration));
  WritePlanFile(at + "plan.json", row.plan);
  WriteFile(at + "command.txt",
            CompileLine(row, ShellWord(at + "costs.json"), ShellWord(at + "plan.json")) + "\n");
  const auto files = LaunchFiles(request.LaunchOf(row.configuration), row.plan, at);
  for (const LaunchFile& file : files) WriteFile(file.path, file.text);
  std::vector<std::string> others;
  for (const std::string_view name : kLaunchNames) {
    const std::string path = at + std::string(name);
    if (std::ranges::count(files, path, &LaunchFile::path) == 0 &&
        std::filesystem::exists(path, error))
      others.emplace_back(name);
  }
  return others;
}

std::string WriteBrief(const PlannerRow& row) {
  const Configuration& c = row.configuration;
  return "tp " + std::to_string(c.tp) + (c.cp > 1 ? " cp " + std::to_string(c.cp) : "") + " ep " +
         std::to_string(c.ep) + " pp " + std::to_string(c.pp) + " dp " + std::to_string(c.dp) +
         ", " + row.schedule + ": " + FormatWithUnit(row.step, Unit::kNanoseconds);
}

std::string WritePlans(const PlanRequest& request, const PlannerResult& result) {
  Table table = {
      .columns = {">tp", ">cp", ">ep", ">etp", ">pp", ">dp", ">mb", ">M", "recompute", ">zero",
                  "schedule", ">step", ">tokens/s/GPU", ">MFU", ">memory", "limited by"},
      .rows = {}};
  for (const PlannerRow& row : result.rows) {
    const Configuration& c = row.configuration;
    table.rows.push_back(
        {std::to_string(c.tp), std::to_string(c.cp), std::to_string(c.ep), std::to_string(c.etp),
         std::to_string(c.pp), std::to_string(c.dp), std::to_string(c.micro_batch),
         std::to_string(c.microbatches), RecomputeOf(row), std::to_string(c.zero), ScheduleOf(row),
         FormatWithUnit(row.step, Unit::kNanoseconds), Rounded(row.tokens_per_second_per_gpu, 1),
         FormatPercent(row.mfu), FormatBytes(row.memory.total()), LimitsOf(row)});
  }
  std::string text = FormatTable(table) + "\n";
  if (const std::string why = WhyNot(request, result.rows); !why.empty()) text += why + "\n";
  if (const std::string room = RoomText(request, result.rows); !room.empty()) text += room + "\n";
  text +=
      "mb sequences a micro-batch, M micro-batches of each of dp replicas; memory of the "
      "fullest rank's GPU\n";
  text += CountsText(request, result) + "\n";
  for (const std::string& line : AssumptionsOf(request)) text += "assumed: " + line + "\n";
  return text;
}

std::string PlansToJson(const PlanRequest& request, const PlannerResult& result) {
  Json document = Json::object();
  Json& rows = document["rows"] = Json::array();
  for (const PlannerRow& row : result.rows) {
    const Configuration& c = row.configuration;
    Json each = Json::object();
    each["tp"] = c.tp;
    each["cp"] = c.cp;
    each["ep"] = c.ep;
    each["etp"] = c.etp;
    each["pp"] = c.pp;
    each["dp"] = c.dp;
    each["micro_batch"] = c.micro_batch;
    each["microbatches"] = c.microbatches;
    each["recompute"] = RecomputeOf(row);
    each["zero"] = c.zero;
    each["schedule"] = row.schedule;
    each["chunks"] = row.plan.stages / row.plan.ranks;
    each["partition"] = FormatPartition(row.plan.costs->partition);
    each["step"] = static_cast<double>(row.step) / 1e9;
    each["tokens_per_second_per_gpu"] = row.tokens_per_second_per_gpu;
    each["mfu"] = row.mfu;
    each["memory"] = MemoryJson(row);
    each["limited_by"] = LimitOf(row);
    each["bound"] = static_cast<double>(row.bound) / 1e9;
    rows.push_back(std::move(each));
  }
  document["interrupted"] = result.interrupted;
  document["assumptions"] = AssumptionsOf(request);
  const Rejected& rejected = result.rejected;
  document["rejected"] = {{"memory", rejected.memory},
                          {"shape", rejected.shape},
                          {"bound", rejected.bound},
                          {"budget", rejected.budget},
                          {"framework", rejected.framework}};
  return FormatJson("plan", document);
}

}  // namespace contraflow
