// Jobs whose processes are threads here: whatever goes wrong on any of them, all end, with one
// report that names the cause, and codes that are not 0.

#include "runtime/launch/control.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "compiler/plan/error.h"
#include "tests/runtime/launch/watched_job.h"
#include "tests/support/failure.h"

namespace contraflow::control_test {
namespace {

using std::chrono::milliseconds;

constexpr int kSizes[] = {1, 2, 3, 5};
constexpr const char* kClosed =
    " was lost: its connection closed (it was killed, or its machine is gone)";

std::string Name(int rank) { return "rank " + std::to_string(rank); }

void Sleep(int ms) { std::this_thread::sleep_for(milliseconds(ms)); }

/// The codes of all ranks; of those that were killed -1.
std::vector<int> Codes(WatchedJob& job) {
  std::vector<int> codes;
  for (int rank = 0; rank < job.size(); ++rank) codes.push_back(job.end(rank).code);
  return codes;
}

/// 1, or another one, by each rank, with `code` by `rank`.
std::vector<int> CodesBut(int size, int rank, int code, int others = 1) {
  std::vector<int> codes(static_cast<size_t>(size), others);
  codes[static_cast<size_t>(rank)] = code;
  return codes;
}

TEST_SUITE("unit") {
  TEST_CASE("control: an error on any rank stops all") {
    for (const int size : kSizes) {
      for (int failing = 0; failing < size; ++failing) {
        for (const FaultKind kind : {FaultKind::kError, FaultKind::kBug}) {
          CAPTURE(size);
          CAPTURE(failing);
          WatchedJob job(size);
          job.Run([&](int rank, Control& control, Progress& progress) {
            progress.Enter(3, 17);
            control.Barrier();
            if (rank == failing) return control.Fail(kind, "it broke", 42);
            WaitForStop(control);
          });
          CHECK(Codes(job) == CodesBut(size, failing, 42));
          const std::string subject = size > 1 ? Name(failing) + ": " : "";
          CHECK(FirstLine(job.Report()) == "contraflow-run: error: " + subject + "it broke");
          for (int rank = 0; rank < size && size > 1; ++rank) {
            CHECK(Contains(job.Report(), "\n  " + Name(rank) + "  step 3, instruction 17 since "));
          }
        }
      }
    }
  }

  TEST_CASE("control: the loss of any rank ends the others wherever they wait") {
    const std::vector<std::function<void(Control&)>> waits = {
        [](Control& control) { control.Gather("x"); },
        [](Control& control) { control.Broadcast("x"); },
        [](Control& control) { control.Barrier(); },
        [](Control& control) { control.Finish(); },
        [](Control& control) { WaitForStop(control); },
    };
    for (const int size : {2, 3, 5}) {
      for (int lost = 0; lost < size; ++lost) {
        for (const auto& wait : waits) {
          CAPTURE(size);
          CAPTURE(lost);
          CAPTURE(&wait - waits.data());
          WatchedJob job(size);
          std::atomic<int> waiting = 1;
          for (int rank = 0; rank < size; ++rank) {
            if (rank == lost) continue;
            job.Start(rank, [&](int self, Control& control, Progress& progress) {
              progress.Enter(4, self);
              ++waiting;
              wait(control);
            });
          }
          while (waiting < size) Sleep(1);
          job.Kill(lost);
          job.Join();
          CHECK(Codes(job) == CodesBut(size, lost, -1, Control::kStoppedCode));
          for (int rank = 0; rank < size; ++rank) CHECK(job.end(rank).aborted == (rank != lost));
          const std::string line = "contraflow-run: error: " + Name(lost) + kClosed;
          if (lost > 0) {
            CHECK(FirstLine(job.Report()) == line);
            CHECK(job.reports()[0].first == 0);
            CHECK(!Contains(job.Report(), "then"));
            continue;
          }
          // Each of the others prints one line.
          auto reports = job.reports();
          std::ranges::sort(reports);
          REQUIRE(reports.size() == static_cast<size_t>(size) - 1);
          for (int rank = 1; rank < size; ++rank) {
            const auto& [reporter, report] = reports[static_cast<size_t>(rank) - 1];
            CHECK(reporter == rank);
            CHECK(report.starts_with(line + "; " + Name(rank) + ": step 4, instruction " +
                                     std::to_string(rank) + " since "));
            CHECK(report.find('\n') == report.size() - 1);
          }
        }
      }
    }
  }

  TEST_CASE("control: an error of all ranks is one line") {
    for (const int size : kSizes) {
      CAPTURE(size);
      WatchedJob job(size);
      job.Run([](int, Control&, Progress&) { throw Error("plan.json: no such file"); });
      const std::string subject = size > 1 ? "all " + std::to_string(size) + " ranks: " : "";
      CHECK(job.Report() == "contraflow-run: error: " + subject + "plan.json: no such file\n");
      for (int rank = 0; rank < size; ++rank) CHECK(job.end(rank).code == 10 + rank);
    }
  }

  TEST_CASE("control: of two errors the first is the cause") {
    for (int first = 0; first < 4; ++first) {
      const int second = (first + 2) % 4;
      CAPTURE(first);
      WatchedJob job(4);
      job.Run([&](int rank, Control& control, Progress&) {
        if (rank == first) throw Error("first");
        try {
          WaitForStop(control);
        } catch (const Aborted&) {
          if (rank == second) throw Error("second");
          throw;
        }
      });
      std::vector<int> codes = CodesBut(4, first, 10 + first);
      codes[static_cast<size_t>(second)] = 10 + second;
      CHECK(Codes(job) == codes);
      const std::string report = job.Report();
      CHECK(FirstLine(report) == "contraflow-run: error: " + Name(first) + ": first");
      const std::string last = "\n  then    " + Name(second) + ": second\n";
      CHECK(report.substr(report.size() - std::min(report.size(), last.size())) == last);
    }
    // Both at once: either of them is first, and the other is told.
    for (int round = 0; round < 10; ++round) {
      WatchedJob job(3);
      job.Run([&](int rank, Control& control, Progress&) {
        if (rank == 0) WaitForStop(control);
        throw Error("error " + std::to_string(rank));
      });
      const std::string report = job.Report();
      CHECK(Codes(job) == std::vector<int>{1, 11, 12});
      CHECK(Contains(report, "error: rank 1: error 1\n") ==
            (Contains(report, "then    rank 2: error 2\n")));
      CHECK(Contains(report, "error: rank 2: error 2\n") ==
            (Contains(report, "then    rank 1: error 1\n")));
    }
  }

  TEST_CASE("control: a loss is the cause of what is told of it before") {
    WatchedJob job(4);
    std::atomic<bool> told = false;
    for (const int rank : {0, 1, 2}) {
      job.Start(rank, [&](int self, Control& control, Progress&) {
        if (self != 1) WaitForStop(control);
        told = true;
        throw Error("rank 1, instruction 4: rank 3 was lost: the connection was closed");
      });
    }
    while (!told) Sleep(1);
    job.Kill(3);
    job.Join();
    CHECK(Codes(job) == std::vector<int>{75, 11, 75, -1});
    CHECK(FirstLine(job.Report()) == "contraflow-run: error: rank 3" + std::string(kClosed));
    CHECK(Contains(job.Report(),
                   "\n  then    rank 1, instruction 4: rank 3 was lost: the connection "
                   "was closed\n"));
  }

  TEST_CASE("control: an error of a rank that is lost after it remains the cause") {
    WatchedJob job(3, Unhurried(), {2});
    SendTalk(job.membership(2).links[0], Watch::kFault,
             BytesOf({FaultKind::kError, 2, "disk full"}));
    job.membership(2).links.clear();
    job.Run([](int, Control& control, Progress&) { WaitForStop(control); });
    CHECK(FirstLine(job.Report()) == "contraflow-run: error: rank 2: disk full");
    CHECK(Contains(job.Report(), "\n  rank 2  lost; never heard from\n"));
  }

  TEST_CASE("control: a rank that does not come back is described and ended all the same") {
    std::vector<std::unique_ptr<WatchedJob>> jobs;
    for (const int stuck : {0, 1, 2}) {
      jobs.push_back(std::make_unique<WatchedJob>(3));
      WatchedJob* const job = jobs.back().get();
      job->StartAll([job, stuck](int rank, Control& control, Progress& progress) {
        progress.Enter(5, rank);
        control.Barrier();
        if (rank == (stuck + 1) % 3) throw Error("it broke");
        if (rank != stuck) WaitForStop(control);
        // Its control thread must end it while it is in here.
        while (job->end(rank).code < 0) Sleep(5);
      });
    }
    for (const int stuck : {0, 1, 2}) {
      CAPTURE(stuck);
      WatchedJob& job = *jobs[static_cast<size_t>(stuck)];
      job.Join();
      CHECK(Codes(job) == CodesBut(3, (stuck + 1) % 3, 10 + (stuck + 1) % 3));
      const std::string report = job.Report();
      CHECK(Contains(report, "\n  " + Name(stuck) + "  step 5, instruction " +
                                 std::to_string(stuck) + " since "));
    }
  }

  TEST_CASE("control: a rank that is silent is lost") {
    Control::Options options = Unhurried();
    options.silence = milliseconds(4000);
    std::vector<std::unique_ptr<WatchedJob>> jobs;
    for (const int silent : {0, 1, 2}) {
      jobs.push_back(std::make_unique<WatchedJob>(3, options, std::vector<int>{silent}));
      jobs.back()->StartAll([](int, Control& control, Progress&) { WaitForStop(control); });
    }
    for (const int silent : {0, 1, 2}) {
      CAPTURE(silent);
      WatchedJob& job = *jobs[static_cast<size_t>(silent)];
      job.Join();
      CHECK(Codes(job) == CodesBut(3, silent, -1, Control::kStoppedCode));
      CHECK(job.reports().size() == (silent == 0 ? 2 : 1));
      CHECK(job.reports()[0].second.starts_with(
          "contraflow-run: error: " + Name(silent) +
          " was lost: it was silent for 4 s (it is suspended, or its machine or network is gone)"));
    }
  }

  TEST_CASE("control: no progress of any rank stops all and shows who waits for whom") {
    Control::Options options = Unhurried();
    options.timeout = milliseconds(1200);
    std::vector<std::unique_ptr<WatchedJob>> jobs;
    for (const int size : kSizes) {
      jobs.push_back(std::make_unique<WatchedJob>(size, options));
      jobs.back()->StartAll([size](int rank, Control& control, Progress& progress) {
        progress.Enter(2, 7);
        if (size > 1) progress.WaitFor((rank + 1) % size);
        WaitForStop(control);
      });
    }
    for (const auto& job : jobs) {
      job->Join();
      const int size = job->size();
      CAPTURE(size);
      CHECK(Codes(*job) == std::vector<int>(static_cast<size_t>(size), Control::kStoppedCode));
      const std::string report = job->Report();
      CHECK(FirstLine(report) == (size > 1
                                      ? "contraflow-run: error: no rank has made progress for 1.2 s"
                                      : "contraflow-run: error: no progress for 1.2 s"));
      const std::string circle = "\n  circular wait: rank 0 for rank 1, rank 1 for ";
      CHECK(Contains(report, circle) == (size > 1));
    }
  }

  TEST_CASE("control: a job that moves anywhere does not time out") {
    Control::Options options = Unhurried();
    options.timeout = milliseconds(3000);
    WatchedJob job(3, options);
    job.Run([&](int rank, Control& control, Progress& progress) {
      const auto start = Clock::now();
      while (rank == 2 && Clock::now() - start < milliseconds(4000)) {
        progress.Move();
        Sleep(20);
      }
      control.Barrier();
      control.Finish();
    });
    CHECK(job.reports().empty());
    CHECK(Codes(job) == std::vector<int>{-1, -1, -1});
  }

  TEST_CASE("control: if rank 0 is lost while it stops the job the others report its reason") {
    for (const bool stays : {false, true}) {
      CAPTURE(stays);
      Control::Options options;
      options.bound = milliseconds(1000);
      WatchedJob job(4, options, {0});
      for (const int rank : {1, 2, 3}) {
        SendTalk(job.membership(0).links[static_cast<size_t>(rank)], Watch::kStop,
                 BytesOf({FaultKind::kError, 0, "no memory"}));
      }
      if (!stays) job.membership(0).links.clear();
      job.Run([](int, Control& control, Progress&) { WaitForStop(control); });
      CHECK(Codes(job) == std::vector<int>{-1, 1, 1, 1});
      CHECK(job.reports().size() == 3);
      for (const auto& [rank, report] : job.reports()) {
        CHECK(FirstLine(report) == "contraflow-run: error: rank 0: no memory");
      }
    }
  }

  TEST_CASE("control: if rank 0 does nothing a rank ends on its own") {
    Control::Options options;
    options.bound = milliseconds(1000);
    WatchedJob job(4, options, {0});
    job.Start(3, [](int, Control&, Progress&) { throw Error("it broke"); });
    job.Join();
    CHECK(Codes(job) == std::vector<int>{-1, -1, -1, 13});
    const std::string before =
        "contraflow-run: error: rank 3: it broke\n"
        "  rank 0  did not answer; never heard from\n"
        "  rank 3  step 0, instruction -1 since ";
    CHECK(job.Report().substr(0, before.size()) == before);
  }
}

}  // namespace
}  // namespace contraflow::control_test
