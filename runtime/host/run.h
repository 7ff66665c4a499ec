#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "compiler/plan/plan.h"
#include "compiler/plan/timeline.h"
#include "runtime/core/devices.h"
#include "runtime/core/digest.h"
#include "runtime/core/step.h"
#include "runtime/host/stage.h"
#include "runtime/model/dataset.h"
#include "runtime/model/state.h"

namespace contraflow {

/// A training with a plan, as one process sees it.
class Run {
 public:
  virtual ~Run() = default;

  /// One step; steps count from 1. All processes of the run call it. The result is complete in
  /// process 0, elsewhere it has no losses and no timeline. After an error the run cannot go on.
  virtual StepResult Step(int step) = 0;
  /// Called before Step(step - 1): allows `step` to begin before that one is done. Returns whether
  /// it will; then Step(step) has to follow it, with nothing between that asks for the state, and
  /// makes no update if the one before fails. All processes of the run call it, and get the same.
  virtual bool BeginAhead(int /*step*/) { return false; }
  /// Which algorithms it computes by where they were chosen, as a digest: other ones may give other
  /// bits. "": none were.
  virtual std::string ChosenAlgorithms() const { return ""; }
  /// The devices that this process has.
  virtual const std::vector<Device>& devices() const = 0;
  /// One of them, as long as the run.
  virtual StageHolder& At(Device device) = 0;
  /// For one who saves the state (StateToSave) during the steps, as long as the run; null: it is in
  /// the host's memory. Asked for before the first step.
  virtual StateCopies* NewCopies() { return nullptr; }
};

/// A copy of a stage that this process has.
struct StageCopy {
  int stage;
  Device device;
  bool first;  ///< whether the device's rank is the first that holds the stage
  Stage* held;
};
/// Stage by stage.
std::vector<StageCopy> CopiesOf(const Plan& plan, Run& run);

/// State of a run that this process saves: over all processes every block of the model exactly
/// once. Among the copies of a stage, that is the one of replica 0 on its first holder; of
/// parameters that every member of an expert group has, member 0's.
std::vector<StateBlock> SavedState(const Plan& plan, Run& run);
/// Like SavedState, where it is (StageHolder::StateAt), for who has copies of the run (NewCopies).
std::vector<StateBlock> StateToSave(const Plan& plan, Run& run);

/// Everything that this process has of a run, every copy of it.
std::vector<StateBlock> WholeState(const Plan& plan, Run& run);

/// Makes changes to the state hold from now on.
void PutState(const Plan& plan, Run& run);

/// The mean loss of the first `batches` steps on a text held out, forward only: the plan is walked
/// as in a step, but what is not forward is left out. The same for all runs whose steps have the
/// same micro-batches; 0 where the result of a step is not known. All processes call it.
double Validate(const Dataset& text, int batches, int step, Run& run);

/// SHA-256 of the parameters of each block, by name.
std::map<std::string, Digest> ParameterDigests(const std::vector<StateBlock>& blocks);

}  // namespace contraflow
