// Processes of a job that are killed, stopped or told to end: the others never wait for them, one
// report says who was lost, and a resumed training ends as if nothing had happened.

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <thread>

#include "tests/runtime/launch/job.h"
#include "tests/support/sanitized.h"

namespace contraflow::job_kill_test {
namespace {

using Clock = std::chrono::steady_clock;

/// Within which all others have ended when one is lost: the bound is 3 s, and 30 s of silence would
/// end them too.
constexpr double kEndSeconds = 20;
/// The least that a training comes to; those that are killed have no end of their own.
constexpr int kSteps = 14;
const std::string kEndless = "1000000";

/// How often each training is killed: every rank once. CONTRAFLOW_KILLS sets another number.
int Kills() {
  if (const char* const kills = std::getenv("CONTRAFLOW_KILLS")) return std::atoi(kills);
  return CasesToDraw(4);
}

double SecondsBetween(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

void Sleep(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

bool OthersEnded(const LaunchedJob& job, int victim) {
  for (int p = 0; p < job.processes(); ++p) {
    if (p != victim && !job.ending(p).ended) return false;
  }
  return true;
}

/// Checks that there are `count` reports whose first line begins so.
void CheckReports(const LaunchedJob& job, const std::string& line, int count = 1) {
  const std::string all = job.Everything();
  CHECK(CountOf(all, "contraflow-run: error: ") == count);
  CHECK(CountOf(all, "contraflow-run: error: " + line) == count);
}

/// The reports of the loss of a rank: one, or a line of each other process where it is rank 0.
void CheckLossReports(const LaunchedJob& job, int processes, int victim,
                      const std::string& how = "") {
  CheckReports(job, "rank " + std::to_string(victim) + " was lost: " + how,
               victim == 0 ? processes - 1 : 1);
}

/// All have ended, not well, within the bound since `since`, and one report names the lost rank.
void CheckStopped(LaunchedJob& job, int victim, Clock::time_point since) {
  CAPTURE(job.Story());
  CHECK(job.Wait(kPatience));
  for (int p = 0; p < job.processes(); ++p) {
    CAPTURE(p);
    CHECK(job.ending(p).code != 0);
    CHECK(SecondsBetween(since, job.ending(p).when) < kEndSeconds);
    if (p != victim) CHECK(job.ending(p).signal == 0);
  }
  CheckLossReports(job, job.processes(), victim);
  CHECK(job.Living().empty());
}

/// Newest step of the checkpoints in a folder; 0: there is none.
int NewestStep(const std::string& checkpoints) {
  int newest = 0;
  std::error_code missing;
  for (const auto& entry : std::filesystem::directory_iterator(checkpoints, missing)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("step-") && name.find_first_not_of("0123456789", 5) == std::string::npos) {
      newest = std::max(newest, std::stoi(name.substr(5)));
    }
  }
  return newest;
}

/// A training that is killed, and what it comes to where it is not.
struct Trial {
  Trial(const std::string& schedule, int the_ranks) : ranks(the_ranks) {
    const std::string plan =
        CompilePlan(folder, "plan",
                    "--schedule " + schedule + " --ranks " + std::to_string(ranks) +
                        " --microbatches " + std::to_string(2 * ranks));
    words = {plan, "--model", "tiny", "--steps"};
  }

  /// Result after this many steps.
  const Trained& Expected(int steps) {
    Trained& trained = expected[steps];
    if (trained.weights.empty()) {
      Words all = words;
      all.push_back(std::to_string(steps));
      trained = TrainWithThreads(all);
      REQUIRE(trained.weights.size() == 64);
      REQUIRE(trained.losses.size() == static_cast<size_t>(steps));
    }
    return trained;
  }

  JobSpec Spec(const std::string& steps, const std::string& checkpoints, int every,
               const Words& more = {}) const {
    JobSpec spec;
    spec.processes = ranks;
    spec.words = words;
    spec.words.insert(spec.words.end(), {steps, "--checkpoint", checkpoints, "--checkpoint-every",
                                         std::to_string(every)});
    spec.words.insert(spec.words.end(), more.begin(), more.end());
    return spec;
  }

  /// Goes on from the newest checkpoint, to the same weights. Returns the step of the checkpoint.
  int CheckResumed(const std::string& checkpoints, int every,
                   JobStyle style = JobStyle::kTorchrun) {
    const int newest = NewestStep(checkpoints), steps = std::max(kSteps, newest + 2);
    const Trained& whole = Expected(steps);
    JobSpec spec = Spec(std::to_string(steps), checkpoints, every, {"--resume", "--json"});
    spec.style = style;
    LaunchedJob job(spec);
    CAPTURE(job.Story());
    CHECK(job.Wait(kPatience));
    for (int p = 0; p < job.processes(); ++p) CHECK(job.ending(p).code == 0);
    const Trained trained = TrainedBy(job.Out(0));
    CHECK(trained.weights == whole.weights);
    // The steps that it did itself gave the same losses too.
    REQUIRE(trained.losses.size() == static_cast<size_t>(steps - newest));
    CHECK(std::equal(trained.losses.rbegin(), trained.losses.rend(), whole.losses.rbegin()));
    return newest;
  }

  TestFolder folder;
  int ranks;
  Words words;                      // but for the number of steps
  std::map<int, Trained> expected;  // by that
};

/// Kills each rank in turn, at moments that the seed draws, and resumes.
void CheckKills(const std::string& schedule, int ranks, unsigned seed) {
  Trial trial(schedule, ranks);
  std::mt19937 random(seed);
  std::string log;
  for (int kill = 0; kill < Kills(); ++kill) {
    const int victim = kill % ranks, every = 1 + kill % 2;
    const int step = 1 + static_cast<int>(random() % (kSteps - 4));
    const double delay = static_cast<double>(random() % 1000) * 1e-5;
    CAPTURE(victim);
    CAPTURE(step);
    CAPTURE(delay);
    const std::string checkpoints = trial.folder.File("checkpoints-" + std::to_string(kill));
    LaunchedJob job(trial.Spec(kEndless, checkpoints, every));
    CAPTURE(job.Story());
    REQUIRE(job.WaitForLines("step ", step, kPatience));
    Sleep(delay);
    const Clock::time_point killed = Clock::now();
    REQUIRE(job.Signal(victim, SIGKILL));
    CheckStopped(job, victim, killed);
    CHECK(job.ending(victim).signal == SIGKILL);
    trial.CheckResumed(checkpoints, every);
    double last = 0;
    for (int p = 0; p < ranks; ++p) {
      last = std::max(last, SecondsBetween(killed, job.ending(p).when));
    }
    log += "\nrank " + std::to_string(victim) + " killed " + std::to_string(delay * 1e3) +
           " ms after step " + std::to_string(step) + ", the last ended " +
           std::to_string(last * 1e3) + " ms later";
  }
  MESSAGE(schedule << " on " << ranks << " ranks" << log);
}

}  // namespace

TEST_SUITE("jobs") {
  TEST_CASE("killed: 1f1b on two ranks") { CheckKills("1f1b", 2, 1); }
  TEST_CASE("killed: zb-1p on three ranks") { CheckKills("zb-1p", 3, 2); }
  TEST_CASE("killed: dualpipe on four ranks") { CheckKills("dualpipe", 4, 3); }
  TEST_CASE("killed: zb-1p on four ranks") { CheckKills("zb-1p", 4, 4); }
  TEST_CASE("killed: 1f1b on four ranks") { CheckKills("1f1b", 4, 5); }

  TEST_CASE("killed while they meet: nobody waits for ever") {
    const Trial trial("1f1b", 3);
    std::mt19937 random(6);
    for (int victim = 0; victim < 3; ++victim) {
      CAPTURE(victim);
      LaunchedJob job(
          trial.Spec(kEndless, trial.folder.File("checkpoints"), 1, {"--rendezvous-timeout", "1"}));
      Sleep(static_cast<double>(random() % 1000) * 3e-5);
      job.Signal(victim, SIGKILL);
      CAPTURE(job.Story());
      CHECK(job.Wait(kPatience));
      for (int p = 0; p < job.processes(); ++p) CHECK(job.ending(p).code != 0);
      CHECK(job.Living().empty());
    }
  }

  TEST_CASE("killed: expert groups name the member") {
    const TestFolder folder;
    JobSpec spec;
    spec.processes = 4;
    spec.words = {CompilePlan(folder, "plan",
                              "--schedule 1f1b --ranks 2 --microbatches 4 --expert-parallel 2 "
                              "--costs moe-unit --level component"),
                  "--model", "tiny", "--steps", "100000"};
    LaunchedJob job(spec);
    REQUIRE(job.WaitForLines("step ", 2, kPatience));
    const Clock::time_point killed = Clock::now();
    REQUIRE(job.Signal(3, SIGKILL));
    CAPTURE(job.Story());
    CHECK(job.Wait(kPatience));
    CheckReports(job, "member 1 rank 1 was lost: ");
    for (int p = 0; p < 3; ++p) {
      CHECK(job.ending(p).code > 0);
      CHECK(SecondsBetween(killed, job.ending(p).when) < kEndSeconds);
    }
  }

  TEST_CASE("SIGTERM and SIGUSR1 to one rank end all after the step and nothing is lost") {
    Trial trial("dualpipe", 4);
    for (const int victim : {0, 1, 3}) {
      CAPTURE(victim);
      const std::string checkpoints = trial.folder.File("asked-" + std::to_string(victim));
      // No checkpoint but that of the end.
      LaunchedJob job(trial.Spec(kEndless, checkpoints, 1'000'000));
      CAPTURE(job.Story());
      REQUIRE(job.WaitForLines("step ", 3, kPatience));
      REQUIRE(job.Signal(victim, victim == 3 ? SIGUSR1 : SIGTERM));
      CHECK(job.Wait(kPatience));
      for (int p = 0; p < job.processes(); ++p) CHECK(job.ending(p).code == 76);
      CHECK(CountOf(job.Everything(), "error") == 0);
      CHECK(job.Living().empty());
      CHECK(trial.CheckResumed(checkpoints, 1000) == CountOf(job.Out(0), "\nstep "));
    }
  }

  TEST_CASE("SIGSTOP of one rank: the others give up") {
    const TestFolder folder;
    JobSpec spec;
    spec.processes = 3;
    spec.words = {CompilePlan(folder, "plan", "--schedule 1f1b --ranks 3 --microbatches 6"),
                  "--model",
                  "tiny",
                  "--steps",
                  "100000",
                  "--timeout",
                  "4"};
    for (const int victim : {0, 2}) {
      CAPTURE(victim);
      LaunchedJob job(spec);
      CAPTURE(job.Story());
      REQUIRE(job.WaitForLines("step ", 2, kPatience));
      const Clock::time_point stopped = Clock::now();
      REQUIRE(job.Signal(victim, SIGSTOP));
      while (!OthersEnded(job, victim) && SecondsBetween(stopped, Clock::now()) < kPatience) {
        job.Wait(0.02);
      }
      for (int p = 0; p < job.processes(); ++p) {
        CAPTURE(p);
        CHECK(job.ending(p).ended == (p != victim));
        if (p == victim) continue;
        CHECK(job.ending(p).code > 0);
        CHECK(SecondsBetween(stopped, job.ending(p).when) < 4 + kEndSeconds);
      }
      // Either is true by then: it is silent, and nobody gets on.
      const std::string name = "rank " + std::to_string(victim), all = job.Everything();
      if (CountOf(all, "no rank has made progress for 4 s\n") > 0) {
        CheckReports(job, "no rank has made progress for 4 s\n");
        CHECK(CountOf(all, "\n  " + name + "  did not answer; ") == 1);
      } else {
        CheckLossReports(job, job.processes(), victim, "it was silent for 4 s");
      }
      // It finds that it is alone, and ends too.
      job.Signal(victim, SIGCONT);
      CHECK(job.Wait(kPatience));
      CHECK(job.ending(victim).code > 0);
      CHECK(job.Living().empty());
    }
  }

#ifdef CF_HAVE_MPI
  TEST_CASE("mpirun: a rank that is killed is reported and nothing is left") {
    Trial trial("dualpipe", 4);
    std::mt19937 random(7);
    const int kills = std::getenv("CONTRAFLOW_KILLS") == nullptr ? 3 : Kills();
    for (int kill = 0; kill < kills; ++kill) {
      const int victim = kill % 3 * (kill % 3 + 1) / 2;  // 0, 1, 3
      CAPTURE(victim);
      const std::string checkpoints = trial.folder.File("mpi-" + std::to_string(kill));
      JobSpec spec = trial.Spec(kEndless, checkpoints, 1);
      spec.style = JobStyle::kMpirun;
      LaunchedJob job(spec);
      CAPTURE(job.Story());
      REQUIRE(job.WaitForLines("step ", 1 + victim, kPatience));
      Sleep(static_cast<double>(random() % 1000) * 1e-5);
      const Clock::time_point killed = Clock::now();
      REQUIRE(job.Signal(victim, SIGKILL));
      CHECK(job.Wait(kPatience));
      CHECK(job.ending(0).code > 0);
      CHECK(SecondsBetween(killed, job.ending(0).when) < kEndSeconds);
      CheckLossReports(job, trial.ranks, victim);
      CHECK(job.Living().empty());
      trial.CheckResumed(checkpoints, 1, JobStyle::kMpirun);
    }
  }
#endif
}

}  // namespace contraflow::job_kill_test
