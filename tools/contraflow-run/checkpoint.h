#pragma once

#include <string>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/core/run.h"
#include "tools/contraflow-run/check.h"
#include "tools/contraflow-run/input.h"
#include "tools/contraflow-run/job.h"
#include "tools/contraflow-run/options.h"

namespace contraflow {

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
