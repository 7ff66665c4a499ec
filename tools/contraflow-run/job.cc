#include "tools/contraflow-run/job.h"

#include <filesystem>
#include <optional>
#include <vector>

#include "compiler/plan/error.h"
#include "runtime/core/run.h"
#include "runtime/launch/control.h"
#include "tools/contraflow-run/training.h"

namespace contraflow {

int Job::process() const { return control_ == nullptr ? 0 : control_->rank(); }

int Job::processes() const { return control_ == nullptr ? 1 : control_->size(); }

std::vector<std::string> Job::Gather(std::string_view bytes) {
  if (control_ != nullptr) return control_->Gather(bytes);
  return {std::string(bytes)};
}

std::string Job::Broadcast(std::string_view bytes) {
  return control_ != nullptr ? control_->Broadcast(bytes) : std::string(bytes);
}

void Job::Barrier() {
  if (control_ != nullptr) control_->Barrier();
}

void Job::Agree(const std::vector<Fact>& facts) {
  if (control_ == nullptr) return;
  std::vector<std::vector<Fact>> all;
  for (const std::string& bytes : Gather(WriteFacts(facts))) all.push_back(ReadFacts(bytes));
  const std::string difference = Broadcast(all.empty() ? "" : Disagreement(all, name_));
  if (!difference.empty()) throw JobError(difference);
}

int RunCheckpoints::Begin(Run& run, RunCheck* check) {
  const std::string& folder = options_.checkpoint;
  if (folder.empty()) return 0;
  if (job_.leads()) PrepareCheckpoints(folder);
  job_.Barrier();
  if (!options_.resume) {
    if (job_.leads() && Checkpoint::Open(folder, std::nullopt)) {
      throw Error("--checkpoint " + folder +
                  ": has checkpoints of an earlier training; use --resume to go on from them, or "
                  "another folder");
    }
    return 0;
  }
  const std::optional<Checkpoint> checkpoint = Checkpoint::Open(folder, options_.resume_step);
  if (!checkpoint && options_.resume_step) {
    throw Error("--resume-step: " + folder + " has no checkpoint of step " +
                std::to_string(*options_.resume_step));
  }
  const std::string found =
      checkpoint ? "that of step " + std::to_string(checkpoint->head().step) : "none";
  job_.Agree(
      {{"checkpoint in " + folder + " (all processes must see the same folder)", found, found}});
  Note(checkpoint ? &checkpoint->head() : nullptr);
  if (!checkpoint) return 0;
  checkpoint->RequireSame(options_.seed, input_.model, input_.dataset_digest);
  checkpoint->Load(WholeState(input_.plan, run));
  PutState(input_.plan, run);
  if (check != nullptr) {
    checkpoint->Load(check->State());
    check->Put();
  }
  return checkpoint->head().step;
}

void RunCheckpoints::Note(const CheckpointHead* head) {
  if (head == nullptr) {
    note_ = "no checkpoint in " + options_.checkpoint + " yet: begins with step 1";
    return;
  }
  note_ = "goes on behind step " + std::to_string(head->step);
  if (head->step >= options_.steps) {
    note_ += ": nothing is left to do, as --steps is " + std::to_string(options_.steps);
  }
  const Plan& plan = input_.plan;
  std::string other;
  const auto compare = [&](const char* noun, int then, int now) {
    if (then == now) return;
    other += (other.empty() ? "" : ", ") + std::to_string(now) + " " + noun + " (were " +
             std::to_string(then) + ")";
  };
  compare("micro-batches", head->microbatches, plan.microbatches);
  compare("replicas", head->data_parallel, plan.data_parallel);
  compare("devices of an expert group", head->expert_parallel, plan.expert_parallel);
  // These decide what is trained on; schedule and ranks do not.
  if (!other.empty()) note_ += ", on other data than the run that made the checkpoint: " + other;
}

bool RunCheckpoints::Due(int step, bool last) const {
  if (options_.checkpoint.empty()) return false;
  return last || (options_.checkpoint_every > 0 && step % options_.checkpoint_every == 0);
}

void RunCheckpoints::Save(int step, Run& run) {
  const std::string& folder = options_.checkpoint;
  if (job_.leads()) BeginCheckpoint(folder, step);
  job_.Barrier();
  const std::vector<std::string> shards =
      job_.Gather(WriteShard(folder, step, job_.process(), SavedState(input_.plan, run)));
  if (job_.leads()) {
    const Plan& plan = input_.plan;
    const CheckpointHead head = {.step = step,
                                 .seed = options_.seed,
                                 .model = input_.model,
                                 .text = input_.dataset_digest,
                                 .schedule = plan.schedule,
                                 .ranks = plan.ranks,
                                 .stages = plan.stages,
                                 .microbatches = plan.microbatches,
                                 .data_parallel = plan.data_parallel,
                                 .expert_parallel = plan.expert_parallel};
    CommitCheckpoint(folder, head, shards, options_.checkpoint_keep);
  }
  job_.Barrier();
}

}  // namespace contraflow
