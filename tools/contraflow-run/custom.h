#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/core/progress.h"
#include "runtime/launch/control.h"
#include "runtime/launch/custom_run.h"
#include "runtime/stages/custom_serial_run.h"
#include "runtime/stages/custom_stages.h"
#include "tools/cli/run_options.h"
#include "tools/contraflow-run/input.h"
#include "tools/contraflow-run/job.h"

namespace contraflow {

/// A training of custom stages (--stages), as one process sees it.
class CustomTraining {
 public:
  virtual ~CustomTraining() = default;

  virtual StepResult Step(int step) = 0;
  /// Those of this process.
  virtual const std::vector<Device>& devices() const = 0;
  virtual CustomDevice& At(Device device) = 0;
  /// What its stages' memory is read with, and what --check computes with.
  virtual CustomPlace& place() { return host_; }
  /// Behind the last step; all processes.
  virtual void Close() {}

 private:
  CustomPlace host_;
};

/// A process of a job, of which there are others.
struct CustomProcess {
  const RankOrder& order;
  Control& control;
  Progress& progress;
  std::function<std::string(int process)> name;
};
/// Makes it in every process; `process` is null where this is the only one.
using MakeCustomTraining = std::function<std::unique_ptr<CustomTraining>(
    const CustomStages& stages, const CustomProcess* process)>;

/// On the host: all devices are threads of this process, or it is one of them.
MakeCustomTraining OnHost(const RunOptions& options);

/// Trains and reports; all processes of the job. Returns the exit code. Throws JobError if --check
/// found a difference.
int TrainCustom(const RunOptions& options, const RunInput& input, const MakeCustomTraining& make,
                bool on_gpu, const CustomProcess* process, Job& job);

}  // namespace contraflow
