#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "compiler/files/json.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/host/check.h"
#include "runtime/host/reference_run.h"
#include "runtime/host/run.h"
#include "tools/cli/run_options.h"
#include "tools/contraflow-run/calibration.h"
#include "tools/contraflow-run/input.h"
#include "tools/contraflow-run/job.h"
#include "tools/contraflow-run/layer_times.h"
#include "tools/contraflow-run/output.h"
#include "tools/contraflow-run/step_log.h"
#include "tools/contraflow-run/stragglers.h"
#include "tools/contraflow-run/times.h"

namespace contraflow {

/// The same training without a pipeline, and how --check compares with it.
class RunCheck {
 public:
  virtual ~RunCheck() = default;

  /// Does the step that `run` has just done too, and compares.
  virtual Comparison Compare(int step, const StepResult& result, Run& run) = 0;
  /// Its state, for a checkpoint to load; Put: what was loaded holds from now on.
  virtual std::vector<StateBlock> State() = 0;
  virtual void Put() {}
  /// Findings so far beyond equal values, to follow "equal those without a pipeline, bit for bit";
  /// "": none.
  virtual std::string Note() const { return ""; }
};

/// On the host.
class HostCheck : public RunCheck {
 public:
  /// The input must outlive it. `moves` is called now and then; may be empty.
  HostCheck(const RunInput& input, uint64_t seed, std::function<void()> moves);

  Comparison Compare(int step, const StepResult& result, Run& run) override;
  std::vector<StateBlock> State() override;

 private:
  const RunInput& input_;
  ReferenceRun reference_;
};

/// One training with everything that is said about it on the way and at the end, by the process of
/// the job that leads.
class Training {
 public:
  /// How it and who watches over it work together.
  struct Watch {
    /// May become a signal's number, to end the training after the step under way; null: nothing
    /// does that.
    const std::atomic<int>* stop = nullptr;
    /// Called now and then during what is not in the plan, but takes its time; may be empty.
    std::function<void()> moves;
  };

  /// All arguments must outlive it. `check` is what --check compares with; null without.
  Training(const RunOptions& options, const RunInput& input, Run& run, RunCheck* check, Job& job,
           Watch watch);

  /// Returns the exit code: kExitStopped if it was asked to stop before the last step, kExitInput
  /// if the report could not be written. Throws JobError if --check found a difference, after the
  /// report.
  int Train();

 private:
  bool Stopped() const { return watch_.stop != nullptr && *watch_.stop != 0; }
  bool MeasureParts();
  bool ValidatesAfter(int step) const;
  bool MayBeginAhead(int step) const;
  void Step(int step);
  void Check(int step);
  void Tell(int step, std::optional<double> validation);
  Json RowOf(int step, double seconds, double tokens, std::optional<double> validation);
  double FlopsOfToken() const;
  void GatherEnd();
  void Calibrate();
  int64_t ParameterCount() const;
  int64_t TokensOfStep() const;
  std::string Dropped(int64_t dropped) const;
  std::string Devices() const;
  std::string Heading() const;
  int SharedCores() const;
  std::vector<Straggler> SlowRanks() const;
  std::string Summary();
  std::string Document();

  const RunOptions& options_;
  const RunInput& input_;
  const Plan& plan_;
  const Model& model_;
  Run& run_;
  RunCheck* const check_;
  Job& job_;
  const Watch watch_;
  RunCheckpoints checkpoints_;
  std::optional<Output> output_, progress_;  // where it leads; the latter for --json on a terminal
  ComparedTimes times_;
  Calibration calibration_;  // of the same steps as times_.measured
  Replay replay_;            // of the same steps
  Stragglers stragglers_;    // of the same steps
  bool asked_ = false;       // to stop before the last step
  bool begun_ = false;       // whether the step after the one under way has begun too
  StepResult last_;
  int timed_ = 0;               // the last step of which times are known; 0: none
  Timeline timeline_;           // of that
  Json steps_ = Json::array();  // for --json
  std::optional<StepFile> file_;
  LossPlot plot_;
  int first_ = 1;         // step that this training began with
  int done_ = 0;          // the last step that is done
  int64_t compared_ = 0;  // by this process, and at the end by all
  int64_t dropped_ = 0;
  std::string difference_;
  std::string weights_;  // their digest at the end
  std::vector<RankArenas> arenas_;
  std::vector<RankParts> parts_;  // for --calibrate
};

}  // namespace contraflow
