// A training in one process that is asked to stop, and one whose output nobody reads.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <string>
#include <thread>

#include "tests/runtime/launch/job.h"
#include "tests/support/failure.h"

namespace contraflow::stop_test {
namespace {

/// N of the line that begins with "stopped after step N"; -1 if there is none.
int StoppedAfter(const std::string& out) {
  const std::string line = "stopped after step ";
  const size_t at = out.find(line);
  return at == std::string::npos ? -1 : std::stoi(out.substr(at + line.size()));
}

TEST_SUITE("jobs") {
  TEST_CASE("signals of batch systems: the step ends and is saved, exit code 76") {
    const TestFolder folder;
    const std::string plan =
        CompilePlan(folder, "plan", "--schedule 1f1b --ranks 2 --microbatches 4");
    for (const int signal : {SIGTERM, SIGUSR1, SIGUSR2, SIGHUP, SIGXCPU, SIGINT}) {
      CAPTURE(signal);
      const std::string kept = folder.File("kept" + std::to_string(signal));
      LaunchedJob job(Alone({plan, "--model", "tiny", "--steps", "1000000", "--checkpoint", kept}));
      REQUIRE(job.WaitForLines("step", 3, kPatience));
      // A second one of a batch system changes nothing.
      REQUIRE(job.Signal(0, signal));
      if (signal != SIGINT) job.Signal(0, signal);
      REQUIRE(job.Wait(kPatience));
      CAPTURE(job.Story());
      CHECK(job.ending(0).signal == (signal == SIGINT ? SIGINT : 0));
      CHECK(job.ending(0).code == (signal == SIGINT ? -1 : 76));
      const int step = StoppedAfter(job.Out(0));
      CHECK(step >= 3);
      char name[32];
      std::snprintf(name, sizeof name, "/step-%08d", step);
      CHECK(std::filesystem::exists(kept + name));
    }
  }

  TEST_CASE("a step that takes longer than the grace period is cut short by the signal") {
    const TestFolder folder;
    // Its first step takes seconds.
    const std::string plan =
        CompilePlan(folder, "plan", "--schedule 1f1b --ranks 2 --microbatches 2000");
    LaunchedJob job(
        Alone({plan, "--steps", "1000000", "--grace", "1ms", "--checkpoint", folder.File("kept")}));
    REQUIRE(job.WaitForLines("model ", 1, kPatience));
    REQUIRE(job.Signal(0, SIGTERM));
    REQUIRE(job.Wait(kPatience));
    CHECK(job.ending(0).signal == SIGTERM);
    for (const auto& entry : std::filesystem::directory_iterator(folder.File("kept"))) {
      CHECK_FALSE(entry.path().filename().string().starts_with("step-"));
    }
  }

  TEST_CASE("a training goes on while nobody reads, and reports when somebody does") {
    const TestFolder folder;
    const std::string plan =
        CompilePlan(folder, "plan", "--schedule 1f1b --ranks 2 --microbatches 4");
    const std::string kept = folder.File("kept");
    int fd[2];
    REQUIRE(pipe(fd) == 0);
    fcntl(fd[1], F_SETPIPE_SZ, 4096);
    const pid_t pid = fork();
    if (pid == 0) {
      dup2(fd[1], STDOUT_FILENO);
      close(fd[0]);
      close(fd[1]);
      execl(CF_RUN_TOOL, CF_RUN_TOOL, plan.c_str(), "--model", "tiny", "--steps", "200",
            "--checkpoint", kept.c_str(), nullptr);
      _exit(127);
    }
    close(fd[1]);
    for (int wait = 0; wait < 20'000 && !std::filesystem::exists(kept + "/step-00000200"); ++wait) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    CHECK(std::filesystem::exists(kept + "/step-00000200"));
    std::string text;
    char buffer[4096];
    for (ssize_t got = 0; (got = read(fd[0], buffer, sizeof buffer)) > 0;) {
      text.append(buffer, static_cast<size_t>(got));
    }
    close(fd[0]);
    int status = 0;
    REQUIRE(waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
    CHECK(CountOf(text, "\nstep ") == 200);
    CHECK(Contains(text, "weights after step 200: SHA-256 "));
  }
}

}  // namespace
}  // namespace contraflow::stop_test
