#include "tools/contraflow-run/input.h"

#include <link.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "compiler/files/file.h"
#include "compiler/files/plan_io.h"
#include "compiler/plan/error.h"
#include "compiler/verify/verify.h"
#include "runtime/core/digest.h"
#include "runtime/core/executor.h"
#include "runtime/model/gpu_views.h"
#include "runtime/model/model_json.h"
#include "runtime/stages/custom_stages.h"
#include "tools/cli/options.h"

namespace contraflow {

namespace {

/// Largest size of a shared library of stages.
constexpr int64_t kMaxStagesBytes = int64_t{1} << 32;

uint64_t Padded(uint64_t size) { return (size + 3) & ~uint64_t{3}; }

/// Looks for the note NT_GNU_BUILD_ID in a segment of notes.
std::string FindBuildId(const char* notes, uint64_t size) {
  uint64_t at = 0;
  while (at + sizeof(ElfW(Nhdr)) <= size) {
    ElfW(Nhdr) note;
    std::memcpy(&note, notes + at, sizeof note);
    const uint64_t name = at + sizeof note;
    const uint64_t content = name + Padded(note.n_namesz);
    const uint64_t next = content + Padded(note.n_descsz);
    if (next > size) break;
    if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 &&
        std::memcmp(notes + name, "GNU", 4) == 0) {
      std::string text;
      for (uint64_t i = 0; i < note.n_descsz; ++i) {
        const auto byte = static_cast<unsigned char>(notes[content + i]);
        text += "0123456789abcdef"[byte >> 4];
        text += "0123456789abcdef"[byte & 15];
      }
      return text;
    }
    at = next;
  }
  return "";
}

/// The first object that is asked for is the program itself.
int TakeFirst(dl_phdr_info* info, size_t, void* result) {
  auto& id = *static_cast<std::string*>(result);
  for (int i = 0; i < info->dlpi_phnum && id.empty(); ++i) {
    const ElfW(Phdr)& segment = info->dlpi_phdr[i];
    if (segment.p_type != PT_NOTE) continue;
    const uint64_t address = info->dlpi_addr + segment.p_vaddr;
    id = FindBuildId(reinterpret_cast<const char*>(address), segment.p_filesz);
  }
  return 1;
}

}  // namespace

std::string BuildId() {
  std::string id;
  dl_iterate_phdr(TakeFirst, &id);
  return id.empty() ? "unknown" : id;
}

void RequireSoundPlan(const Plan& plan, const std::string& path) {
  // A rank's messages may share a queue here, whatever an imported plan is content with.
  const std::vector<Finding> findings = Verify(plan, Semantics::kRank);
  if (findings.empty()) return;
  std::string text = path + ": the plan is not sound and is not executed:";
  for (const Finding& finding : findings) text += "\n  " + ToString(finding, plan);
  if (plan.semantics != Semantics::kRank) {
    text +=
        "\n  (its messages, which were imported, need more than one queue per rank: import it "
        "with --remake-comm)";
  }
  throw Error(text);
}

namespace {

void RequireExecutable(const Plan& plan, const RunOptions& options) {
  try {
    if (options.stages.empty()) return CheckExecutable(plan);
    CheckCustom(plan);
  } catch (const Error& error) {
    throw Error(options.plan + ": " + error.what());
  }
}

Model ModelOf(const RunOptions& options, const Plan& plan) {
  Model model = ReadModel(options.model);
  if (options.capacity) model.capacity_factor = static_cast<float>(*options.capacity);
  if (options.lr) model.learning_rate = static_cast<float>(*options.lr);
  if (options.clip) model.clip = static_cast<float>(*options.clip);
  const bool gpu = options.device == "cuda";
  if (gpu && options.check) {
    try {
      FitModel(model, plan);
    } catch (const Error& error) {
      throw Error(std::string("`check`: computes on the host as well; leave it out, as ") +
                  error.what());
    }
  }
  model = gpu ? FitGpuModel(std::move(model), plan) : FitModel(std::move(model), plan);
  // Plans of components say themselves what their stages have.
  if (plan.layers == 0 && plan.costs) {
    try {
      model.partition = PartitionOf(model, plan.costs->partition);
    } catch (const Error& error) {
      throw Error(options.plan + ": " + error.what());
    }
  }
  return model;
}

Fact PlanFact(const std::string& path, const Plan& plan, const std::string& digest) {
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

std::string DigestOf(const Dataset& data) {
  Sha256Stream stream;
  data.Visit([&](std::span<const std::byte> bytes) { stream.Add(bytes); });
  return Hex(stream.Finish());
}

/// Reads the input other than the plan. Custom stages have neither a model nor a text of ours.
void ReadRest(const RunOptions& options, RunInput* input) {
  if (!options.stages.empty()) {
    input->stages_digest = Hex(Sha256(ReadFile(options.stages, kMaxStagesBytes)));
    return;
  }
  input->model = ModelOf(options, input->plan);
  input->dataset = ReadDataset(options.data, input->model);
  if (const std::optional<double> part = HeldOut(options)) {
    input->validation = HoldOut(*part, input->model, &input->dataset);
  } else if (!options.validation.empty()) {
    input->validation = ReadDataset(options.validation, input->model);
  }
  input->dataset_digest = DigestOf(input->dataset);
}

}  // namespace

RunInput ReadInput(const RunOptions& options) {
  RunInput input;
  input.plan = ReadPlanFile(options.plan);
  input.plan_digest =
      Hex(Sha256(IsFolder(options.plan) ? ReadRankFilesHead(options.plan) : WritePlan(input.plan)));
  RequireExecutable(input.plan, options);
  RequireSoundPlan(input.plan, options.plan);
  ReadRest(options, &input);
  return input;
}

bool ReadsOwnFile(const RunOptions& options) {
  // A run without a pipeline, and the lanes of GPUs, are made from all programs.
  return IsFolder(options.plan) && !options.check && options.device != "cuda";
}

RunInput ReadInputOf(const RunOptions& options, int process) {
  if (!ReadsOwnFile(options)) return ReadInput(options);
  RunInput input;
  input.plan_digest = Hex(Sha256(ReadRankFilesHead(options.plan)));
  const Plan head = ReadRankFilesPlan(options.plan);
  RequireExecutable(head, options);
  const RankOrder order(options.rank_order, head);
  // A job of another size is refused once all are there.
  const int device = process % order.processes();
  input.plan = ReadRankFile(options.plan, order.DeviceOf(device).rank).plan;
  ReadRest(options, &input);
  return input;
}

void RequireWritable(const RunOptions& options) {
  namespace fs = std::filesystem;
  const NamedFile trace = {"`trace`", options.trace},
                  calibrate = {"`calibrate`", options.calibrate},
                  jsonl = {"`jsonl`", options.jsonl},
                  matmuls = {"`matmul_choices`", options.matmul_choices};
  RefuseOverwrite(trace, {calibrate, jsonl});
  RefuseOverwrite(jsonl, {calibrate});
  RefuseOverwrite(matmuls, {trace, calibrate, jsonl});
  for (const NamedFile& output : {trace, calibrate, jsonl, matmuls}) {
    const std::string& path = output.path;
    if (path.empty()) continue;
    RefuseOverwrite(output, {{"the plan", options.plan},
                             {"`data`", options.data},
                             {"`validation`", options.validation},
                             {"`model`", options.model},
                             {"`secret_file`", options.secret_file}});
    std::error_code error;
    if (fs::is_directory(path, error)) {
      throw Error(path + ": cannot be written: is a folder; name a file");
    }
    const fs::path folder = fs::path(path).parent_path();
    if (access(folder.empty() ? "." : folder.c_str(), W_OK) != 0) {
      throw Error(path + ": cannot be written: " + std::generic_category().message(errno) +
                  "; does its folder exist?");
    }
  }
}

std::vector<Fact> FactsOf(const RunOptions& options, const RunInput& input) {
  const std::string build = "contraflow-run " CF_VERSION " (build " + BuildId() + ")";
  return {
      {"build", build, build},
      PlanFact(options.plan, input.plan, input.plan_digest),
      {"library of stages (--stages)", input.stages_digest + " " + options.stage_options,
       options.stages.empty() ? "none"
                              : options.stages + " (SHA-256 " + input.stages_digest.substr(0, 12) +
                                    ") with \"" + options.stage_options + "\""},
      ModelFact(input.model),
      {"text", input.dataset_digest,
       input.dataset.name + " (SHA-256 " + input.dataset_digest.substr(0, 12) + ")"},
      {"validation text (--validation)",
       input.validation
           ? DigestOf(*input.validation) + " " + std::to_string(options.validate_every) + " " +
                 std::to_string(options.validate_batches)
           : "",
       input.validation
           ? input.validation->name + ", every " + std::to_string(options.validate_every) + " steps"
           : "none"},
      {"seed", std::to_string(options.seed), std::to_string(options.seed)},
      NumberFact("number of steps (--steps)", options.steps),
      {"--rank-order", options.rank_order, options.rank_order},
      {"--transport", options.transport, options.transport},
      SwitchFact("--strict", options.strict),
      SwitchFact("--no-graph", !options.graph),
      SwitchFact("--one-sided", options.one_sided),
      SwitchFact("--matmul-choices", !options.matmul_choices.empty()),
      SwitchFact("--check", options.check),
      {"--checkpoint", options.checkpoint,
       options.checkpoint.empty() ? "none" : options.checkpoint},
      NumberFact("--checkpoint-every", options.checkpoint_every),
      SwitchFact("--resume", options.resume),
      NumberFact("--resume-step", options.resume_step.value_or(0)),
  };
}

}  // namespace contraflow
