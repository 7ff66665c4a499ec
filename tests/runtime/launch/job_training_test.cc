// A training as users have it, with a schedule, clipping, validation and a log of its steps: killed
// twice and resumed, by other ranks and launchers, it is the one that nothing disturbed.

#include <doctest/doctest.h>

#include <csignal>
#include <sstream>
#include <string>
#include <vector>

#include "tests/runtime/launch/job.h"
#include "tests/support/failure.h"

namespace contraflow::job_training_test {
namespace {

constexpr const char* kModel =
    R"({"name": "eight", "layers": 8, "width": 16, "heads": 2, "experts": 4, "expert_width": 16,
        "sequence": 8, "batch": 2, "warmup_steps": 5, "decay_steps": 50,
        "minimum_learning_rate": 1e-4, "balance_loss": 0.01})";

/// The lines of a log up to their times.
std::vector<std::string> StepsOf(const std::string& log) {
  std::vector<std::string> steps;
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    const size_t times = line.find(", \"ms\": ");
    REQUIRE(times != std::string::npos);
    steps.push_back(line.substr(0, times));
  }
  return steps;
}

struct Bench {
  Bench() : checkpoints(folder.File("checkpoints")), model(folder.File("model.json")) {
    WriteText(model, kModel);
  }

  std::string Plan(const std::string& schedule, int ranks) const {
    const std::string number = std::to_string(ranks);
    return CompilePlan(folder, schedule + number,
                       "--schedule " + schedule + " --microbatches 4 --ranks " + number);
  }
  Words WordsFor(const std::string& plan, const std::string& log, const Words& more = {}) const {
    Words words = {plan,  "--model",      model,   "--steps",          "60", "--clip",
                   "0.5", "--validation", "0.2",   "--validate-every", "7",  "--jsonl",
                   log,   "--lr",         "0.004", "--log-every",      "1"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  /// A job with checkpoints, resumed from the last.
  JobSpec Resuming(const std::string& plan, int processes, const std::string& log) const {
    JobSpec spec;
    spec.processes = processes;
    spec.words =
        WordsFor(plan, log, {"--checkpoint", checkpoints, "--checkpoint-every", "5", "--resume"});
    return spec;
  }

  TestFolder folder;
  std::string checkpoints, model;
};

}  // namespace

TEST_SUITE("jobs") {
  TEST_CASE("training: killed twice and resumed it is as if nothing had been") {
    const Bench bench;
    const std::string whole = bench.folder.File("whole.jsonl"),
                      log = bench.folder.File("log.jsonl");
    const Trained undisturbed = TrainWithThreads(bench.WordsFor(bench.Plan("1f1b", 2), whole));
    REQUIRE(undisturbed.losses.size() == 60);

    const auto kill_after = [&](int steps, const JobSpec& spec) {
      LaunchedJob job(spec);
      CAPTURE(job.Story());
      REQUIRE(job.WaitForLines("step ", steps, kPatience));
      for (int p = 0; p < spec.processes; ++p) job.Signal(p, SIGKILL);
      CHECK(job.Wait(kPatience));
    };
    kill_after(20, bench.Resuming(bench.Plan("1f1b", 2), 2, log));
    // A kill leaves no torn line, but a machine that stops may.
    WriteText(log, ReadText(log) + "{\"step\": 2");
    kill_after(5, bench.Resuming(bench.Plan("zb-1p", 4), 4, log));

    JobSpec last = bench.Resuming(bench.Plan("1f1b", 2), 2, log);
    last.words.push_back("--json");
    LaunchedJob job(last);
    CAPTURE(job.Story());
    CHECK(job.Wait(kPatience));
    CHECK(job.ending(0).code == 0);
    CHECK(TrainedBy(job.Out(0)).weights == undisturbed.weights);

    const std::vector<std::string> steps = StepsOf(ReadText(log));
    CHECK(steps == StepsOf(ReadText(whole)));
    REQUIRE(steps.size() == 60);
    for (size_t s = 0; s < steps.size(); ++s) {
      CHECK(steps[s].starts_with("{\"step\": " + std::to_string(s + 1) + ", \"loss\": "));
      CHECK(Contains(steps[s], "\"grad_norm\": "));
      const bool validated = (s + 1) % 7 == 0 || s + 1 == 60;
      CHECK(Contains(steps[s], "\"validation_loss\": ") == validated);
    }
    CHECK(Contains(steps[59], "\"learning_rate\": 9.999999747378752e-05,"));
  }

  TEST_CASE("training: a log that is none is left alone") {
    const Bench bench;
    const std::string log = bench.folder.File("notes.txt");
    WriteText(log, "not a log\n");
    JobSpec spec;
    spec.processes = 2;
    spec.words = bench.WordsFor(bench.Plan("1f1b", 2), log);
    LaunchedJob job(spec);
    CAPTURE(job.Story());
    CHECK(job.Wait(kPatience));
    CHECK(job.ending(0).code == 1);
    CHECK(CountOf(job.Err(0), "has something else than the steps of a training") == 1);
    CHECK(ReadText(log) == "not a log\n");
  }
}

}  // namespace contraflow::job_training_test
