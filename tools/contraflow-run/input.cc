#include "tools/contraflow-run/input.h"

#include <link.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <utility>

#include "compiler/files/file.h"
#include "compiler/files/plan_io.h"
#include "compiler/plan/error.h"
#include "compiler/verify/verify.h"
#include "runtime/core/digest.h"
#include "runtime/core/executor.h"
#include "runtime/launch/world.h"
#include "runtime/model/model_json.h"
#include "tools/cli/options.h"

namespace contraflow {

namespace {

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
  const std::vector<Finding> findings = Verify(plan);
  if (findings.empty()) return;
  std::string text = path + ": the plan is not sound and is not executed:";
  for (const Finding& finding : findings) text += "\n  " + ToString(finding, plan);
  throw Error(text);
}

namespace {

void RequireExecutable(const Plan& plan, const std::string& path) {
  try {
    CheckExecutable(plan);
  } catch (const Error& error) {
    throw Error(path + ": " + error.what());
  }
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

void ReadRest(const RunOptions& options, RunInput* input) {
  input->model = ModelOf(options, input->plan);
  input->dataset = ReadDataset(options.data, input->model);
  input->dataset_digest = Hex(Sha256(input->dataset.bytes));
}

}  // namespace

RunInput ReadInput(const RunOptions& options) {
  RunInput input;
  input.plan = ReadPlanFile(options.plan);
  input.plan_digest =
      Hex(Sha256(IsFolder(options.plan) ? ReadRankFilesHead(options.plan) : WritePlan(input.plan)));
  RequireExecutable(input.plan, options.plan);
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
  RequireExecutable(head, options.plan);
  const RankOrder order(options.rank_order, head);
  // A job of another size is refused once all are there.
  const int device = process % order.processes();
  input.plan = ReadRankFile(options.plan, order.DeviceOf(device).rank).plan;
  ReadRest(options, &input);
  return input;
}

void RequireWritable(const RunOptions& options) {
  namespace fs = std::filesystem;
  const NamedFile trace = {"--trace", options.trace},
                  calibrate = {"--calibrate", options.calibrate};
  RefuseOverwrite(trace, {calibrate});
  for (const NamedFile& output : {trace, calibrate}) {
    const std::string& path = output.path;
    if (path.empty()) continue;
    RefuseOverwrite(output, {{"the plan", options.plan},
                             {"--data", options.data},
                             {"--model", options.model},
                             {"--secret-file", options.secret_file}});
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
