// Checkpoints that several processes write during their steps.

#include "runtime/checkpoint/writer.h"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "tests/runtime/checkpoint/support.h"

namespace contraflow::writer_test {
namespace {

namespace fs = std::filesystem;

constexpr int kDevices = 3;
constexpr rlim_t kRoom = RLIM_INFINITY;

/// From now on no file of this process can grow larger: a full disk for it alone.
void Limit(rlim_t bytes) {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0) throw Error("getrlimit");
  limit.rlim_cur = bytes;
  if (setrlimit(RLIMIT_FSIZE, &limit) != 0) throw Error("setrlimit");
}

/// Trains steps 1, 2, ... where process `victim` has this much room in each. Returns the warnings
/// of process 0, one a line, and its end. With `idle` process 0 has nothing to save.
std::string Trained(const CheckpointFolder& folder, int victim, const std::vector<rlim_t>& room,
                    bool idle = false) {
  const std::vector<std::string> results = InProcesses(kDevices, [&](Peers& peers) -> std::string {
    std::signal(SIGXFSZ, SIG_IGN);
    const auto lock = peers.process() == 0 ? PrepareCheckpoints(folder.path()) : nullptr;
    CutModel cut(CheckpointModel(), kDevices - (idle ? 1 : 0), 1);
    std::string said;
    CheckpointWriter writer(folder.path(), 2, peers,
                            [&](const std::string& text) { said += text + "\n"; });
    const auto state = [&] {
      const int device = peers.process() - (idle ? 1 : 0);
      return device < 0 ? std::vector<StateBlock>() : cut.Saved(static_cast<size_t>(device));
    };
    peers.Broadcast("");  // The folder is there.
    writer.Prepare(state());
    int step = 0;
    for (const rlim_t bytes : room) {
      writer.Poll();
      writer.Finish();
      if (peers.process() == victim) Limit(bytes);
      cut.Set(++step);
      writer.Save(cut.Head(step), state());
      cut.Set(step + 1000);  // The training goes on meanwhile.
    }
    const std::string failure = writer.Finish();
    return said + (failure.empty() ? "made" : failure);
  });
  // All agree on the end.
  for (const std::string& result : results) {
    CHECK(results[0].ends_with(result));
  }
  return results[0];
}

TEST_SUITE("unit") {
  TEST_CASE("checkpoint writer: what is saved is the state of its step") {
    const CheckpointFolder folder;
    CHECK(Trained(folder, 0, std::vector<rlim_t>(9, kRoom)) == "made");
    CHECK(folder.Names() == "step-00000008 step-00000009");
    CHECK(folder.Newest() == "9");
    CHECK(fs::exists(folder.File(9, kDevices - 1)));
    CHECK_FALSE(fs::exists(folder.path() + "/step-00000009/" + NoteName(0)));
  }

  TEST_CASE("checkpoint writer: a disk without room costs a checkpoint and nothing else") {
    // With 2,000 bytes a process has room to say why; with 10 it has not.
    for (const rlim_t bytes : {rlim_t{10}, rlim_t{2000}}) {
      for (int victim = 0; victim < kDevices; ++victim) {
        CAPTURE(bytes);
        CAPTURE(victim);
        const CheckpointFolder folder;
        const auto refused = [&](int step) {
          return "the checkpoint of step " + std::to_string(step) + " was not made: process " +
                 std::to_string(victim) + ": " + AsideOf(folder.path(), step) + "/" +
                 ShardName(victim) +
                 ": cannot be written: File too large; make room, or use another `checkpoint` "
                 "folder: earlier checkpoints are intact";
        };
        const std::string goes_on = "; the training goes on\n";
        CHECK(Trained(folder, victim, {kRoom, bytes, bytes, kRoom}) ==
              refused(2) + goes_on + refused(3) + goes_on + "made");
        CHECK(folder.Names() == "step-00000001 step-00000004");
        CHECK(folder.Newest() == "4");
        CHECK(Trained(folder, victim, {kRoom, bytes}) == refused(2));
        CHECK(folder.Names() == "step-00000001 step-00000004");
      }
    }
  }

  TEST_CASE("checkpoint writer: without room for the manifest alone it is the same") {
    const CheckpointFolder folder;
    CHECK(Trained(folder, 0, {kRoom}, true) == "made");
    const std::string said = Trained(folder, 0, {kRoom, 1000, kRoom}, true);
    CHECK(said.starts_with("the checkpoint of step 2 was not made: " + AsideOf(folder.path(), 2) +
                           "/manifest: cannot be written: File too large; "));
    CHECK(said.ends_with("; the training goes on\nmade"));
    CHECK(folder.Names() == "step-00000001 step-00000003");
    CHECK(folder.Newest() == "3");
  }

  TEST_CASE("checkpoint writer: one that ends early waits for no note and leaves nothing") {
    const CheckpointFolder folder;
    InProcesses(1, [&](Peers& peers) -> std::string {
      std::signal(SIGXFSZ, SIG_IGN);
      const auto lock = PrepareCheckpoints(folder.path());
      CutModel cut(CheckpointModel(), 1, 1);
      CheckpointWriter writer(folder.path(), 2, peers, [](const std::string&) {});
      cut.Set(1);
      Limit(10);
      writer.Save(cut.Head(1), cut.Saved(0));
      return "";
    });
    CHECK(folder.Names() == "");
  }
}

}  // namespace
}  // namespace contraflow::writer_test
