// Processes that are killed while they write checkpoints: there is always a complete one.

#include <doctest/doctest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "compiler/plan/error.h"
#include "runtime/checkpoint/folder.h"
#include "tests/runtime/checkpoint/support.h"
#include "tests/support/failure.h"

namespace contraflow::kill_test {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int kDevices = 4;

void DieWithParent() { prctl(PR_SET_PDEATHSIG, SIGKILL); }

/// Goes on from the newest checkpoint, whose step it does again, for ever, as this many processes
/// that write during their steps; process 0 reports every step whose checkpoint is complete.
[[noreturn]] void Train(const std::string& directory, int report) {
  PipePeers peers(kDevices);
  int self = 0;
  for (int device = 1; device < kDevices && self == 0; ++device) {
    const pid_t child = fork();
    if (child < 0) _exit(3);
    if (child == 0) self = device;
  }
  peers.Become(self);
  const auto lock = self == 0 ? PrepareCheckpoints(directory) : nullptr;
  const auto newest = self == 0 ? Checkpoint::Open(directory, std::nullopt) : std::nullopt;
  const int first = std::stoi(peers.Broadcast(newest ? std::to_string(newest->head().step) : "1"));
  CutModel cut(CheckpointModel(), kDevices, 1);
  CheckpointWriter writer(directory, 2, peers, [](const std::string&) {});
  for (int step = first;; ++step) {
    cut.Set(step);
    writer.Save(cut.Head(step), cut.Saved(static_cast<size_t>(self)));
    // The next step changes what this one has given to be written.
    const int done = step - 1;
    if (self == 0 && done >= first && write(report, &done, sizeof done) != sizeof done) _exit(3);
  }
}

/// "", or what is wrong with the checkpoints: all must be whole, and the newest of step `least` or
/// later.
std::string WrongWith(const std::string& directory, int least) {
  const auto steps = CompleteSteps(directory);
  if (steps.empty()) return least == 0 ? "" : "there is no checkpoint";
  if (steps.rbegin()->first < least) return "the newest is of an older step";
  CutModel cut(CheckpointModel(), 1, 1);
  for (const auto& entry : steps) {
    const int step = entry.first;
    std::string wrong = Failure([&] {
      cut.Set(0);
      Checkpoint::Open(directory, step).value().Load(cut.All());
    });
    if (wrong == "accepted") wrong = cut.Wrong(step);
    if (!wrong.empty()) return "step " + std::to_string(step) + ": " + wrong;
  }
  return "";
}

/// Names in the folder that belong to no complete checkpoint.
std::string Rubbish(const std::string& directory) {
  std::string rubbish;
  for (const std::string& name : NamesInFolder(directory)) {
    if (name.rfind("step-", 0) != 0 && name != ".lock") rubbish += name + " ";
  }
  return rubbish;
}

/// A process of its own that does something and stops at every call of the system.
class Traced {
 public:
  explicit Traced(const std::function<void()>& act) {
    std::fflush(nullptr);
    pid_ = fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      DieWithParent();
      if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(kForbidden);
      raise(SIGSTOP);
      _exit(Failure(act) == "accepted" ? 0 : 3);
    }
    Wait();
    // Only then are stops at calls told from others.
    if (!ended_) ptrace(PTRACE_SETOPTIONS, pid_, nullptr, PTRACE_O_TRACESYSGOOD);
  }
  Traced(const Traced&) = delete;
  ~Traced() { Kill(); }

  /// Runs until a call of the system has returned, and gives its number; nothing if it has ended.
  std::optional<long> Next() {
    long call = -1;
    while (!ended_ && ptrace(PTRACE_SYSCALL, pid_, nullptr, nullptr) == 0) {
      Wait();
      __ptrace_syscall_info info{};
      if (ended_ || ptrace(PTRACE_GET_SYSCALL_INFO, pid_, sizeof info, &info) <= 0) break;
      if (info.op == PTRACE_SYSCALL_INFO_ENTRY) call = static_cast<long>(info.entry.nr);
      if (info.op == PTRACE_SYSCALL_INFO_EXIT) return call;
    }
    return std::nullopt;
  }
  void Kill() {
    if (ended_) return;
    kill(pid_, SIGKILL);
    while (!ended_) Wait();
  }
  bool forbidden() const { return ended_ && status_ == kForbidden; }
  int status() const { return status_; }

 private:
  static constexpr int kForbidden = 77;

  void Wait() {
    int status = 0;
    const bool known = waitpid(pid_, &status, 0) == pid_;
    if (known && WIFSTOPPED(status)) return;
    ended_ = true;
    status_ = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  pid_t pid_ = -1;
  bool ended_ = false;
  int status_ = -1;
};

/// After these everything in a folder is as it was.
bool ChangesNothing(long call) {
  static const std::set<long> reading = {SYS_read,  SYS_close, SYS_getdents64, SYS_newfstatat,
                                         SYS_fstat, SYS_brk,   SYS_mmap,       SYS_munmap,
                                         SYS_fsync, SYS_getpid};
  return reading.count(call) > 0;
}

/// Steps 1 and 2, as a model in one piece has saved them.
void SaveTwo(const CheckpointFolder& folder) {
  PrepareCheckpoints(folder.path());
  CutModel cut(CheckpointModel(), 1, 1);
  for (const int step : {1, 2}) {
    cut.Set(step);
    cut.Save(folder.path(), step);
  }
}

/// Runs `act` on a copy of a folder with step 2 again and again, killed after one change more each
/// time: the newest checkpoint must be of step 2 or `step`, the last time of `step`. Returns how
/// often; 1000 where processes cannot be traced.
int KilledBehindEachCall(const CheckpointFolder& from, const CheckpointFolder& folder, int step,
                         const std::function<void()>& act) {
  int kills = 0;
  for (bool ended = false; !ended; ++kills) {
    CAPTURE(step);
    CAPTURE(kills);
    fs::remove_all(folder.path());
    fs::copy(from.path(), folder.path(), fs::copy_options::recursive);
    Traced traced(act);
    if (traced.forbidden()) {
      MESSAGE("not allowed to trace processes here");
      act();
      return 1000;
    }
    for (int changes = 0; changes < kills && !ended;) {
      const std::optional<long> call = traced.Next();
      ended = !call;
      if (call && !ChangesNothing(*call)) ++changes;
    }
    traced.Kill();
    CHECK(traced.status() == (ended ? 0 : -1));
    REQUIRE(WrongWith(folder.path(), ended ? step : 2) == "");
    PrepareCheckpoints(folder.path());
    REQUIRE(Rubbish(folder.path()) == "");
    REQUIRE(WrongWith(folder.path(), ended ? step : 2) == "");
  }
  return kills;
}

TEST_SUITE("unit") {
  TEST_CASE("checkpoint kill: fifty times at any moment and there is one to go on from") {
    const CheckpointFolder folder;
    std::mt19937 random(20);
    int last = 0;
    Clock::duration one = std::chrono::milliseconds(5);  // Duration of a checkpoint.
    for (int round = 0; round < 50; ++round) {
      CAPTURE(round);
      int report[2];
      REQUIRE(pipe(report) == 0);
      std::fflush(nullptr);
      const pid_t child = fork();
      REQUIRE(child >= 0);
      if (child == 0) {
        setpgid(0, 0);
        DieWithParent();
        Train(folder.path(), report[1]);
      }
      setpgid(child, child);  // Whoever of the two comes first.
      close(report[1]);
      const int wanted = static_cast<int>(random() % 3);
      const Clock::time_point start = Clock::now();
      for (int committed = 0; committed < wanted; ++committed) {
        pollfd ready{report[0], POLLIN, 0};
        REQUIRE(poll(&ready, 1, 60000) == 1);
        REQUIRE(read(report[0], &last, sizeof last) == sizeof last);
      }
      if (wanted > 0)
        one = std::min<Clock::duration>((Clock::now() - start) / wanted,
                                        std::chrono::milliseconds(100));
      std::this_thread::sleep_for(one * (random() % 1000) / 1000);
      kill(-child, SIGKILL);
      // Its end comes when the last of them is gone.
      while (read(report[0], &last, sizeof last) == sizeof last) {
      }
      close(report[0]);
      int status = 0;
      REQUIRE(waitpid(child, &status, 0) == child);
      CHECK(WIFSIGNALED(status));
      CHECK(WrongWith(folder.path(), last) == "");
      if (round % 4 != 0) continue;  // Else the next run finds what this one has left.
      PrepareCheckpoints(folder.path());
      CHECK(Rubbish(folder.path()) == "");
      CHECK(WrongWith(folder.path(), last) == "");
    }
    CHECK(last >= 10);
    PrepareCheckpoints(folder.path());
    CHECK(Rubbish(folder.path()) == "");
    CHECK(WrongWith(folder.path(), last) == "");
  }

  TEST_CASE("checkpoint kill: after each call of the system there is one to go on from") {
    const CheckpointFolder two, folder;
    SaveTwo(two);
    CutModel cut(CheckpointModel(), 2, 1);
    const auto save = [&](int step) {
      cut.Set(step);
      return [&, step] { cut.Save(folder.path(), step, 1); };
    };
    // Step 2 again, which takes the place of what is there; then step 3, which removes both.
    CHECK(KilledBehindEachCall(two, folder, 2, save(2)) > 20);
    CHECK(folder.Names() == "step-00000002");
    CHECK(KilledBehindEachCall(two, folder, 3, save(3)) > 20);
    CHECK(folder.Names() == "step-00000003");
  }

  TEST_CASE("checkpoint kill: all is flushed to the disk before it gets its name") {
    const CheckpointFolder folder;
    CutModel cut(CheckpointModel(), 2, 1);
    SaveTwo(folder);
    cut.Set(2);
    Traced traced([&] { cut.Save(folder.path(), 2, 1); });
    if (traced.forbidden()) {
      MESSAGE("not allowed to trace processes here");
      return;
    }
    std::string calls;
    while (const std::optional<long> call = traced.Next()) {
      if (call == SYS_fsync) calls += "fsync ";
      if (call == SYS_renameat) calls += "rename ";
      if (call == SYS_unlinkat) calls += "unlink ";
#ifdef SYS_unlink
      if (call == SYS_unlink) calls += "unlink ";
      if (call == SYS_rename) calls += "rename ";
#endif
    }
    CHECK(traced.status() == 0);
    // Two shards with their notes, the manifest, which takes the place of the notes, their folder;
    // the names; only then is the old one removed, and step 1.
    const std::string first =
        "fsync fsync rename fsync fsync rename fsync unlink unlink fsync rename rename fsync ";
    CHECK(calls.starts_with(first));
    std::string removed;
    for (size_t at = first.size() + 7; at < calls.size(); at += 7) removed += "unlink ";
    CAPTURE(calls);
    std::string rest = calls.substr(first.size());
    const size_t renamed = rest.find("rename ");
    REQUIRE(renamed != std::string::npos);  // of step 1, before it is removed
    rest.erase(renamed, 7);
    CHECK(rest == removed);
    CHECK(removed.size() >= 4 * 7);
  }
}

}  // namespace
}  // namespace contraflow::kill_test
