// A training that comes back by itself: processes are killed, from outside, and all start again.

#include <doctest/doctest.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <thread>

#include "tests/runtime/launch/job.h"
#include "tests/support/sanitized.h"

namespace contraflow::supervisor_test {
namespace {

void Sleep(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

/// The living rank of a job of so many processes; 0 if there is none.
pid_t RankOf(const LaunchedJob& job, int rank, int size) {
  for (const pid_t pid : job.Living()) {
    const std::string variables = '\0' + ReadText("/proc/" + std::to_string(pid) + "/environ");
    const auto has = [&](const std::string& variable) {
      return variables.find('\0' + variable + '\0') != std::string::npos;
    };
    if (has("RANK=" + std::to_string(rank)) && has("WORLD_SIZE=" + std::to_string(size))) {
      return pid;
    }
  }
  return 0;
}

/// Waits for a rank, which may take a moment after a start; 0 if the job has ended before.
pid_t AwaitRank(LaunchedJob& job, int rank, int size) {
  while (!job.Wait(0.02)) {
    if (const pid_t pid = RankOf(job, rank, size); pid != 0) return pid;
  }
  return 0;
}

/// Waits for a rank and kills it; false if the job has ended before.
bool KillRank(LaunchedJob& job, int rank, int size) {
  const pid_t pid = AwaitRank(job, rank, size);
  return pid != 0 && kill(pid, SIGKILL) == 0;
}

/// The digest of weights in a report, or the whole of it.
std::string WeightsIn(const std::string& out) {
  const std::string line = "SHA-256 ";
  const size_t at = out.rfind(line);
  return at == std::string::npos ? out : out.substr(at + line.size(), 64);
}

double LossOfStep(const std::string& out, int step) {
  const std::string line = "\nstep " + std::to_string(step) + "  loss ";
  const size_t at = out.find(line);
  return at == std::string::npos ? -1 : std::stod(out.substr(at + line.size()));
}

/// CONTRAFLOW_RESTARTS sets another number of runs.
int Runs() {
  const char* const runs = std::getenv("CONTRAFLOW_RESTARTS");
  return runs == nullptr ? CasesToDraw(3) : std::atoi(runs);
}

/// A training of four ranks and the weights that it comes to when nothing disturbs it.
struct Undisturbed {
  static constexpr int kSteps = 100;

  JobFolder folder;
  Words words;  // but for the number of steps
  std::string weights;

  Undisturbed() {
    words = {CompilePlan(folder, "plan", "--schedule 1f1b --ranks 4 --microbatches 8"), "--model",
             "tiny", "--steps"};
    weights = WeightsAfter(kSteps);
  }

  std::string WeightsAfter(int steps) const {
    LaunchedJob job(Alone(With({}, steps)));
    REQUIRE(job.Wait(kPatience));
    const std::string digest = WeightsIn(job.Out(0));
    REQUIRE(digest.size() == 64);
    return digest;
  }

  Words With(const Words& more, int steps = kSteps) const {
    Words all = words;
    all.push_back(std::to_string(steps));
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
};

const Undisturbed& Four() {
  static const Undisturbed four;
  return four;
}

TEST_SUITE("jobs") {
  TEST_CASE("whatever is killed, the training ends as if nothing had happened") {
    std::mt19937 random(20);
    for (int run = 0; run < Runs(); ++run) {
      CAPTURE(run);
      const JobFolder folder;
      LaunchedJob job(Alone(Four().With(
          {"--checkpoint", folder.File("kept"), "--checkpoint-every", "10", "--restarts", "3"})));
      int kills = 0;
      for (const auto count = 1 + random() % 3; kills < static_cast<int>(count); ++kills) {
        Sleep(static_cast<double>(random() % 400) / 1000);
        if (!KillRank(job, static_cast<int>(random() % 4), 4)) break;
        Sleep(0.05);
      }
      CHECK(job.Wait(kPatience));
      CAPTURE(job.Story());
      CHECK(job.ending(0).code == 0);
      CHECK(WeightsIn(job.Out(0)) == Four().weights);
      // Some are killed twice before the supervisor knows, or when they are done.
      CHECK(CountOf(job.Err(0), "was ended by signal 9 (Killed); restart ") <= kills);
      CHECK(job.Living().empty());
    }
  }

  TEST_CASE("copies in memory are enough to start again from") {
    // So many that the second kill comes before the end, on the fastest machine.
    constexpr int kMany = 400;
    const std::string weights = Four().WeightsAfter(kMany);
    for (const bool disk : {false, true}) {
      CAPTURE(disk);
      const JobFolder folder;
      const std::string kept = folder.File("kept");
      // One restart: the second is allowed only if copies that were made count as a new checkpoint.
      Words words = Four().With({"--memory-checkpoint", folder.File("memory"), "--memory-every",
                                 "5", "--restarts", "1", "--log-every", "5"},
                                kMany);
      if (disk) words.insert(words.end(), {"--checkpoint", kept});
      LaunchedJob job(Alone(words));
      std::mt19937 random(disk ? 5 : 4);
      for (const int resumed : {0, 1}) {
        REQUIRE(job.WaitForLines("resuming after step", resumed, kPatience));
        // It is looked for before, so that the training does not end meanwhile.
        const pid_t victim = AwaitRank(job, static_cast<int>(random() % 4), 4);
        REQUIRE(victim != 0);
        const int lines = CountOf(job.Out(0), "\nstep ");
        REQUIRE(job.WaitForLines("step ", lines + 3, kPatience));
        REQUIRE(kill(victim, SIGKILL) == 0);
      }
      CHECK(job.Wait(kPatience));
      CAPTURE(job.Story());
      CHECK(job.ending(0).code == 0);
      CHECK(WeightsIn(job.Out(0)) == weights);
      CHECK(CountOf(job.Err(0), "was ended by signal 9 (Killed); restart 1 of 1, after step ") ==
            2);
      CHECK(CountOf(job.Out(0), "resuming after step ") == 2);
      CHECK(CountOf(job.Out(0), ", from memory\n") == 2);
      CHECK(std::filesystem::exists(kept) == disk);
    }
  }

  TEST_CASE("a node is lost with its memory, and what the other has is enough") {
    const JobFolder folder;
    const auto spec_of = [&](int steps) {
      JobSpec spec;
      spec.processes = 4;
      for (int process = 0; process < 4; ++process) {
        spec.words_of[process] =
            Four().With({"--memory-every", "5", "--resume", "--log-every", "5",
                         "--memory-checkpoint", folder.File("node" + std::to_string(process / 2))},
                        steps);
      }
      return spec;
    };
    int steps = 0;                   // that the last one has begun, at most
    for (const int lost : {1, 0}) {  // node
      CAPTURE(lost);
      LaunchedJob job(spec_of(1'000'000));
      REQUIRE(job.WaitForLines("step ", 3, kPatience));
      REQUIRE(job.Signal(2 * lost + 1, SIGKILL));
      REQUIRE(job.Wait(kPatience));
      CAPTURE(job.Story());
      CHECK(job.ending(2 - 2 * lost).code == 75);
      const std::string out = job.Out(0);
      steps = std::stoi(out.substr(out.rfind("\nstep ") + 6)) + 5;
      CHECK(std::filesystem::remove_all(folder.File("node" + std::to_string(lost))) > 0);
    }
    LaunchedJob job(spec_of(steps + 10));
    CHECK(job.Wait(kPatience));
    CAPTURE(job.Story());
    for (int process = 0; process < 4; ++process) CHECK(job.ending(process).code == 0);
    CHECK(CountOf(job.Out(0), "resuming after step ") == 1);
    CHECK(CountOf(job.Out(0), ", from memory\n") == 1);
    CHECK(WeightsIn(job.Out(0)) == Four().WeightsAfter(steps + 10));
  }

  TEST_CASE("a rank that is lost at every start is done without") {
    const JobFolder folder;
    for (const std::string words :
         {"--schedule 1f1b --ranks 4 --microbatches 8",
          "--schedule zb-v --ranks 4 --microbatches 8 --costs " CF_PROFILES
          "/moe-unit.json --level buffer --model tiny"}) {
      CAPTURE(words);
      const std::string plan = CompilePlan(folder, "plan", words);
      const std::string kept = folder.File("kept");
      std::filesystem::remove_all(kept);
      const auto training = [&](const std::string& steps, const Words& more) {
        Words all = {plan, "--model", "tiny", "--steps", steps};
        all.insert(all.end(), more.begin(), more.end());
        return Alone(all);
      };
      LaunchedJob undisturbed(training("40", {}));
      REQUIRE(undisturbed.Wait(kPatience));
      const double loss = LossOfStep(undisturbed.Out(0), 40);
      REQUIRE(loss > 0);
      LaunchedJob begun(training("4", {"--checkpoint", kept}));
      REQUIRE(begun.Wait(kPatience));

      LaunchedJob job(
          training("40", {"--checkpoint", kept, "--resume", "--restarts", "1", "--elastic"}));
      for (const int start : {1, 2}) {
        // It is looked for before, so that the training does not end meanwhile, and killed once
        // they have met: whom they know, they need not wait for.
        const pid_t victim = AwaitRank(job, 3, 4);
        REQUIRE(job.WaitForLines("resuming after step 4", start, kPatience));
        REQUIRE(kill(victim, SIGKILL) == 0);
        while (kill(victim, 0) == 0) Sleep(0.002);  // it is not to be found again
      }
      REQUIRE(job.Wait(kPatience));
      CAPTURE(job.Story());
      CHECK(job.ending(0).code == 0);
      CHECK(CountOf(job.Err(0),
                    "contraflow-run: rank 3 was ended by signal 9 (Killed); restart 1 of "
                    "1, after step 4\n") == 1);
      CHECK(CountOf(job.Err(0),
                    "contraflow-run: rank 3 was ended by signal 9 (Killed) at each of 2 "
                    "starts after step 4; going on with ") == 1);
      CHECK(LossOfStep(job.Out(0), 40) == doctest::Approx(loss).epsilon(0.01));
    }
  }

  TEST_CASE("restarts that are used up, and what none would mend") {
    const JobFolder folder;
    const std::string plan =
        CompilePlan(folder, "plan", "--schedule 1f1b --ranks 2 --microbatches 4");
    const std::string kept = folder.File("kept");
    {
      LaunchedJob job(Alone({plan, "--model", "tiny", "--steps", "1000000", "--checkpoint", kept,
                             "--restarts", "1"}));
      // Before they have met the other waits for it, until the supervisor has lost its patience.
      REQUIRE(KillRank(job, 1, 2));
      REQUIRE(job.WaitForLines("step", 1, kPatience));
      REQUIRE(KillRank(job, 1, 2));
      REQUIRE(job.Wait(kPatience));
      CAPTURE(job.Story());
      CHECK(job.ending(0).code == 75);
      CHECK(CountOf(job.Err(0), "; restart 1 of 1, from the beginning\n") == 1);
      CHECK(CountOf(job.Err(0),
                    "contraflow-run: error: rank 1 was ended by signal 9 (Killed); 1 "
                    "restarts brought no new checkpoint\n") == 1);
    }
    {
      // It has no plan with fewer ranks. The first step is told once at each start.
      const std::string pair =
          CompilePlan(folder, "pair", "--schedule dualpipe --ranks 2 --microbatches 4");
      LaunchedJob job(Alone({pair, "--model", "tiny", "--steps", "1000000", "--log-every",
                             "1000000", "--checkpoint", kept, "--restarts", "1", "--elastic"}));
      for (const int start : {1, 2}) {
        REQUIRE(job.WaitForLines("step", start, kPatience));
        REQUIRE(KillRank(job, 1, 2));
      }
      REQUIRE(job.Wait(kPatience));
      CAPTURE(job.Story());
      CHECK(job.ending(0).code == 75);
      CHECK(CountOf(job.Err(0),
                    "contraflow-run: error: rank 1 was ended by signal 9 (Killed) at each of 2 "
                    "starts from the beginning; --elastic: no plan with fewer ranks trains the "
                    "same model:\n  1 rank: dualpipe needs ") == 1);
    }
    {
      LaunchedJob job(Alone(
          {plan, "--model", folder.File("none.json"), "--checkpoint", kept, "--restarts", "5"}));
      REQUIRE(job.Wait(kPatience));
      CAPTURE(job.Story());
      CHECK(job.ending(0).code == 1);
      CHECK(CountOf(job.Err(0), "; restart ") == 0);
    }
    // Nothing to start again from.
    for (const Words& more : {Words{}, Words{"--memory-checkpoint", kept, "--elastic"},
                              Words{"--memory-checkpoint", kept, "--check"}}) {
      Words words = {plan, "--model", "tiny", "--restarts", "1"};
      words.insert(words.end(), more.begin(), more.end());
      LaunchedJob job(Alone(words));
      REQUIRE(job.Wait(kPatience));
      CAPTURE(job.Story());
      CHECK(job.ending(0).code == 2);
      CHECK(CountOf(job.Err(0), "needs --checkpoint DIR") == 1);
    }
  }

  TEST_CASE("a supervisor that is told to stop, or killed, leaves nobody behind") {
    const JobFolder folder;
    const std::string plan =
        CompilePlan(folder, "plan", "--schedule 1f1b --ranks 2 --microbatches 4");
    for (const int signal : {SIGTERM, SIGINT, SIGKILL}) {
      CAPTURE(signal);
      LaunchedJob job(Alone({plan, "--model", "tiny", "--steps", "1000000", "--checkpoint",
                             folder.File("kept" + std::to_string(signal)), "--restarts", "5"}));
      REQUIRE(job.WaitForLines("step", 3, kPatience));
      REQUIRE(job.Signal(0, signal));
      CHECK(job.Wait(kPatience));
      CAPTURE(job.Story());
      // Asked by a batch system it may also have stopped in order.
      if (job.ending(0).code != 76 || signal != SIGTERM) CHECK(job.ending(0).signal == signal);
      CHECK(CountOf(job.Err(0), "; restart ") == 0);
      while (!job.Living().empty()) Sleep(0.01);
    }
  }
}

}  // namespace
}  // namespace contraflow::supervisor_test
