#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/core/check.h"
#include "runtime/core/run.h"
#include "runtime/host/reference_run.h"
#include "tools/contraflow-run/input.h"

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
  /// What was found so far beyond equal values, to follow "equal those without a pipeline, bit for
  /// bit"; "": nothing.
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

}  // namespace contraflow
