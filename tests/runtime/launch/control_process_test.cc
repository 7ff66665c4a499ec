// Jobs of real processes, which really end: by which signal or code, and what they say.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <functional>
#include <future>
#include <iostream>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "compiler/files/file.h"
#include "compiler/plan/error.h"
#include "runtime/launch/meeting.h"
#include "tests/runtime/launch/watched_job.h"
#include "tests/support/failure.h"

namespace contraflow::control_process_test {
namespace {

using std::chrono::milliseconds;

using Ends = std::vector<std::string>;

std::string Join(const Ends& ends) {
  std::string text;
  for (const std::string& end : ends) text += (text.empty() ? "" : ", ") + end;
  return text;
}

/// A process that runs a body with a Control, and keeps its stderr.
class ForkedJob {
 public:
  using Body = std::function<void(int rank, Control& control)>;

  ForkedJob(int size, const Control::Options& options, const Body& body) {
    std::vector<Membership> members = JoinWatch(size);
    // The thread sanitizer of GCC 12 makes a thread's store of signals at its first blocking call.
    // It loses a signal that comes meanwhile, and so the store is made here.
    ::poll(nullptr, 0, 0);
    // Output that is not written yet would be written by each of them.
    std::fflush(nullptr);
    std::cout.flush();
    for (int rank = 0; rank < size; ++rank) {
      int fds[2];
      CF_ASSERT(::pipe2(fds, O_CLOEXEC) == 0);
      const pid_t pid = ::fork();
      CF_ASSERT(pid >= 0);
      if (pid == 0) {
        // Whoever waits for the end of a connection must be the only one who holds it.
        Membership mine = std::move(members[static_cast<size_t>(rank)]);
        members.clear();
        pipes_.clear();
        ::dup2(fds[1], STDERR_FILENO);
        Live(rank, std::move(mine), options, body);
      }
      ::close(fds[1]);
      pids_.push_back(pid);
      pipes_.emplace_back(fds[0]);
      said_.emplace_back();
    }
    members.clear();
    for (int rank = 0; rank < size; ++rank) Await(rank, "ready\n");
  }
  ~ForkedJob() {
    for (const pid_t pid : pids_) {
      if (pid <= 0) continue;
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
  }

  void Signal(int rank, int signal) { ::kill(pids_[static_cast<size_t>(rank)], signal); }
  /// Waits until the process has begun to handle each signal it was sent.
  void AwaitSignals(int rank) {
    const std::string status =
        "/proc/" + std::to_string(pids_[static_cast<size_t>(rank)]) + "/status";
    while (!Contains(ReadFile(status, 1 << 16), "\nShdPnd:\t0000000000000000\n")) {
      std::this_thread::sleep_for(milliseconds(1));
    }
  }
  /// Waits until it has said this.
  void Await(int rank, const std::string& line) {
    while (!Contains(WordFrame(rank), line) && Read(rank)) {
    }
  }
  /// How it ended: `exit 1`, `signal 9`; or `lives`, after some minutes.
  std::string Wait(int rank) {
    pid_t& pid = pids_[static_cast<size_t>(rank)];
    const auto deadline = Clock::now() + std::chrono::seconds(200);
    int status = 0;
    while (::waitpid(pid, &status, WNOHANG) == 0) {
      if (Clock::now() > deadline) return "lives";
      std::this_thread::sleep_for(milliseconds(2));
    }
    pid = 0;
    while (Read(rank)) {
    }
    return WIFSIGNALED(status) ? "signal " + std::to_string(WTERMSIG(status))
                               : "exit " + std::to_string(WEXITSTATUS(status));
  }
  /// Results of all, joined by commas.
  std::string WaitAll() {
    Ends ends;
    for (int rank = 0; rank < static_cast<int>(pids_.size()); ++rank) ends.push_back(Wait(rank));
    return Join(ends);
  }
  /// On stderr, so far, after what says that it is ready.
  std::string& WordFrame(int rank) { return said_[static_cast<size_t>(rank)]; }
  std::string ReportOf(int rank) { return WordFrame(rank).substr(std::strlen("ready\n")); }

 private:
  [[noreturn]] static void Live(int rank, Membership membership, const Control::Options& options,
                                const Body& body) {
    try {
      const Progress progress;
      Control control(std::move(membership), progress, options);
      ::dprintf(STDERR_FILENO, "ready\n");
      try {
        body(rank, control);
      } catch (const Aborted&) {
        control.Fail(FaultKind::kError, "", 1);
      } catch (const Error& error) {
        control.Fail(FaultKind::kError, error.what(), 40 + rank);
      }
    } catch (...) {
      ::_exit(99);
    }
    ::_exit(0);
  }
  bool Read(int rank) {
    char buffer[4096];
    const int fd = pipes_[static_cast<size_t>(rank)].fd();
    pollfd polled = {fd, POLLIN, 0};
    if (::poll(&polled, 1, 200'000) != 1) return false;
    const ssize_t count = ::read(fd, buffer, sizeof buffer);
    if (count > 0) WordFrame(rank).append(buffer, static_cast<size_t>(count));
    return count > 0;
  }

  std::vector<pid_t> pids_;
  std::vector<Socket> pipes_;
  std::vector<std::string> said_;
};

void Work(int, Control& control) { WaitForStop(control); }

TEST_SUITE("unit") {
  TEST_CASE("control processes: a rank that is sent a signal ends by it and the others by code") {
    std::vector<std::unique_ptr<ForkedJob>> jobs;
    for (const int signal : {SIGTERM, SIGINT}) {
      for (int rank = 0; rank < 3; ++rank) {
        jobs.push_back(std::make_unique<ForkedJob>(3, Unhurried(), Work));
        jobs.back()->Signal(rank, signal);
      }
    }
    for (const int signal : {SIGTERM, SIGINT}) {
      for (int rank = 0; rank < 3; ++rank) {
        CAPTURE(signal);
        CAPTURE(rank);
        ForkedJob& job = *jobs[static_cast<size_t>(rank + (signal == SIGINT ? 3 : 0))];
        Ends expected(3, "exit 75");
        expected[static_cast<size_t>(rank)] = "signal " + std::to_string(signal);
        CHECK(job.WaitAll() == Join(expected));
        CHECK(FirstLine(job.ReportOf(0)) == "contraflow-run: error: rank " + std::to_string(rank) +
                                                " was sent SIG" +
                                                (signal == SIGTERM ? "TERM" : "INT"));
        CHECK(job.ReportOf(1) == "");
        CHECK(job.ReportOf(2) == "");
      }
    }
  }

  TEST_CASE("control processes: a launcher that ends all when one dies is not the cause") {
    // The loss ends the wait for it, so a long bound costs nothing.
    Control::Options options = Unhurried();
    options.bound = std::chrono::seconds(200);
    for (int dead = 0; dead < 3; ++dead) {
      CAPTURE(dead);
      ForkedJob job(3, options, Work);
      // The other way round than it happens: the signals are there before the loss can be seen.
      for (int rank = 0; rank < 3; ++rank) {
        if (rank != dead) job.Signal(rank, SIGTERM);
      }
      for (int rank = 0; rank < 3; ++rank) {
        if (rank != dead) job.AwaitSignals(rank);
      }
      job.Signal(dead, SIGKILL);
      Ends expected(3, "signal " + std::to_string(SIGTERM));
      expected[static_cast<size_t>(dead)] = "signal " + std::to_string(SIGKILL);
      CHECK(job.WaitAll() == Join(expected));
      const std::string report = job.ReportOf(dead == 0 ? 1 : 0);
      CHECK(FirstLine(report).starts_with(
          "contraflow-run: error: rank " + std::to_string(dead) +
          " was lost: its connection closed (it was killed, or its machine is gone)"));
      CAPTURE(report);
      CHECK(Contains(report, "were sent SIGTERM\n") == (dead != 0));
    }
  }

  TEST_CASE("control processes: the code of an error") {
    ForkedJob job(2, Unhurried(), [](int rank, Control& control) {
      if (rank == 1) throw Error("it broke");
      WaitForStop(control);
    });
    CHECK(job.WaitAll() == Join({"exit 1", "exit 41"}));
    CHECK(FirstLine(job.ReportOf(0)) == "contraflow-run: error: rank 1: it broke");
  }

  TEST_CASE("control processes: one that is stuck, or whose report nobody reads, is ended") {
    const std::vector<ForkedJob::Body> stuck = {
        // The wake does not come back, and neither does the main thread.
        [](int, Control& control) {
          control.OnStop([] { ::pause(); });
          ::dprintf(STDERR_FILENO, "stuck\n");
          for (;;) ::pause();
        },
        // Nobody reads what it prints: that keeps it from nothing.
        [](int, Control& control) {
          int fds[2];
          CF_ASSERT(::pipe2(fds, O_NONBLOCK) == 0);
          const std::string bytes(4096, ' ');
          while (::write(fds[1], bytes.data(), bytes.size()) > 0) {
          }
          ::fcntl(fds[1], F_SETFL, 0);
          const int said = ::dup(STDERR_FILENO);
          ::dup2(fds[1], STDERR_FILENO);
          ::dprintf(said, "stuck\n");
          ::close(said);
          WaitForStop(control);
        },
    };
    // The first takes all of its bound.
    Control::Options options[] = {Unhurried(), Unhurried()};
    options[0].bound = milliseconds(1000);
    std::vector<std::unique_ptr<ForkedJob>> jobs;
    for (size_t i = 0; i < 2; ++i) {
      jobs.push_back(std::make_unique<ForkedJob>(1, options[i], stuck[i]));
      jobs.back()->Await(0, "stuck\n");
      jobs.back()->Signal(0, SIGTERM);
    }
    for (const auto& job : jobs) {
      CAPTURE(&job - jobs.data());
      const int signal = job == jobs[0] ? SIGKILL : SIGTERM;
      CHECK(job->Wait(0) == "signal " + std::to_string(signal));
    }
  }

  TEST_CASE("control processes: a main thread that does not come back is ended under it") {
    ForkedJob job(2, Unhurried(), [](int rank, Control& control) {
      if (rank == 1) WaitForStop(control);
      for (;;) ::pause();
    });
    job.Signal(1, SIGTERM);
    CHECK(job.WaitAll() == Join({"exit 75", "signal " + std::to_string(SIGTERM)}));
  }

  TEST_CASE("control processes: one that is stopped is lost and ends when it goes on") {
    Control::Options options = Unhurried();
    options.silence = milliseconds(4000);
    ForkedJob job(3, options, Work);
    job.Signal(1, SIGSTOP);
    CHECK(job.Wait(0) == "exit 75");
    CHECK(job.Wait(2) == "exit 75");
    const std::string report = job.ReportOf(0);
    CAPTURE(report);
    CHECK(Contains(FirstLine(report), "rank 1 was lost: it was silent for 4 s"));
    job.Signal(1, SIGCONT);
    CHECK(job.Wait(1) == "exit 75");
  }

  TEST_CASE("control processes: a whole job that was stopped for a while goes on") {
    Control::Options options = Unhurried();
    // A busy machine may keep a process from running for seconds.
    options.silence = milliseconds(5000);
    options.timeout = milliseconds(5000);
    const auto end = Clock::now() + milliseconds(6000);
    ForkedJob job(2, options, [end](int, Control& control) {
      std::this_thread::sleep_until(end);
      control.Finish();
    });
    for (const int rank : {0, 1}) job.Signal(rank, SIGSTOP);
    std::this_thread::sleep_for(milliseconds(5500));
    for (const int rank : {0, 1}) job.Signal(rank, SIGCONT);
    CHECK(job.WaitAll() == Join({"exit 0", "exit 0"}));
    CHECK(job.ReportOf(0) == "");
  }

  TEST_CASE("control processes: one that is asked to stop has its time and tells all") {
    Control::Options options = Unhurried();
    options.grace = milliseconds(200'000);
    ForkedJob job(3, options, [](int, Control& control) {
      while (!control.Barrier()) std::this_thread::sleep_for(milliseconds(2));
      control.Finish();
      ::_exit(50);
    });
    job.Signal(2, SIGUSR1);
    CHECK(job.WaitAll() == Join({"exit 50", "exit 50", "exit 50"}));
    CHECK(job.ReportOf(0) == "");
    // Once the time is over, or at the second signal, all stop.
    options.grace = milliseconds(300);
    ForkedJob slow(2, options, Work);
    slow.Signal(1, SIGTERM);
    CHECK(slow.WaitAll() == Join({"exit 75", "signal " + std::to_string(SIGTERM)}));
    CHECK(FirstLine(slow.ReportOf(0)) ==
          "contraflow-run: error: rank 1 was sent SIGTERM, and its step did not end within 0.3 s");
  }

  TEST_CASE("control processes: signals that are ignored stay so and those after the end count") {
    ForkedJob job(2, Unhurried(), [](int, Control& control) {
      ::raise(SIGINT);
      control.Finish();
    });
    CHECK(!Contains(job.WaitAll(), "exit 0"));

    const auto old = std::signal(SIGINT, SIG_IGN);
    ForkedJob ignoring(2, Unhurried(), [](int, Control& control) {
      ::raise(SIGINT);
      control.Finish();
    });
    std::signal(SIGINT, old);
    CHECK(ignoring.WaitAll() == Join({"exit 0", "exit 0"}));
  }

  TEST_CASE("control processes: a job that met over TCP") {
    std::promise<Address> ready;
    std::shared_future<Address> address = ready.get_future().share();
    std::vector<std::thread> threads;
    std::mutex mutex;
    std::vector<int> codes(4, -1);
    std::vector<std::string> reports;
    for (int rank = 0; rank < 4; ++rank) {
      threads.emplace_back([&, rank] {
        MeetingPoint point;
        point.rank = rank;
        point.size = 4;
        point.secret = "known to the job";
        point.address = rank == 0 ? Address{"127.0.0.1", 0} : address.get();
        point.ready = [&](const Address& at) { ready.set_value(at); };
        Control::Options options = Unhurried();
        options.catch_signals = false;
        options.exit = [&, rank](int code) {
          const std::lock_guard lock(mutex);
          codes[static_cast<size_t>(rank)] = code;
        };
        options.print = [&](const std::string& report) {
          const std::lock_guard lock(mutex);
          reports.push_back(report);
        };
        const Progress progress;
        Control control(Meet(point), progress, options);
        try {
          control.Barrier();
          if (rank == 3) return;  // Lost to the others.
          control.Barrier();
        } catch (const Aborted&) {
          control.Fail(FaultKind::kError, "", 1);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(codes == std::vector<int>{75, 75, 75, -1});
    REQUIRE(reports.size() == 1);
    CHECK(FirstLine(reports[0]) ==
          "contraflow-run: error: rank 3 was lost: its connection closed (it was killed, or its "
          "machine is gone)");
  }
}

}  // namespace
}  // namespace contraflow::control_process_test
