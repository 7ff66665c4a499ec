#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "compiler/plan/plan.h"
#include "runtime/core/progress.h"
#include "runtime/core/rank_order.h"
#include "runtime/gpu/run.h"
#include "runtime/gpu/serial_run.h"
#include "runtime/launch/control.h"
#include "runtime/model/dataset.h"
#include "runtime/nccl/links.h"
#include "runtime/nccl/nccl.h"
#include "runtime/stages/custom_stages.h"

namespace contraflow {

/// All that a process of a job needs to be one device of a plan on a GPU of its own, linked to the
/// others by NCCL. The arguments must outlive the run.
struct GpuProcess {
  const RankOrder& order;  ///< as many processes as the job has
  Gpu& gpu;
  Nccl& nccl;
  Control& control;  ///< its OnStop is taken until the end of the run
  Progress& progress;
  std::chrono::milliseconds timeout;  ///< for joining the others
};

/// That device. Process 0 gets what all of them did, and all begin a step together
/// (Control::Barrier), as their measured times count from there.
class GpuRank : public GpuDevices {
 public:
  /// The plan has lanes; `exchange` as of NcclLinks. All processes make one, which joins them over
  /// NCCL within the timeout. Throws Aborted when the job stops meanwhile. Unless it is closed,
  /// NCCL is aborted.
  GpuRank(const Plan& plan, const NcclExchange& exchange, const GpuProcess& process,
          const GpuRunOptions& options, const MakeGpuBackend& make);
  ~GpuRank() override;

 private:
  void Gather(std::vector<DeviceStep>* steps) override;

  const RankOrder& order_;
  Control& control_;
};

/// Trains with a plan on GPUs, as one process of a job.
class GpuProcessRun : public GpuRun {
 public:
  /// Like GpuRun and GpuRank.
  GpuProcessRun(const Plan& plan, const Model& model, const Dataset& dataset, uint64_t seed,
                const GpuProcess& process, const GpuRunOptions& options = {});
};

/// Trains custom stages with a plan on GPUs, as one process of a job.
class GpuCustomProcessRun : public GpuCustomRun {
 public:
  /// Like GpuCustomRun and GpuRank.
  GpuCustomProcessRun(const CustomStages& stages, const GpuProcess& process,
                      const GpuRunOptions& options = {});
};

/// Times that all processes measured, by DeviceNumber, on one clock: each begins its step at 0. A
/// message takes from when both of its ends were ready.
void JoinSpans(const Plan& plan, std::vector<DeviceStep>* steps);

}  // namespace contraflow
