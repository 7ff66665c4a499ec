#include "runtime/launch/gpu_process_run.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "compiler/plan/error.h"
#include "runtime/core/serial_plan.h"
#include "runtime/gpu/check.h"
#include "runtime/gpu/device.h"
#include "runtime/host/run.h"
#include "runtime/launch/custom_run.h"
#include "tests/emulator/nccl_network.h"
#include "tests/runtime/gpu/emulated_stages.h"
#include "tests/runtime/gpu/gpu_plan.h"
#include "tests/runtime/launch/watched_job.h"
#include "tests/runtime/nccl/linked_job.h"
#include "tests/runtime/transport/link_backend.h"
#include "tests/support/failure.h"
#include "tests/support/run_support.h"
#include "tests/support/sanitized.h"

namespace contraflow::process_run_test {
namespace {

constexpr std::chrono::seconds kTimeout{200};
constexpr uint64_t kSeed = 5;

Model FewExperts() {
  Model model = SmallGpuModel();
  model.experts = 2;
  model.top_k = 1;
  return model;
}

/// A model that fits the plan, and the plan.
struct Training {
  Training(const char* schedule, int microbatches, int members, float capacity_factor,
           float clip = 0)
      : Training(SmallGpuModel(capacity_factor), schedule, microbatches, members, 3, clip) {}
  /// A model of one layer a stage, and few experts, as tiles take time in the emulator.
  explicit Training(float clip) : Training(FewExperts(), "1f1b", 2, 1, 1, clip) {}
  Training(const Model& given, const char* schedule, int microbatches, int members, uint64_t seed,
           float clip)
      : model(given),
        plan(GpuPlanFor(model, schedule, 2, microbatches, members, seed)),
        order(RankOrder::kDefault, plan),
        dataset(SmallDataset()),
        network(order.processes(), NcclNetwork::Processes::kThreads) {
    model = FitModel(model, plan.stages, plan.layers, members);
    model.clip = clip;
  }
  size_t groups() const { return static_cast<size_t>(plan.data_parallel * plan.expert_parallel); }
  GpuProcessRun NewRun(int p, Control& control, Progress& progress, GpuRunOptions options = {}) {
    return {plan, model, dataset, kSeed, ProcessOf(p, control, progress), options};
  }
  GpuProcess ProcessOf(int p, Control& control, Progress& progress,
                       std::chrono::milliseconds timeout = kTimeout) {
    return {order, network.GpuOf(p), network.NcclOf(p), control, progress, timeout};
  }

  Model model;
  Plan plan;
  RankOrder order;
  Dataset dataset;
  NcclNetwork network;
};

/// Process 0 checks what it has: its gradients come from all devices after it, in the second step
/// with the weights that those made in the first.
void CheckTraining(Training& training, int steps, GpuRunOptions options) {
  const Plan& plan = training.plan;
  WatchedJob job(training.order.processes());
  GpuComparison all;
  size_t losses = 0, spans = 0;
  job.Run([&](int p, Control& control, Progress& progress) {
    GpuProcessRun run = training.NewRun(p, control, progress, options);
    const std::unique_ptr<GpuSerialRun> reference = p == 0 ? run.NewSerialRun() : nullptr;
    for (int step = 1; step <= steps; ++step) {
      const StepResult result = run.Step(step);
      if (p != 0) continue;
      const GpuComparison same = CompareGpuStep(plan, step, result, run, *reference, nullptr);
      all.values += same.values;
      if (all.difference.empty()) all.difference = same.difference;
      losses += result.losses.size();
      CHECK(result.gradient_norm == reference->norm());
      CHECK((result.gradient_norm > 0) == (training.model.clip > 0));
      for (const std::vector<Span>& rank : result.timeline.ranks) spans += rank.size();
    }
    run.Close();
    control.Finish();
  });
  CHECK(all.difference == "");
  CHECK(all.values > 1000);
  CHECK(losses == static_cast<size_t>(steps * plan.microbatches) * training.groups());
  CHECK(spans == (options.stamps ? static_cast<size_t>(steps * InstructionCount(plan)) : 0));
  for (int p = 0; p < job.size(); ++p) {
    CHECK(job.end(p).error == "");
    CHECK(training.network.OpenOf(p) == 0);
    CHECK(training.network.RegisteredOf(p) == 0);
  }
}

/// A device that has failed in one step (0: in none), as it lets the others know and not its host.
class NotingDevice : public GpuDevice {
 public:
  template <typename... Arguments>
  NotingDevice(int failed, Gpu& gpu, Arguments&&... arguments)
      : GpuDevice(std::forward<Arguments>(arguments)...),
        failed_(failed),
        gpu_(gpu),
        failure_(reinterpret_cast<double*>(gpu.AllocateHost(sizeof(double)))) {}

  void Upload(int step, gpu::Stream stream) override {
    GpuDevice::Upload(step, stream);
    *failure_ = step == failed_ ? NAN : 0;
  }
  void PutGuard(double* numbers, const gpu::Clip* guard) override {
    GpuDevice::PutGuard(numbers, guard);
    note_ = numbers;
  }
  void NoteFailure(gpu::Stream stream) override {
    gpu_.CopyToDevice(stream, note_, failure_, sizeof(double));
  }

 private:
  const int failed_;
  Gpu& gpu_;
  double* const failure_;
  double* note_ = nullptr;
};

/// A device whose instruction `failing` throws when it is issued.
class FailingDevice : public LinkBackend {
 public:
  FailingDevice(const Plan& plan, Device device, const AllocateMemory& memory,
                const Instruction* failing)
      : LinkBackend(plan, device, Rows::kFixed, memory), failing_(failing) {}

  void Upload(int, gpu::Stream) override { issues_ = true; }
  void Compute(const Instruction& i, gpu::Stream) override { FailAt(i.op, i.stage, &i); }
  void AfterExchange(const Instruction& i, gpu::Stream) override { FailAt(i.op, i.stage, &i); }
  void OptimizerStep(int stage, gpu::Stream) override { FailAt(Op::STEP, stage, failing_); }
  std::span<float> Gradients(int stage) override {
    FailAt(Op::REDUCE, stage, failing_);
    return LinkBackend::Gradients(stage);
  }
  std::span<std::byte> Message(const Instruction& i) override {
    FailAt(i.op, i.stage, &i);
    return LinkBackend::Message(i);
  }

 private:
  void FailAt(Op op, int stage, const Instruction* at) const {
    if (!issues_ || failing_ == nullptr || at != failing_) return;
    if (op == failing_->op && stage == failing_->stage) throw gpu::GpuError("no kernel image");
  }

  const Instruction* const failing_;
  bool issues_ = false;
};

/// How the job ended in which one instruction of one process fails in the first step; "" if all
/// ended at once, with the one report of it.
std::string FlawOfEnd(const Plan& plan, int failing, size_t index, bool graph) {
  const RankOrder order(RankOrder::kDefault, plan);
  NcclNetwork network(order.processes(), NcclNetwork::Processes::kThreads);
  WatchedJob job(order.processes());
  const Program& program = plan.program(order.DeviceOf(failing).rank);
  job.Run([&](int p, Control& control, Progress& progress) {
    Nccl& nccl = network.NcclOf(p);
    GpuRank rank(plan, ExchangeOf(plan, Rows::kFixed),
                 {order, network.GpuOf(p), nccl, control, progress, kTimeout},
                 {{.graph = graph, .stamps = 0}}, [&](Device device, gpu::Stream, int) {
                   return std::make_unique<FailingDevice>(
                       plan, device, [&](size_t bytes) { return nccl.NewMemory(bytes); },
                       p == failing ? &program[index] : nullptr);
                 });
    rank.Step(1);
    // Each process waits for the others.
    control.Barrier();
  });
  const std::string expected = "rank " + std::to_string(order.DeviceOf(failing).rank) +
                               ", instruction " + std::to_string(index) + " (" +
                               ToString(program[index]) + "): no kernel image";
  if (job.end(failing).error != expected) return "an error \"" + job.end(failing).error + "\"";
  if (!Contains(job.Report(), expected)) return "a report " + job.Report();
  for (int p = 0; p < order.processes(); ++p) {
    if (p != failing && !job.end(p).aborted) {
      return "process " + std::to_string(p) + " is not stopped: " + job.end(p).error;
    }
    if (network.OpenOf(p) != 0) return "process " + std::to_string(p) + " waits for its graph";
  }
  return "";
}

TEST_SUITE("unit") {
  TEST_CASE("gpu process run: an error at any instruction of the first step ends the job at once") {
    // Every kind of instruction: REDUCE and exchanges, as there are groups.
    const Plan plan = PlanFor(GroupModel(1.0), "1f1b", 2, 1, 2, Level::kBuffer, 3);
    for (int rank = 0; rank < 2; ++rank) {
      for (size_t index = 0; index < plan.program(rank).size(); ++index) {
        CAPTURE(ToString(plan.program(rank)[index]));
        // One that waits for its graph does so for long.
        REQUIRE(FlawOfEnd(plan, 2 * rank, index, true) == "");
      }
    }
    CHECK(FlawOfEnd(plan, 1, 5, false) == "");
  }

  TEST_CASE("gpu process run: equals the run without a pipeline on every process") {
    if (!kSanitized) {
      Training plain("1f1b", 2, 1, 0, 0.25f);
      CheckTraining(plain, 2, {{.graph = false, .stamps = false}});
    }
    Training groups("zb-1p", 2, 2, 1.25f, 0.5f);
    CheckTraining(groups, 1, {{.graph = true}});
    // Without a capacity: parcels.
    Training dropless("1f1b", 1, 2, 0);
    GpuRunOptions options{{.graph = !kSanitized}};
    options.one_sided = true;
    CheckTraining(dropless, 1, options);
  }

  TEST_CASE("gpu process run: steps that begin ahead give the same bits") {
    // Losses and norms, and the weights of each process at the end.
    const auto train = [&](bool ahead) {
      Training training(0.25f);
      WatchedJob job(2);
      std::vector<std::vector<float>> outcome(2);
      job.Run([&](int p, Control& control, Progress& progress) {
        GpuProcessRun run = training.NewRun(p, control, progress, {{.graph = true, .stamps = 0}});
        std::vector<float>& mine = outcome[static_cast<size_t>(p)];
        for (int step = 1; step <= 3; ++step) {
          if (ahead && step < 3) CHECK(run.BeginAhead(step + 1));
          const StepResult result = run.Step(step);
          mine.insert(mine.end(), result.losses.begin(), result.losses.end());
          mine.push_back(static_cast<float>(result.gradient_norm));
          CHECK(progress.Read().step == step);
          CHECK(progress.Read().index == Progress::kEnd);
        }
        const std::span<float> weights = run.At(run.devices()[0]).StageAt(p).parameters();
        mine.insert(mine.end(), weights.begin(), weights.end());
        run.Close();
        control.Finish();
      });
      for (int p = 0; p < 2; ++p) {
        CHECK(job.end(p).error == "");
        CHECK(training.network.OpenOf(p) == 0);
      }
      return outcome;
    };
    const auto ahead = train(true);
    CHECK(ahead[0].size() > 1000);
    if (!kSanitized) CHECK((train(false) == ahead));
  }

  TEST_CASE("gpu process run: what fails on one process changes no weights after that step") {
    Training training(0.0f);
    WatchedJob job(2);
    job.Run([&](int p, Control& control, Progress& progress) {
      Gpu& gpu = training.network.GpuOf(p);
      GpuRank rank(training.plan, {}, training.ProcessOf(p, control, progress),
                   {{.graph = true, .stamps = 0}}, [&](Device device, gpu::Stream setup, int sms) {
                     return std::make_unique<NotingDevice>(p == 1 ? 2 : 0, gpu, training.plan,
                                                           training.model, training.dataset, kSeed,
                                                           device, gpu, setup, sms);
                   });
      std::vector<std::vector<float>> weights;
      for (int step = 1; step <= 3; ++step) {
        rank.Step(step);
        const auto now =
            static_cast<GpuDevice&>(rank.At(rank.devices()[0])).StageAt(p).parameters();
        weights.emplace_back(now.begin(), now.end());
      }
      CHECK((weights[1] != weights[0]));
      CHECK((weights[2] == weights[1]));
      rank.Close();
      control.Finish();
    });
    for (int p = 0; p < 2; ++p) CHECK(job.end(p).error == "");
  }

  TEST_CASE("gpu process run: an error while the next step is under way ends in order") {
    Training training(0.0f);
    WatchedJob job(2);
    job.Run([&](int p, Control& control, Progress& progress) {
      GpuProcessRun run = training.NewRun(p, control, progress, {{.graph = true, .stamps = 0}});
      CHECK(run.BeginAhead(2));
      run.Step(1);
      if (p == 1) throw Error("rank 1 has had enough");
      run.Step(2);
    });
    CHECK(job.end(0).aborted);
    CHECK(job.end(1).error == "rank 1 has had enough");
    for (int p = 0; p < 2; ++p) {
      CHECK(training.network.OpenOf(p) == 0);
      CHECK(training.network.RegisteredOf(p) == 0);
    }
  }

  TEST_CASE("gpu process run: a process that fails stops all and the report says where they were") {
    Training training("1f1b", 2, 1, 0);
    Control::Options options;
    options.describe = [](const Progress::Snapshot&) { return "somewhere"; };
    WatchedJob job(2, options);
    std::atomic<int64_t> reached = Progress::kStart;
    job.Run([&](int p, Control& control, Progress& progress) {
      GpuProcessRun run = training.NewRun(p, control, progress);
      if (p == 1) {
        // Rank 0 now waits for rank 1, and says at which instruction.
        const Clock::time_point give_up = Clock::now() + kTimeout;
        while (reached < 0 && Clock::now() < give_up) {
          reached = job.progress(0).Read().index;
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
        throw Error("rank 1 has had enough");
      }
      run.Step(1);
    });
    CHECK(job.end(0).aborted);
    CHECK(job.end(1).error == "rank 1 has had enough");
    const Program& program = training.plan.programs[0];
    REQUIRE(reached >= 0);
    REQUIRE(reached < static_cast<int64_t>(program.size()));
    const Work work = WorkOf(program[static_cast<size_t>(reached)].op);
    CHECK((work == Work::kSend || work == Work::kRecv));
    for (int p = 0; p < 2; ++p) {
      CHECK(training.network.OpenOf(p) == 0);
      CHECK(training.network.RegisteredOf(p) == 0);
    }
  }

  TEST_CASE("gpu process run: what NCCL complains of ends the step") {
    Training training("1f1b", 2, 1, 0);
    WatchedJob job(2);
    job.Run([&](int p, Control& control, Progress& progress) {
      GpuProcessRun run = training.NewRun(p, control, progress);
      if (p == 1) {
        return WaitForStop(control);
      }
      training.network.Fail(0, "NCCL: communicator \"down\" has failed: remote process exited");
      run.Step(1);
    });
    CHECK(job.end(0).error == "NCCL: communicator \"down\" has failed: remote process exited");
    CHECK(job.end(1).aborted);
  }

  TEST_CASE("gpu process run: a process that does not come is waited for until the timeout") {
    Training training("1f1b", 2, 1, 0);
    WatchedJob job(2);
    job.Run([&](int p, Control& control, Progress& progress) {
      if (p == 1) {
        control.Broadcast("");
        return WaitForStop(control);
      }
      GpuProcessRun run(training.plan, training.model, training.dataset, kSeed,
                        training.ProcessOf(p, control, progress, std::chrono::milliseconds(200)));
    });
    CHECK(job.end(0).error.find("NCCL: waited 0.2 s for the other processes to connect; look ") ==
          0);
  }

  TEST_CASE("gpu process run: custom stages train as without a pipeline") {
    const contraflow_stage_api api = EmulatedStages();
    for (const Level level : {Level::kComm, Level::kBuffer}) {
      for (const bool graph : {false, true}) {
        const Plan plan = CustomPlan("dualpipe", 2, 4, level, 2);
        const CustomStages on_gpu(api, plan, true, 7, "");
        const Plan serial_plan = SerialPlan(plan);
        const CustomStages on_host(*contraflow_stages(), serial_plan, false, 7, "");
        const RankOrder order(RankOrder::kDefault, plan);
        CustomRun serial(on_host, {});
        std::vector<float> losses;
        for (int step = 1; step <= 2; ++step) losses = serial.Step(step).losses;
        NcclNetwork network(order.processes(), NcclNetwork::Processes::kThreads);
        WatchedJob job(order.processes());
        std::atomic<int> equal = 0;
        job.Run([&](int p, Control& control, Progress& progress) {
          GpuCustomProcessRun run(
              on_gpu, {order, network.GpuOf(p), network.NcclOf(p), control, progress, kTimeout},
              {{.graph = graph}});
          run.Step(1);
          const StepResult result = run.Step(2);
          if (p == 0) CHECK(result.losses == losses);
          const Device device = run.devices()[0];
          for (const int s : run.At(device).Held()) {
            if (WeightsOf(run.At(device).At(s)) == WeightsOf(serial.At(device).At(s))) ++equal;
          }
          run.Close();
          control.Finish();
        });
        CHECK(equal == 2 * order.processes());
      }
    }
  }

  TEST_CASE("gpu process run: spans of messages begin when both ends are ready") {
    Training training("1f1b", 2, 1, 0);
    const Plan& plan = training.plan;
    std::vector<DeviceStep> steps(2);
    for (size_t r = 0; r < 2; ++r) {
      for (size_t i = 0; i < plan.programs[r].size(); ++i) {
        const auto start = static_cast<Time>(100 * i + 1000 * r);
        steps[r].spans.push_back({start, start + 5000});
      }
    }
    const std::vector<DeviceStep> before = steps;
    JoinSpans(plan, &steps);
    int messages = 0;
    for (size_t r = 0; r < 2; ++r) {
      for (size_t i = 0; i < plan.programs[r].size(); ++i) {
        const Instruction& one = plan.programs[r][i];
        const Span was = before[r].spans[i], is = steps[r].spans[i];
        CHECK(is.end == was.end);
        if (WorkOf(one.op) != Work::kSend && WorkOf(one.op) != Work::kRecv) {
          CHECK(is.start == was.start);
          continue;
        }
        ++messages;
        const Program& there = plan.programs[1 - r];
        for (size_t k = 0; k < there.size(); ++k) {
          const Work work = WorkOf(there[k].op);
          if ((work != Work::kSend && work != Work::kRecv) || work == WorkOf(one.op)) continue;
          if (TagOf(there[k]) != TagOf(one)) continue;
          CHECK(is.start == std::min(was.end, std::max(was.start, before[1 - r].spans[k].start)));
        }
      }
    }
    CHECK(messages == 8);
  }
}

}  // namespace
}  // namespace contraflow::process_run_test
