#include "tools/contraflow-run/job.h"

#include <unistd.h>

#include "compiler/plan/error.h"
#include "compiler/plan/text.h"
#include "runtime/checkpoint/manifest.h"
#include "runtime/core/bytes.h"
#include "runtime/host/run.h"
#include "runtime/launch/control.h"
#include "tools/cli/exit.h"
#include "tools/contraflow-run/output.h"
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

void Job::Move() {
  if (moves_) moves_();
}

bool Job::Barrier() { return control_ != nullptr && control_->Barrier(); }

std::string Job::AnyOf(const std::string& text) {
  std::string first;
  for (std::string& each : Gather(text)) {
    if (first.empty()) first = std::move(each);
  }
  return Broadcast(first);
}

void Job::Agree(const std::vector<Fact>& facts) {
  if (control_ == nullptr) return;
  std::vector<std::vector<Fact>> all;
  for (const std::string& bytes : Gather(WriteFacts(facts))) all.push_back(ReadFacts(bytes));
  const std::string difference = Broadcast(all.empty() ? "" : Disagreement(all, name_));
  // Nouns and values are what the others say.
  if (!difference.empty()) throw JobError(PlainText(difference));
}

namespace {

/// Neither stalled by who does not read stderr, nor steered by what other processes say.
void Warn(const std::string& text) {
  const std::string line = "warning: " + WithFlags(PlainText(text));
  try {
    static Output errors(STDERR_FILENO);
    errors.Say("contraflow-run: " + line + "\n");
  } catch (const Error&) {
    SayNow(line);
  }
}

bool Every(int steps, int step) { return steps > 0 && step % steps == 0; }

}  // namespace

CheckpointHead RunCheckpoints::HeadOf(int step, const std::string& algorithms) const {
  const Plan& plan = input_.plan;
  return {.step = step,
          .seed = options_.seed,
          .model = input_.model,
          .text = input_.dataset_digest,
          .schedule = plan.schedule,
          .ranks = plan.ranks,
          .stages = plan.stages,
          .microbatches = plan.microbatches,
          .data_parallel = plan.data_parallel,
          .expert_parallel = plan.expert_parallel,
          .algorithms = algorithms};
}

int RunCheckpoints::Begin(Run& run, RunCheck* check) {
  const std::string& folder = options_.checkpoint;
  if (!folder.empty()) {
    if (job_.leads()) lock_ = PrepareCheckpoints(folder);
    job_.Barrier();
    if (!options_.resume && job_.leads() && Checkpoint::Open(folder, std::nullopt)) {
      throw Error("`checkpoint` " + folder +
                  ": has checkpoints of an earlier training; use `resume` to continue it, or "
                  "another folder");
    }
    writer_.emplace(folder, options_.checkpoint_keep, job_, Warn, run.NewCopies());
    writer_->Prepare(StateToSave(input_.plan, run));
  }
  return options_.resume ? Resume(run, check) : 0;
}

int RunCheckpoints::Resume(Run& run, RunCheck* check) {
  const std::string& folder = options_.checkpoint;
  const std::optional<Checkpoint> checkpoint = Checkpoint::Open(folder, options_.resume_step);
  if (!checkpoint && options_.resume_step) {
    throw Error("`resume_step`: " + folder + " has no checkpoint of step " +
                std::to_string(*options_.resume_step));
  }
  const std::string found =
      checkpoint ? "that of step " + std::to_string(checkpoint->head().step) : "none";
  job_.Agree(
      {{"checkpoint in " + folder + " (all processes must see the same folder)", found, found}});
  if (!checkpoint) {
    note_ = "no checkpoint in " + folder + " yet: starting at step 1";
    return 0;
  }
  Note(checkpoint->head());
  WarnOfAlgorithms(checkpoint->head(), run.ChosenAlgorithms());
  checkpoint->RequireSame(options_.seed, input_.model, input_.dataset_digest);
  checkpoint->Load(WholeState(input_.plan, run));
  PutState(input_.plan, run);
  if (check != nullptr) {
    checkpoint->Load(check->State());
    check->Put();
  }
  return checkpoint->head().step;
}

void RunCheckpoints::Note(const CheckpointHead& head) {
  note_ = "resuming after step " + std::to_string(head.step);
  if (head.step >= options_.steps) {
    note_ += ": nothing is left to do, --steps is " + std::to_string(options_.steps);
  }
  const Plan& plan = input_.plan;
  std::string other;
  const auto compare = [&](const char* noun, int then, int now) {
    if (then == now) return;
    other += (other.empty() ? "" : ", ") + std::to_string(now) + " " + noun + " (were " +
             std::to_string(then) + ")";
  };
  compare("micro-batches", head.microbatches, plan.microbatches);
  compare("replicas", head.data_parallel, plan.data_parallel);
  compare("devices of an expert group", head.expert_parallel, plan.expert_parallel);
  // These decide what is trained on; schedule and ranks do not.
  if (!other.empty()) note_ += ", with other data than the run that made the checkpoint: " + other;
}

/// A CPU has no choices, and other bits than a GPU anyway.
void RunCheckpoints::WarnOfAlgorithms(const CheckpointHead& head, const std::string& here) const {
  if (options_.device != "cuda" || head.algorithms == here || !job_.leads()) return;
  Warn("the checkpoint of step " + std::to_string(head.step) +
       " was made with other algorithms of matrix products than this training has, which goes on "
       "with other bits; " +
       (head.algorithms.empty() ? "leave out --matmul-choices, as there"
                                : "give --matmul-choices the same file as there"));
}

bool RunCheckpoints::DueAfter(int step) const {
  return writer_ && Every(options_.checkpoint_every, step);
}

void RunCheckpoints::AfterStep(int step, bool last, Run& run) {
  if (!writer_) return;
  writer_->Poll();
  if ((last && step != saved_) || Every(options_.checkpoint_every, step)) {
    saved_ = step;
    writer_->Save(HeadOf(step, run.ChosenAlgorithms()), StateToSave(input_.plan, run));
  }
}

std::string RunCheckpoints::Finish() { return writer_ ? writer_->Finish() : ""; }

}  // namespace contraflow
