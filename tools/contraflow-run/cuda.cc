#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "compiler/plan/error.h"
#include "runtime/gpu/check.h"
#include "runtime/gpu/cuda_gpu.h"
#include "runtime/gpu/gpu.h"
#include "runtime/gpu/process_run.h"
#include "runtime/gpu/step_watch.h"
#include "runtime/nccl/library.h"
#include "tools/cli/exit.h"
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
  std::vector<StateBlock> State() override {
    std::vector<StateBlock> blocks;
    for (int s = 0; s < plan_.stages; ++s) {
      for (StateBlock& block : StateOf(reference_->StageAt(s))) blocks.push_back(std::move(block));
    }
    return blocks;
  }
  void Put() override {
    for (int s = 0; s < plan_.stages; ++s) reference_->Put(s);
  }
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
  return gpu;
}

/// Number of GPUs.
int RequireDevices() {
  std::string why;
  const int devices = CudaDeviceCount(&why);
  if (devices > 0) return devices;
  throw Error("--device cuda: no CUDA device: " + why + "; use --device cpu");
}

/// All devices of the plan on the first GPU.
int TrainVirtually(const RunOptions& options) {
  RequireWritable(options);
  const RunInput input = ReadInput(options);
  const std::unique_ptr<Gpu> gpu = NewCudaGpu(0);
  GpuRunOptions gpu_options = GpuOptionsOf(options);
  gpu_options.timeout = Milliseconds(options.timeout);
  GpuRun run(input.plan, input.model, input.dataset, options.seed, *gpu, gpu_options);
  std::optional<GpuCheck> check;
  if (options.check) {
    const SmBudget budget = BudgetOf(gpu->sms(), static_cast<int>(DeviceCount(input.plan)),
                                     input.plan.expert_parallel > 1, options.partition_sms);
    check.emplace(options, input,
                  std::make_unique<GpuSerialRun>(
                      input.plan, input.model, input.dataset, options.seed, *gpu,
                      gpu->NewStream(0, Priority::kNormal, "reference"), budget.compute),
                  true, std::function<void()>());
  }
  try {
    return TrainAlone(options, input, run, check ? &*check : nullptr);
  } catch (const GpuHang&) {
    // Destructors would wait for the GPU for ever: memory, streams and contexts are given back when
    // it is done. The end of the process takes all of them.
    EndAtOnce("contraflow-run", std::current_exception());
  }
}

/// One device of a job, on one of the GPUs of its machine.
class NcclRun : public LaunchedRun {
 public:
  NcclRun(const RunOptions& options, const RunInput& input, const RankOrder& order, int device,
          Control& control, Progress& progress)
      : gpu_(NewCudaGpu(device)),
        run_(input.plan, input.model, input.dataset, options.seed, order, *gpu_, nccl_, control,
             progress, Milliseconds(options.timeout), GpuOptionsOf(options)) {
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

int TrainOnCuda(const RunOptions& given, char**) {
  RunOptions options = given;
  const World world = ReadWorld([](const char* name) { return std::getenv(name); });
  const int devices = RequireDevices();
  if (options.transport.empty()) options.transport = world.size == 1 ? "threads" : "nccl";
  if (options.transport == "threads") {
    RequireAlone(options, world);
    return TrainVirtually(options);
  }
  // Before there are threads that read the environment.
  NcclLibrary::SetDefaults();
  // A launcher that does not say which processes share a machine numbers them one after the other.
  const int device = (world.local_rank >= 0 ? world.local_rank : world.rank) % devices;
  return TrainLaunched(options, world,
                       [&](const RunInput& input, const RankOrder& order, Control& control,
                           Progress& progress) -> std::unique_ptr<LaunchedRun> {
                         return std::make_unique<NcclRun>(options, input, order, device, control,
                                                          progress);
                       });
}

}  // namespace contraflow
