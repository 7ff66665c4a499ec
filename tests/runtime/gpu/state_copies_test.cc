// Checkpoints of a training on a GPU that goes on meanwhile.

#include "runtime/gpu/state_copies.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/checkpoint/writer.h"
#include "runtime/gpu/run.h"
#include "runtime/host/run.h"
#include "runtime/launch/threaded_run.h"
#include "runtime/model/gpu_views.h"
#include "schedules/compile.h"
#include "tests/emulator/emulated_gpu.h"
#include "tests/runtime/gpu/gpu_plan.h"
#include "tests/support/run_support.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"
#include "tests/support/test_folder.h"

namespace contraflow::state_copies_test {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kSeed = 3;

class OneProcess : public Peers {
 public:
  int process() const override { return 0; }
  int processes() const override { return 1; }
  std::vector<std::string> Gather(std::string_view bytes) override { return {std::string(bytes)}; }
  std::string Broadcast(std::string_view bytes) override { return std::string(bytes); }
};

struct Training {
  explicit Training(float clip)
      : model(SmallGpuModel()), plan(GpuPlanFor(model, "1f1b", 2, 2, 1, 1)) {
    for (uint64_t seed = 2; plan.layers > 1; ++seed) {
      plan = GpuPlanFor(model, "1f1b", 2, 2, 1, seed);
    }
    model.clip = clip;
    model = FitGpuModel(model, plan.stages, plan.layers, 1);
  }
  CheckpointHead Head(int step) const {
    return {step, kSeed, model, "", plan.schedule, plan.ranks, plan.stages, plan.microbatches,
            1,    1};
  }

  Model model;
  Plan plan;
  const Dataset dataset = SmallDataset();
};

/// Parameters and moments of every copy of a stage, bit for bit.
std::vector<Digest> StateOf(const Training& training, Run& run) {
  std::vector<Digest> state;
  for (const StateBlock& block : WholeState(training.plan, run)) {
    for (const auto values : {block.parameters, block.m, block.v}) {
      state.push_back(Sha256(std::as_bytes(values)));
    }
  }
  return state;
}

void Resume(const std::string& folder, const Plan& plan, Run* run) {
  const auto checkpoint = Checkpoint::Open(folder, std::nullopt);
  REQUIRE(checkpoint);
  checkpoint->Load(WholeState(plan, *run));
  PutState(plan, *run);
}

void Warn(const std::string& text) { FAIL_CHECK(text); }

/// Two steps and one that was begun ahead, if the options allow that, saved after the first; and
/// the others from there once more, one by one.
void CheckSaved(float clip, const EmulatedGpuOptions& gpu_options, const GpuRunOptions& options) {
  const Training training(clip);
  const TestFolder folder;
  OneProcess peers;
  EmulatedGpu gpu(gpu_options), other_gpu(gpu_options);
  std::vector<Digest> end;
  const int steps = options.graph && options.stamps == 0 ? 3 : 2;
  {
    GpuRun run(training.plan, training.model, training.dataset, kSeed, gpu, options);
    StateCopies* const copies = run.NewCopies();
    CheckpointWriter writer(folder.path, 2, peers, Warn, copies);
    writer.Prepare(StateToSave(training.plan, run));
    run.Step(1);
    writer.Save(training.Head(1), StateToSave(training.plan, run));
    CHECK_FALSE(copies->Poll());  // it does not wait
    if (steps > 2) CHECK(run.BeginAhead(3));
    for (int step = 2; step <= steps; ++step) run.Step(step);
    CHECK(writer.Finish() == "");
    end = StateOf(training, run);
  }
  GpuRun run(training.plan, training.model, training.dataset, kSeed, other_gpu, options);
  Resume(folder.path, training.plan, &run);
  for (int step = 2; step <= steps; ++step) run.Step(step);
  CHECK((StateOf(training, run) == end));
}

TEST_SUITE("kernel") {
  TEST_CASE("GPU checkpoint: the state of its step, though the next ones go on meanwhile") {
    CheckSaved(0, {.turn = Turn::kFirst}, {{.graph = true}});
    if (kSanitized) return;
    CheckSaved(0, {.seed = 2}, {{.graph = false, .stamps = 0}});
    CheckSaved(0.25f, {.turn = Turn::kFirst}, {{.graph = true, .stamps = 0}});
  }

  TEST_CASE("GPU checkpoint: the host goes on from it, and a GPU from the host's") {
    const Training training(0);
    const TestFolder of_gpu, of_host;
    OneProcess peers;
    EmulatedGpu gpu;
    GpuRun run(training.plan, training.model, training.dataset, kSeed, gpu);
    run.Step(1);
    const auto digests = [&] { return ParameterDigests(SavedState(training.plan, run)); };
    {
      CheckpointWriter writer(of_gpu.path, 2, peers, Warn, run.NewCopies());
      writer.Save(training.Head(1), StateToSave(training.plan, run));
      CHECK(writer.Finish() == "");
    }
    const Plan plan = Compile(MakeSpec("1f1b", 2, 2, UniformCosts(1, 1, 1)));
    ThreadedRun host(plan, training.model, training.dataset, kSeed, {});
    Resume(of_gpu.path, plan, &host);
    CHECK((ParameterDigests(SavedState(plan, host)) == digests()));
    host.Step(2);
    {
      CheckpointWriter writer(of_host.path, 2, peers, Warn, host.NewCopies());
      writer.Save(training.Head(2), StateToSave(plan, host));
      CHECK(writer.Finish() == "");
    }
    Resume(of_host.path, training.plan, &run);
    CHECK((ParameterDigests(SavedState(plan, host)) == digests()));
  }

  TEST_CASE("GPU checkpoint: one whose state never comes is given up without a wait") {
    const Training training(0);
    const TestFolder folder;
    OneProcess peers;
    EmulatedGpu gpu;
    GpuRun run(training.plan, training.model, training.dataset, kSeed, gpu);
    run.Step(1);
    {
      CheckpointWriter writer(folder.path, 2, peers, Warn, run.NewCopies());
      writer.Save(training.Head(1), StateToSave(training.plan, run));
    }
    CHECK(fs::is_empty(folder.path));
    CHECK(run.Step(2).losses.size() == 2);
  }
}

}  // namespace
}  // namespace contraflow::state_copies_test
