#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/plan/error.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/writer.h"
#include "runtime/host/run.h"
#include "runtime/launch/process_run.h"
#include "tools/cli/run_options.h"
#include "tools/contraflow-run/input.h"

namespace contraflow {

class Control;
class RunCheck;

/// Error that all processes of a job throw alike.
struct JobError : Error {
  using Error::Error;
};

/// The processes that train together: this one on its own, or those under a Control. All of them
/// make the same calls in the same order.
class Job : public Peers {
 public:
  Job() = default;
  /// `name` is what a process is called; `moves` tells the watch over the job that this one gets
  /// on.
  Job(Control* control, std::function<std::string(int process)> name, std::function<void()> moves)
      : control_(control), name_(std::move(name)), moves_(std::move(moves)) {}

  int process() const override;
  int processes() const override;
  /// Whether this is the process that reports.
  bool leads() const { return process() == 0; }

  std::vector<std::string> Gather(std::string_view bytes) override;
  std::string Broadcast(std::string_view bytes) override;
  void Move() override;
  /// Returns when all have come; on all whether one of them was asked to stop.
  bool Barrier();
  /// The first of their texts that is not empty, by number; "" if all are.
  std::string AnyOf(const std::string& text);
  /// Throws JobError, on every process with the same text, unless all have the same facts.
  void Agree(const std::vector<Fact>& facts);

 private:
  Control* control_ = nullptr;
  std::function<std::string(int process)> name_;
  std::function<void()> moves_;
};

/// The checkpoints of a training. All processes of the job make the same
/// calls.
class RunCheckpoints {
 public:
  /// All arguments must outlive it.
  RunCheckpoints(const RunOptions& options, const RunInput& input, Job& job)
      : options_(options), input_(input), job_(job) {}

  /// Prepares the folder, if there is one, and with --resume loads a checkpoint into the run and
  /// the check (may be null). Returns the last step that is done, 0 if none is. Throws Error if
  /// the checkpoint is damaged or of another training.
  int Begin(Run& run, RunCheck* check);
  /// Checkpoint that --resume found, as a line for the report; "" without it.
  const std::string& note() const { return note_; }

  /// True if a checkpoint is due after this step, which is not the last.
  bool DueAfter(int step) const;
  /// After every step: begins the checkpoints that are due; `last`: the training ends with it.
  void AfterStep(int step, bool last, Run& run);
  /// Waits for what is being written. Returns why the last checkpoint on disk was not made, "" if
  /// it was.
  std::string Finish();

 private:
  CheckpointHead HeadOf(int step, const std::string& algorithms) const;
  int Resume(Run& run, RunCheck* check);
  void Note(const CheckpointHead& head);
  void WarnOfAlgorithms(const CheckpointHead& head, const std::string& here) const;

  const RunOptions& options_;
  const RunInput& input_;
  Job& job_;
  std::unique_ptr<const FolderLock> lock_;
  std::optional<CheckpointWriter> writer_;
  std::string note_;
  int saved_ = 0;  ///< the last step of which a checkpoint was begun
};

}  // namespace contraflow
