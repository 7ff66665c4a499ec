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

/// Both ends of a pipe; what comes through it is whole numbers and bytes.
struct Pipe {
  int ends[2] = {-1, -1};

  Pipe() {
    if (pipe(ends) != 0) throw Error("pipe");
  }
  Pipe(const Pipe&) = delete;
  ~Pipe() {
    CloseWriter();
    close(ends[0]);
  }

  void CloseWriter() {
    if (ends[1] >= 0) close(ends[1]);
    ends[1] = -1;
  }
  void Send(const void* bytes, size_t size) const {
    if (write(ends[1], bytes, size) != static_cast<ssize_t>(size)) _exit(3);
  }
  void Send(int number) const { Send(&number, sizeof number); }
  /// False at the end of the pipe.
  bool Receive(void* bytes, size_t size) const {
    for (size_t have = 0; have < size;) {
      const ssize_t got = read(ends[0], static_cast<char*>(bytes) + have, size - have);
      if (got <= 0) return false;
      have += static_cast<size_t>(got);
    }
    return true;
  }
};

void DieWithParent() { prctl(PR_SET_PDEATHSIG, SIGKILL); }

/// Writes the shard of one device whenever a step comes, and sends the note back.
[[noreturn]] void WriteShards(const std::string& directory, int device, const Pipe& steps,
                              const Pipe& notes) {
  DieWithParent();
  CutModel cut(CheckpointModel(), kDevices, 1);
  for (int step = 0; steps.Receive(&step, sizeof step);) {
    cut.Set(step);
    const std::string note =
        WriteShard(directory, step, device, cut.Saved(static_cast<size_t>(device)));
    notes.Send(static_cast<int>(note.size()));
    notes.Send(note.data(), note.size());
  }
  _exit(0);
}

/// Goes on from the newest checkpoint, whose step it does again, for ever; leads the other devices,
/// and reports every step whose checkpoint is complete.
[[noreturn]] void Train(const std::string& directory, const Pipe& report) {
  DieWithParent();
  PrepareCheckpoints(directory);
  std::vector<std::unique_ptr<Pipe>> steps, notes;
  for (int device = 1; device < kDevices; ++device) {
    steps.push_back(std::make_unique<Pipe>());
    notes.push_back(std::make_unique<Pipe>());
    const pid_t child = fork();
    if (child < 0) _exit(3);
    if (child == 0) WriteShards(directory, device, *steps.back(), *notes.back());
  }
  CutModel cut(CheckpointModel(), kDevices, 1);
  const auto newest = Checkpoint::Open(directory, std::nullopt);
  for (int step = newest ? newest->head().step : 1;; ++step) {
    cut.Set(step);
    BeginCheckpoint(directory, step);
    for (const auto& to : steps) to->Send(step);
    std::vector<std::string> all = {WriteShard(directory, step, 0, cut.Saved(0))};
    for (const auto& from : notes) {
      int size = 0;
      if (!from->Receive(&size, sizeof size)) _exit(3);
      all.emplace_back(static_cast<size_t>(size), '\0');
      if (!from->Receive(all.back().data(), all.back().size())) _exit(3);
    }
    CommitCheckpoint(directory, cut.Head(step), all, 2);
    report.Send(step);
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

/// The names in the folder that are none of a complete checkpoint.
std::string Rubbish(const std::string& directory) {
  std::string rubbish;
  for (const std::string& name : NamesInFolder(directory)) {
    if (name.rfind("step-", 0) != 0) rubbish += name + " ";
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

/// Behind these everything in a folder is as it was.
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

/// Runs `act` on a copy of a folder with step 2 again and again, killed behind one change more each
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
    Clock::duration one = std::chrono::milliseconds(5);  // What a checkpoint takes.
    for (int round = 0; round < 50; ++round) {
      CAPTURE(round);
      Pipe report;
      std::fflush(nullptr);
      const pid_t child = fork();
      REQUIRE(child >= 0);
      if (child == 0) {
        setpgid(0, 0);
        Train(folder.path(), report);
      }
      setpgid(child, child);  // Whoever of the two comes first.
      report.CloseWriter();
      const int wanted = static_cast<int>(random() % 3);
      const Clock::time_point start = Clock::now();
      for (int committed = 0; committed < wanted; ++committed) {
        pollfd ready{report.ends[0], POLLIN, 0};
        REQUIRE(poll(&ready, 1, 60000) == 1);
        REQUIRE(report.Receive(&last, sizeof last));
      }
      if (wanted > 0)
        one = std::min<Clock::duration>((Clock::now() - start) / wanted,
                                        std::chrono::milliseconds(100));
      std::this_thread::sleep_for(one * (random() % 1000) / 1000);
      kill(-child, SIGKILL);
      // Its end comes when the last of them is gone.
      while (report.Receive(&last, sizeof last)) {
      }
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

  TEST_CASE("checkpoint kill: behind each call of the system there is one to go on from") {
    const CheckpointFolder two, aside, folder;
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
    // Where folders cannot be exchanged.
    SaveTwo(aside);
    fs::rename(aside.path() + "/step-00000002", AsideOf(two.path(), 2));
    CHECK(KilledBehindEachCall(two, folder, 2, [&] { Publish(folder.path(), 2, false); }) > 6);
    CHECK(folder.Names() == "step-00000001 step-00000002");
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
      if (call == SYS_renameat2) calls += "exchange ";
      if (call == SYS_unlinkat) calls += "unlink ";
#ifdef SYS_unlink
      if (call == SYS_unlink) calls += "unlink ";
#endif
    }
    CHECK(traced.status() == 0);
    // Two shards, the manifest, their folder; the names; only then is the old one removed, and
    // step 1.
    CHECK(calls.rfind("fsync fsync fsync fsync exchange fsync", 0) == 0);
    std::string removed;
    for (size_t at = 39; at < calls.size(); at += 7) removed += "unlink ";
    CHECK(calls.substr(39) == removed);
    CHECK(removed.size() >= 4 * 7);
  }
}

}  // namespace
}  // namespace contraflow::kill_test
