// A training on a GPU whose steps begin ahead, as contraflow-run has it.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "compiler/files/json.h"
#include "compiler/plan/error.h"
#include "runtime/gpu/run.h"
#include "runtime/model/gpu_views.h"
#include "tests/emulator/emulated_gpu.h"
#include "tests/runtime/gpu/gpu_plan.h"
#include "tests/support/failure.h"
#include "tests/support/run_support.h"
#include "tests/support/test_folder.h"
#include "tools/cli/exit.h"
#include "tools/contraflow-run/training.h"

namespace contraflow::gpu_training_test {
namespace {

namespace fs = std::filesystem;

std::string TextOf(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// Text that is written to a descriptor while it lives goes to a file.
class WrittenTo {
 public:
  WrittenTo(const std::string& path, int fd) : fd_(fd), before_(dup(fd)) {
    const int file = open(path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    dup2(file, fd_);
    close(file);
  }
  WrittenTo(const WrittenTo&) = delete;
  ~WrittenTo() {
    dup2(before_, fd_);
    close(before_);
  }

 private:
  const int fd_, before_;
};

/// A run that tells what it is asked for: `a3` where step 3 may begin ahead, and does, `s3` where
/// it is called.
class ToldRun : public Run {
 public:
  ToldRun(const RunInput& input, Gpu& gpu, const GpuRunOptions& options, std::string* calls,
          std::function<void(int step)> behind)
      : run_(input.plan, input.model, input.dataset, 1, gpu, options),
        calls_(calls),
        behind_(std::move(behind)) {}

  StepResult Step(int step) override {
    *calls_ += "s" + std::to_string(step) + " ";
    StepResult result = run_.Step(step);
    if (behind_) behind_(step);
    return result;
  }
  bool BeginAhead(int step) override {
    const bool ahead = run_.BeginAhead(step);
    if (ahead) *calls_ += "a" + std::to_string(step) + " ";
    return ahead;
  }
  const std::vector<Device>& devices() const override { return run_.devices(); }
  StageHolder& At(Device device) override { return run_.At(device); }
  StateCopies* NewCopies() override { return run_.NewCopies(); }
  std::string ChosenAlgorithms() const override { return algorithms; }

  std::string algorithms;

 private:
  GpuRun run_;
  std::string* const calls_;
  const std::function<void(int step)> behind_;
};

class SameCheck : public RunCheck {
 public:
  Comparison Compare(int, const StepResult&, Run&) override { return {1, ""}; }
  std::vector<StateBlock> State() override { return {}; }
};

/// Result of a training.
struct Outcome {
  int code = -1;
  std::string out;
  std::vector<std::string> rows;             // of --jsonl, without times
  std::map<std::string, std::string> files;  // of the checkpoints
};

struct Trial {
  Trial() {
    input.model = SmallGpuModel();
    input.model.experts = 2;  // few, as tiles take time in the emulator
    input.model.top_k = 1;
    input.model.clip = 0.25f;
    input.model.warmup_steps = 2;
    input.model.decay_steps = 6;
    for (uint64_t seed = 1; input.plan.layers != 1; ++seed) {
      input.plan = GpuPlanFor(input.model, "1f1b", 2, 2, 1, seed);
    }
    input.model = FitGpuModel(input.model, input.plan.stages, input.plan.layers, 1);
    input.dataset = SmallDataset();
    options.device = "cuda";
    options.transport = "threads";
  }

  /// Without `ahead` every step is issued anew. `stop_in`: the step in which a signal comes.
  Outcome Train(bool ahead, int stop_in = 0, RunCheck* check = nullptr) {
    if (!options.resume) ++number_;
    options.checkpoint = folder.File("kept" + std::to_string(number_));
    options.jsonl = options.checkpoint + ".jsonl";
    const std::string out = options.checkpoint + ".out";
    EmulatedGpu gpu;
    std::atomic<int> stop = 0;
    calls.clear();
    ToldRun run(input, gpu, {{.graph = ahead, .stamps = 0}}, &calls, [&](int step) {
      if (step == stop_in) stop = 15;
    });
    run.algorithms = algorithms;
    if (spoiled) {
      run.At({0, 0, 1}).StageAt(1).parameters()[0] = NAN;
      run.At({0, 0, 1}).Put(1);
    }
    Job job;
    Outcome outcome;
    {
      const WrittenTo file(out, STDOUT_FILENO);
      outcome.code = Training(options, input, run, check, job, {&stop, {}}).Train();
    }
    outcome.out = TextOf(out);
    std::istringstream rows(TextOf(options.jsonl));
    for (std::string row; std::getline(rows, row);) {
      outcome.rows.push_back(row.substr(0, row.find(", \"ms\"")));
    }
    for (const auto& entry : fs::recursive_directory_iterator(options.checkpoint)) {
      const std::string name = entry.path().string().substr(options.checkpoint.size());
      if (entry.is_regular_file()) outcome.files[name] = TextOf(entry.path());
    }
    return outcome;
  }

  const TestFolder folder;
  RunInput input;
  RunOptions options;
  std::string algorithms;
  bool spoiled = false;  // a weight
  std::string calls;     // of the last training

 private:
  int number_ = 0;  // of the folder of checkpoints
};

/// Steps of which there are checkpoints, and nothing else.
std::string KeptOf(const Outcome& outcome) {
  std::string kept;
  for (const auto& [name, text] : outcome.files) {
    const std::string step = name.substr(0, name.find('/', 1));
    if (step.starts_with("/step-") && !Contains(kept, step)) kept += step;
  }
  return kept;
}

TEST_SUITE("kernel") {
  TEST_CASE("GPU training: steps begin ahead, but not across a checkpoint, and all is the same") {
    Trial trial;
    trial.options.steps = 5;
    trial.options.checkpoint_every = 3;
    const Outcome plain = trial.Train(false);
    CHECK(trial.calls == "s1 s2 s3 s4 s5 ");
    const Outcome ahead = trial.Train(true);
    CHECK(trial.calls == "a2 s1 a3 s2 s3 a5 s4 s5 ");
    CHECK(plain.code == kExitFine);
    CHECK(ahead.code == kExitFine);
    REQUIRE(plain.rows.size() == 5);
    CHECK(plain.rows[4].find("{\"step\": 5, \"loss\": ") == 0);
    CHECK(Contains(plain.rows[4], "\"grad_norm\": "));
    CHECK(ahead.rows == plain.rows);
    CHECK(KeptOf(plain) == "/step-00000003/step-00000005");
    CHECK((ahead.files == plain.files));
    const auto digest = [](const Outcome& outcome) {
      return outcome.out.substr(outcome.out.find("weights after step 5: "));
    };
    CHECK(digest(ahead) == digest(plain));
  }

  TEST_CASE("GPU training: a step that was begun is finished before a stop, and saved") {
    Trial trial;
    trial.options.steps = 100;
    const Outcome stopped = trial.Train(true, 1);
    CHECK(stopped.code == kExitStopped);
    CHECK(trial.calls == "a2 s1 s2 ");
    CHECK(Contains(stopped.out, "\nstopped after step 2\n"));
    CHECK(stopped.rows.size() == 2);
    CHECK(KeptOf(stopped) == "/step-00000002");
    // If that was the last, no step was stopped.
    trial.options.steps = 2;
    const Outcome done = trial.Train(true, 1);
    CHECK(done.code == kExitFine);
    CHECK(trial.calls == "a2 s1 s2 ");
    CHECK(!Contains(done.out, "stopped"));
    CHECK((done.files == stopped.files));
  }

  TEST_CASE("GPU training: a step that fails ends it with the next one under way") {
    Trial trial;
    trial.options.steps = 5;
    trial.spoiled = true;
    CHECK_THROWS_WITH_AS(trial.Train(true),
                         "step 1: a gradient of \"layer 0 attention_norm\" in stage 0 is not "
                         "finite; lower the model's learning_rate, or resume from a checkpoint",
                         Error);
    CHECK(trial.calls == "a2 s1 ");
    CHECK(TextOf(trial.options.jsonl) == "");
    CHECK_FALSE(fs::exists(trial.options.checkpoint + "/step-00000001"));
  }

  TEST_CASE("GPU training: it is said where one goes on with other algorithms") {
    Trial trial;
    const std::string said = trial.folder.File("said");
    // Message where those of the last checkpoint were others; a thread says it.
    const auto resume = [&](int steps, const std::string& algorithms, bool waits) {
      trial.options.steps = steps;
      trial.algorithms = algorithms;
      const WrittenTo file(said, STDERR_FILENO);
      trial.Train(true);
      for (int i = 0; waits && i < 1000 && !TextOf(said).ends_with("\n"); ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
      return TextOf(said);
    };
    const std::string one(64, '1'), two(64, '2');
    CHECK(resume(1, one, false) == "");
    trial.options.resume = true;
    CHECK(resume(2, one, false) == "");
    CHECK(resume(2, two, true) ==
          "contraflow-run: warning: the checkpoint of step 2 was made with other algorithms of "
          "matrix products than this training has, which goes on with other bits; give "
          "--matmul-choices the same file as there\n");
  }

  TEST_CASE("GPU training: no step begins ahead of a check or a validation") {
    Trial trial;
    trial.options.steps = 2;
    SameCheck check;
    trial.Train(true, 0, &check);
    CHECK(trial.calls == "s1 s2 ");
    trial.options.steps = 3;
    trial.options.validate_every = 2;
    trial.input.validation = SmallDataset();
    CHECK_THROWS_AS(trial.Train(true), Error);  // a GPU validates nothing
    CHECK(trial.calls == "a2 s1 s2 ");
  }
}

}  // namespace
}  // namespace contraflow::gpu_training_test
