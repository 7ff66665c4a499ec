#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/plan/error.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/core/run.h"
#include "runtime/launch/process_run.h"
#include "tools/cli/run_options.h"
#include "tools/contraflow-run/input.h"

namespace contraflow {

class Control;
class RunCheck;

/// What all processes of a job throw alike.
struct JobError : Error {
  using Error::Error;
};

/// The processes that train together: this one on its own, or those under a Control. All of them
/// make the same calls in the same order.
class Job {
 public:
  Job() = default;
  /// `name` is what a process is called.
  Job(Control* control, std::function<std::string(int process)> name)
      : control_(control), name_(std::move(name)) {}

  int process() const;
  int processes() const;
  /// Whether this is the process that reports.
  bool leads() const { return process() == 0; }

  /// Everybody's bytes, by process, for the one that leads; the others get nothing.
  std::vector<std::string> Gather(std::string_view bytes);
  /// Those of the one that leads, for all.
  std::string Broadcast(std::string_view bytes);
  void Barrier();
  /// Throws JobError, on every process with the same text, unless all have the same facts.
  void Agree(const std::vector<Fact>& facts);

 private:
  Control* control_ = nullptr;
  std::function<std::string(int process)> name_;
};

/// The checkpoints of a training. All processes of the job make the same calls.
class RunCheckpoints {
 public:
  /// What is passed must outlive it.
  RunCheckpoints(const RunOptions& options, const RunInput& input, Job& job)
      : options_(options), input_(input), job_(job) {}

  /// Prepares the folder, if there is one, and with --resume loads a checkpoint into the run and
  /// the check (may be null). Returns the last step that is done, 0 if none is. Throws Error if
  /// the checkpoint is damaged or of another training.
  int Begin(Run& run, RunCheck* check);
  /// What --resume found, as a line for the report; "" without it.
  const std::string& note() const { return note_; }

  /// Whether a checkpoint is to be made of a step; `last`: the training ends with it.
  bool Due(int step, bool last) const;
  void Save(int step, Run& run);

 private:
  void Note(const CheckpointHead* head);

  const RunOptions& options_;
  const RunInput& input_;
  Job& job_;
  std::string note_;
};

}  // namespace contraflow
