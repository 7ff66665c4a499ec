// Copies of the state in the memory of nodes that are lost, damaged or killed.

#include "runtime/checkpoint/memory.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/runtime/checkpoint/support.h"
#include "tests/support/failure.h"
#include "tests/support/sanitized.h"

namespace contraflow::memory_test {
namespace {

namespace fs = std::filesystem;

constexpr int kProcesses = 4;

/// As of a device: what was begun is copied when somebody waits for it, or a step updates weights.
class LateCopies : public StateCopies {
 public:
  std::shared_ptr<std::byte> NewMemory(size_t bytes) override {
    return std::shared_ptr<std::byte>(new std::byte[bytes], std::default_delete<std::byte[]>());
  }
  void Begin(std::span<const Part> parts, std::function<void()> then) override {
    CHECK(copied_);
    parts_.assign(parts.begin(), parts.end());
    then_ = std::move(then);
    copied_ = false;
  }
  bool Poll() override { return copied_; }
  void Await() override {
    if (std::exchange(copied_, true)) return;
    for (const Part& part : parts_) {
      std::memcpy(part.to, part.values.data(), part.values.size_bytes());
    }
    if (then_) then_();
  }
  void Forget() noexcept override { then_ = nullptr; }

 private:
  std::vector<Part> parts_;
  std::function<void()> then_;
  bool copied_ = true;
};

/// Processes of which each `node` has so many, with a folder each.
struct Nodes {
  CheckpointFolder folder;
  std::vector<int> node = {0, 0, 1, 1};  ///< of each process
  bool devices = false;                  ///< their states are in the memory of devices

  std::string Memory(int of) const { return folder.root / ("node" + std::to_string(of)); }
  std::string Shard(int of, int step, int shard) const {
    return Memory(of) + "/training/" + StepName(step) + "/" + ShardName(shard);
  }

  /// Resumes, then trains up to a step, each with copies; what each process says: the step it went
  /// on from, and what process 0 is told.
  std::vector<std::string> Train(int steps, int least = 1,
                                 const std::function<void(int step, int process)>& harm = {}) {
    return InProcesses(kProcesses, [&](Peers& peers) -> std::string {
      std::string said;
      LateCopies copies;
      MemoryCheckpoints memory(
          Memory(node[static_cast<size_t>(peers.process())]), "training", peers,
          [&](const std::string& text) { said += "; " + text; }, devices ? &copies : nullptr);
      CutModel cut(CheckpointModel(), 2, 2);
      const auto state = [&] { return cut.All(static_cast<size_t>(peers.process())); };
      memory.Prepare(state());
      cut.Set(900);
      const int begin = memory.Load(least, state());
      // Of the others nothing was asked for.
      CutModel mine(CheckpointModel(), 2, 2);
      mine.Set(begin > 0 ? begin : 900);
      const auto expected = mine.All(static_cast<size_t>(peers.process()));
      for (size_t i = 0; i < expected.size(); ++i) {
        const StateBlock have = state()[i];
        for (const auto& [a, b] :
             {std::pair(have.parameters, expected[i].parameters), std::pair(have.m, expected[i].m),
              std::pair(have.v, expected[i].v)}) {
          if (std::memcmp(a.data(), b.data(), a.size_bytes()) != 0) return "wrong " + have.name;
        }
      }
      memory.KeepOnly(begin);
      for (int step = begin + 1; step <= steps; ++step) {
        cut.Set(step);
        memory.AfterStep();
        memory.Save(step, state());
        if (devices && copies.Poll()) return "waited for step " + std::to_string(step);
        if (harm && devices) harm(step, peers.process());
        if (devices && step == steps) break;  // no step comes that waits for it
        copies.Await();
        cut.Set(step + 1000);
        if (harm && !devices) harm(step, peers.process());
      }
      memory.Finish();
      return std::to_string(begin) + said;
    });
  }
};

using Words = std::vector<std::string>;

Words All(const std::string& word) { return Words(kProcesses, word); }

TEST_SUITE("unit") {
  TEST_CASE("memory: a node is lost and all go on from the newest step") {
    for (const bool devices : {false, true}) {
      CAPTURE(devices);
      Nodes nodes;
      nodes.devices = devices;
      CHECK(nodes.Train(3) == All("0"));
      // Everything of this process and of one elsewhere, twice.
      CHECK(fs::exists(nodes.Shard(0, 3, 0)));
      CHECK(fs::exists(nodes.Shard(0, 3, 2)));
      CHECK(fs::exists(nodes.Shard(0, 2, 2)));
      CHECK_FALSE(fs::exists(nodes.Shard(0, 1, 2)));
      for (const int lost : {0, 1, 0}) {
        fs::remove_all(nodes.Memory(lost));
        CHECK(nodes.Train(3) == All("3"));
        CHECK(fs::exists(nodes.Shard(lost, 3, 2 * lost)));
        CHECK(nodes.Train(5) == All("3"));
        CHECK(nodes.Train(3) == All("5"));  // Nothing is left to do.
        fs::remove_all(nodes.Memory(1 - lost));
        CHECK(nodes.Train(3) == All("5"));
        fs::remove_all(nodes.folder.root);
        CHECK(nodes.Train(3) == All("0"));
      }
      // Newer on the disk; a training that begins anew forgets all.
      CHECK(nodes.Train(3, 4) == All("0"));
      fs::remove_all(nodes.Memory(0));
      fs::remove_all(nodes.Memory(1));
      CHECK(nodes.Train(0) == All("0"));
    }
  }

  TEST_CASE("memory: a folder that somebody else can write is refused before it is read") {
    const auto refused = [](Nodes& nodes) {
      PipePeers alone(1);
      alone.Become(0);
      return Failure([&] { MemoryCheckpoints(nodes.Memory(0), "training", alone, {}); });
    };
    Nodes nodes;
    const fs::path memory = nodes.Memory(0), training = memory / "training";
    CHECK(nodes.Train(1) == All("0"));
    CHECK(fs::status(memory).permissions() == fs::perms::owner_all);
    CHECK(fs::status(training).permissions() == fs::perms::owner_all);
    for (const fs::path& folder : {memory, training}) {
      for (const fs::perms more : {fs::perms::group_write, fs::perms::others_write}) {
        fs::permissions(folder, more, fs::perm_options::add);
        CHECK(refused(nodes) == folder.string() +
                                    ": others may write there; chmod go-w it, or name another "
                                    "folder for `memory_checkpoint`");
        fs::permissions(folder, more, fs::perm_options::remove);
      }
      if (geteuid() != 0) continue;
      CHECK(chown(folder.c_str(), 65534, 65534) == 0);
      const std::string foreign =
          ": belongs to another user (65534); name a folder of your own for "
          "`memory_checkpoint`";
      CHECK(refused(nodes) == folder.string() + foreign);
      CHECK(chown(folder.c_str(), 0, 0) == 0);
      // A link of somebody else's to a folder of ours, which he can turn to another.
      fs::rename(folder, nodes.folder.root / "behind");
      fs::create_symlink(nodes.folder.root / "behind", folder);
      CHECK(refused(nodes) == "accepted");
      CHECK(lchown(folder.c_str(), 65534, 65534) == 0);
      CHECK(refused(nodes) == folder.string() + foreign);
      fs::remove(folder);
      fs::rename(nodes.folder.root / "behind", folder);
    }
    CHECK(nodes.Train(2) == All("1"));
  }

  TEST_CASE("memory: nodes of other sizes") {
    for (const std::vector<int>& node :
         {std::vector<int>{0, 1, 2, 3}, {0, 1, 1, 2}, {0, 1, 0, 1}, {2, 2, 0, 1}}) {
      for (int lost = 0; lost < 4; ++lost) {
        CAPTURE(lost);
        Nodes nodes;
        nodes.node = node;
        const Words begun = nodes.Train(2);
        CAPTURE(begun[0] + begun[1] + begun[2] + begun[3]);
        CHECK(begun == All("0"));
        fs::remove_all(nodes.Memory(lost));
        CHECK(nodes.Train(2) == All("2"));
      }
    }
    // With one node there is no other; its own copies hold.
    Nodes one;
    one.node = {0, 0, 0, 0};
    CHECK(one.Train(2) == All("0"));
    CHECK(one.Train(2) == All("2"));
  }

  TEST_CASE("memory: a damaged copy is passed over for the other or an older step") {
    Nodes nodes;
    nodes.Train(3);
    const auto damage = [&](int node, int step, int shard) {
      std::string bytes = ReadBytes(nodes.Shard(node, step, shard));
      bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
      WriteBytes(nodes.Shard(node, step, shard), bytes);
    };
    damage(0, 3, 1);
    Words results = nodes.Train(3);
    CHECK(results[0].starts_with("3; a copy in memory is passed over: " + nodes.Shard(0, 3, 1) +
                                 ": the values of block "));
    CHECK(Words(results.begin() + 1, results.end()) == Words(3, "3"));
    CHECK(nodes.Train(3) == All("3"));  // It has taken the place of the damaged one.
    nodes.Train(4);
    damage(0, 4, 1);
    fs::remove(nodes.Shard(1, 4, 1));
    results = nodes.Train(3);
    CHECK(results[1] == "3");
    fs::resize_file(nodes.Shard(0, 3, 0), 100);
    WriteBytes(nodes.Memory(1) + "/training/" + StepName(3) + "/" + NoteName(0), "no note");
    CHECK(nodes.Train(0)[1] == "0");

    for (const std::string kind : {"pipe", "folder", "device"}) {
      CAPTURE(kind);
      Nodes some;
      const auto replace_note = [&](int node, int step) {
        const std::string note = fs::path(some.Shard(node, step, 0)).replace_filename(NoteName(0));
        REQUIRE(fs::remove(note));
        if (kind == "pipe") REQUIRE(mkfifo(note.c_str(), 0666) == 0);
        if (kind == "folder") fs::create_directories(note + "/more");
        if (kind == "device") fs::create_symlink("/dev/zero", note);
        return "; a copy in memory is passed over: " + note + ": is not a regular file";
      };
      some.Train(2);
      const std::string passed = replace_note(1, 2);
      CHECK(some.Train(3) == Words{"2" + passed, "2", "2", "2"});
      const std::string both = replace_note(0, 3) + replace_note(1, 3);
      const std::string lock = ReadBytes(some.Memory(0) + "/training/.lock-0");
      const pid_t opener = std::stoi(lock.substr(std::string("process ").size()));
      CHECK(NewestInMemory(some.Memory(0), std::vector<int>{0, 1}, opener) == 2);
      CHECK(some.Train(3) == Words{"2" + both, "2", "2", "2"});
    }
  }

  TEST_CASE("memory: killed at any moment there is a complete step") {
    Nodes nodes;
    std::mt19937 random(5);
    int last = 0;
    for (int round = 0; round < CasesToDraw(20); ++round) {
      CAPTURE(round);
      nodes.devices = round % 2 == 1;
      const int when = last + 1 + static_cast<int>(random() % 3),
                victim = static_cast<int>(random() % 4);
      const auto pause = std::chrono::microseconds(random() % 3000);
      const Words killed = nodes.Train(last + 9, 1, [&](int step, int process) {
        if (step != when || process != victim) return;
        std::this_thread::sleep_for(pause);
        raise(SIGKILL);
      });
      CHECK(killed[static_cast<size_t>(victim)] == "no result");
      if (round % 3 == 0) fs::remove_all(nodes.Memory(round % 2));
      const Words again = nodes.Train(0);
      CAPTURE(again[0] + ", " + again[1] + ", " + again[2] + ", " + again[3]);
      REQUIRE(again == All(again[1]));
      const int step = std::stoi(again[1]);
      // The step before the last that was begun is complete, as all begin one together.
      CHECK(step >= when - 1);
      CHECK(step <= when);
      last = step;
    }
  }
}

}  // namespace
}  // namespace contraflow::memory_test
