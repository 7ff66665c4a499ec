// A training that its launcher starts again, as torchrun --max-restarts and srun --requeue do.

#include <doctest/doctest.h>

#include <csignal>
#include <map>
#include <random>
#include <string>

#include "runtime/checkpoint/folder.h"
#include "tests/runtime/launch/job.h"
#include "tests/support/sanitized.h"

namespace contraflow::restart_test {
namespace {

/// Returns the digest of the weights in a report, or the whole report.
std::string WeightsIn(const std::string& out) {
  const std::string line = "SHA-256 ";
  const size_t at = out.rfind(line);
  return at == std::string::npos ? out : out.substr(at + line.size(), 64);
}

/// Returns the last step of the newest checkpoint; 0 without one.
int Newest(const std::string& kept) {
  const std::map<int, std::string> steps = CompleteSteps(kept);
  return steps.empty() ? 0 : steps.rbegin()->first;
}

TEST_SUITE("jobs") {
  TEST_CASE("a training that is started again after each kill ends with the same weights") {
    const TestFolder folder;
    const std::string kept = folder.File("kept");
    const int kills = CasesToDraw(20) / 2;
    JobSpec spec;
    spec.processes = 4;
    // Many steps: the last kill comes before the end on the fastest machine.
    spec.words = {CompilePlan(folder, "plan", "--schedule 1f1b --ranks 4 --microbatches 8"),
                  "--model", "tiny", "--steps", std::to_string(100 * kills)};
    std::string undisturbed;
    {
      LaunchedJob job(Alone(spec.words));
      REQUIRE(job.Wait(kPatience));
      undisturbed = WeightsIn(job.Out(0));
      REQUIRE(undisturbed.size() == 64);
    }
    spec.words.insert(spec.words.end(),
                      {"--checkpoint", kept, "--checkpoint-every", "5", "--resume"});
    std::mt19937 random(41);
    int newest = 0;
    int resumed = 0;
    for (int kill = 0; kill < kills; ++kill) {
      CAPTURE(kill);
      LaunchedJob job(spec);
      const int lines = 1 + static_cast<int>(random() % 8);
      REQUIRE(job.WaitForLines("step ", lines, kPatience));
      // Every second one is killed when it has a new checkpoint.
      for (int tries = 0; kill % 2 == 1 && Newest(kept) == newest && tries < 10'000; ++tries) {
        REQUIRE_FALSE(job.Wait(0.02));
      }
      newest = Newest(kept);
      const int victim = static_cast<int>(random() % 4);
      REQUIRE(job.Signal(victim, SIGKILL));
      REQUIRE(job.Wait(kPatience));
      CAPTURE(job.Story());
      for (int process = 0; process < 4; ++process) {
        if (process == victim) continue;
        CHECK(job.ending(process).code == 75);
        CHECK(job.ending(process).when - job.ending(victim).when < std::chrono::seconds(3));
      }
      CHECK(job.Living().empty());
      resumed += CountOf(job.Out(0), "resuming after step ");
    }
    LaunchedJob job(spec);
    REQUIRE(job.Wait(kPatience));
    CAPTURE(job.Story());
    for (int process = 0; process < 4; ++process) CHECK(job.ending(process).code == 0);
    resumed += CountOf(job.Out(0), "resuming after step ");
    CHECK(resumed >= kills / 2);
    CHECK(WeightsIn(job.Out(0)) == undisturbed);
  }
}

}  // namespace
}  // namespace contraflow::restart_test
