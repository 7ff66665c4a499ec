#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "compiler/plan/error.h"
#include "kernels/attention/attention.h"
#include "kernels/gpu/stream.h"
#include "runtime/exec/cuda_gpu.h"
#include "runtime/exec/gpu.h"
#include "runtime/exec/step_watch.h"
#include "runtime/gpu/check.h"
#include "runtime/launch/gpu_process_run.h"
#include "runtime/nccl/library.h"
#include "tools/cli/exit.h"
#include "tools/contraflow-run/custom.h"
#include "tools/contraflow-run/output.h"
#include "tools/contraflow-run/train.h"

namespace contraflow {
namespace {

/// Compares with the same GPU bit for bit, and with the host, where this process is to, as closely
/// as bf16 allows.
class GpuCheck : public RunCheck {
 public:
  GpuCheck(const RunOptions& options, const RunInput& input,
           std::unique_ptr<GpuSerialRun> reference, bool with_host, std::function<void()> moves)
      : plan_(input.plan), reference_(std::move(reference)) {
    if (!with_host) return;
    host_.emplace(input.plan, input.model, input.dataset, options.seed);
    host_->OnMove(std::move(moves));
  }

  Comparison Compare(int step, const StepResult& result, Run& run) override {
    GpuComparison found =
        CompareGpuStep(plan_, step, result, run, *reference_, host_ ? &*host_ : nullptr);
    if (found.largest > largest_) largest_ = found.largest;
    return {found.values, std::move(found.difference)};
  }
  /// The host begins every step with the weights of the GPU, and has none of its own to load.
  std::vector<StateBlock> State() override { return WholeState(plan_, *reference_); }
  void Put() override { PutState(plan_, *reference_); }
  std::string Note() const override {
    char text[96];
    std::snprintf(text, sizeof text, "; losses and gradients are within %.1e of the host's",
                  largest_);
    return host_ ? text : "";
  }

 private:
  const Plan& plan_;
  const std::unique_ptr<GpuSerialRun> reference_;
  std::optional<ReferenceRun> host_;
  double largest_ = 0;
};

GpuRunOptions GpuOptionsOf(const RunOptions& options) {
  GpuRunOptions gpu;
  gpu.graph = options.graph;
  gpu.stamps = options.stamps;
  gpu.partition_sms = options.partition_sms;
  gpu.one_sided = options.one_sided;
  gpu.matmul_choices = options.matmul_choices;
  return gpu;
}

GpuRunOptions WithTimeout(const RunOptions& options) {
  GpuRunOptions gpu = GpuOptionsOf(options);
  gpu.timeout = Milliseconds(options.timeout);
  return gpu;
}

/// Number of GPUs.
int RequireDevices() {
  std::string why;
  const int devices = CudaDeviceCount(&why);
  if (devices > 0) return devices;
  throw Error("`device` cuda: no CUDA device: " + why + "; use `device` cpu");
}

/// Says what computes attention, and why not cuDNN.
void SayKernels(const RunInput& input, const Gpu& gpu) {
  const int members = input.plan.expert_parallel;
  const LayerShape n(input.model, members, input.model.experts / members);
  const gpu::Attention chosen({n.batch, n.sequence, n.heads, n.head_width}, gpu.sms());
  SayNow("attention: " + chosen.Report());
}

/// All devices of the plan on the first GPU.
int TrainVirtually(const RunOptions& options) {
  RequireWritable(options);
  const RunInput input = ReadInput(options);
  const std::unique_ptr<Gpu> gpu = NewCudaGpu(0);
  GpuRun run(input.plan, input.model, input.dataset, options.seed, *gpu, WithTimeout(options));
  SayKernels(input, *gpu);
  std::optional<GpuCheck> check;
  if (options.check) {
    check.emplace(options, input, run.NewSerialRun(), true, std::function<void()>());
  }
  try {
    return TrainAlone(options, input, run, check ? &*check : nullptr);
  } catch (const GpuHang&) {
    // Destructors would wait for the GPU for ever: memory, streams and contexts are given back when
    // it is done. The end of the process takes all of them.
    EndAtOnce("contraflow-run", std::current_exception());
  }
}

/// All that a run on a GPU needs, which outlives it.
struct OwnedGpu {
  std::unique_ptr<Gpu> of;
  std::unique_ptr<Nccl> nccl;  // between processes
};

/// Custom stages on a GPU: all devices of the plan, or one.
template <typename Run>
class GpuCustomTraining : OwnedGpu, public Run {
 public:
  template <typename... Arguments>
  explicit GpuCustomTraining(OwnedGpu owned, Arguments&&... arguments)
      : OwnedGpu(std::move(owned)), Run(std::forward<Arguments>(arguments)...) {}

  StepResult Step(int step) override try { return Run::Step(step); } catch (const GpuHang&) {
    EndAtOnce("contraflow-run", std::current_exception());
  }
};

/// The GPU of this machine that a process of a job gets.
MakeCustomTraining CustomOnGpu(const RunOptions& options, int device) {
  return [&options, device](const CustomStages& stages,
                            const HostProcess* process) -> std::unique_ptr<CustomTraining> {
    OwnedGpu gpu{NewCudaGpu(device), nullptr};
    Gpu& of = *gpu.of;
    if (process == nullptr) {
      return std::make_unique<GpuCustomTraining<GpuCustomRun>>(std::move(gpu), stages, of,
                                                               WithTimeout(options));
    }
    gpu.nccl = std::make_unique<NcclLibrary>();
    const GpuProcess with = {process->order,    of,
                             *gpu.nccl,         process->control,
                             process->progress, Milliseconds(options.timeout)};
    return std::make_unique<GpuCustomTraining<GpuCustomProcessRun>>(std::move(gpu), stages, with,
                                                                    GpuOptionsOf(options));
  };
}

/// One device of a job, on one of the GPUs of its machine.
class NcclRun : public LaunchedRun {
 public:
  NcclRun(const RunOptions& options, const RunInput& input, const RankOrder& order, int device,
          Control& control, Progress& progress)
      : gpu_(NewCudaGpu(device)),
        run_(input.plan, input.model, input.dataset, options.seed,
             {order, *gpu_, nccl_, control, progress, Milliseconds(options.timeout)},
             GpuOptionsOf(options)) {
    if (control.rank() == 0) {
      SayKernels(input, *gpu_);
      SayNow("nccl: " + nccl_.Report());
    }
    if (!options.check) return;
    check_.emplace(options, input, run_.NewSerialRun(), control.rank() == 0,
                   [&progress] { progress.Move(); });
  }
  Run& run() override { return run_; }
  RunCheck* check() override { return check_ ? &*check_ : nullptr; }
  void Close() override { run_.Close(); }

 private:
  const std::unique_ptr<Gpu> gpu_;
  NcclLibrary nccl_;
  GpuProcessRun run_;
  std::optional<GpuCheck> check_;
};

}  // namespace

int TrainOnCuda(const RunOptions& given, char**) try {
  RunOptions options = given;
  const World world = ReadWorld([](const char* name) { return std::getenv(name); });
  if (options.transport.empty()) options.transport = world.size == 1 ? "threads" : "nccl";
  // Before CUDA reads the environment, and before there are threads that do.
  if (options.transport == "nccl") NcclLibrary::SetDefaults();
  if (options.one_sided && options.transport == "threads") {
    throw UsageError(
        "`one_sided`: is for GPUs connected by nccl; start a process for each, or leave it out");
  }
  const int devices = RequireDevices();
  if (options.transport == "threads") {
    RequireAlone(options, world);
    return options.stages.empty() ? TrainVirtually(options)
                                  : TrainCustomAlone(options, CustomOnGpu(options, 0), true);
  }
  // A launcher that does not say which processes share a machine numbers them one after the other.
  const int device = (world.local_rank >= 0 ? world.local_rank : world.rank) % devices;
  const MakeLaunchedRun run = [&](const RunInput& input, const RankOrder& order, Control& control,
                                  Progress& progress) -> std::unique_ptr<LaunchedRun> {
    return std::make_unique<NcclRun>(options, input, order, device, control, progress);
  };
  return TrainLaunched(options, world, {run, CustomOnGpu(options, device)});
} catch (const gpu::GpuError& error) {
  throw Error(error.what());  // Tools know their exit codes from errors, not from GPUs.
}

}  // namespace contraflow
