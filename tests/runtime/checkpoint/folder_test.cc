#include "runtime/checkpoint/folder.h"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <string>

#include "runtime/checkpoint/writer.h"
#include "tests/runtime/checkpoint/support.h"
#include "tests/support/failure.h"

namespace contraflow::folder_test {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOfYourOwn = "Permission denied; use a `checkpoint` folder of your own";

/// Returns the Error of a call in a process of its own, or "accepted".
std::string FailureInChild(const std::function<void()>& call) {
  return InProcesses(1, [&](Peers&) { return Failure(call); })[0];
}

/// The same as somebody who may not write everywhere.
std::string FailureOfNobody(const std::function<void()>& call) {
  return FailureInChild([&] {
    if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) {
      throw Error("cannot become nobody");
    }
    call();
  });
}

/// The same where no file can have more bytes.
std::string FailureWithRoom(rlim_t bytes, const std::function<void()>& call) {
  return FailureInChild([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{bytes, bytes};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) throw Error("setrlimit");
    call();
  });
}

const std::string kNoRoom =
    ": cannot be written: File too large; make room, or use another `checkpoint` folder: earlier "
    "checkpoints are intact";

TEST_SUITE("unit") {
  TEST_CASE("checkpoint folder: the newest are kept by number") {
    const CheckpointFolder folder;
    PrepareCheckpoints(folder.path());
    CutModel cut(CheckpointModel(), 1, 1);
    for (const int step : {9, 10, 99999999, 100000000}) {
      cut.Set(step);
      cut.Save(folder.path(), step, 3);
    }
    CHECK(folder.Names() == "step-00000010 step-100000000 step-99999999");
    // A step that is done again takes the place of the first.
    CutModel other(CheckpointModel(), 2, 2);
    other.Set(100000000);
    other.Save(folder.path(), 100000000, 3);
    CHECK(Checkpoint::Open(folder.path(), std::nullopt)->head().stages == 2);
    CHECK(folder.Newest() == "100000000");
    // The newer ones are of a run that this one does not follow.
    cut.Save(folder.path(), 11, 1);
    CHECK(folder.Names() == "step-00000011 step-100000000 step-99999999");
    for (const char* name : {"step-11", "step-000000012", "step-0000001x", "step-", "step--0000001",
                             "step-99999999999", ".step-00000012", "notes.txt"}) {
      fs::create_directory(folder.path() + "/" + name);
    }
    CHECK(CompleteSteps(folder.path()).size() == 3);
    CHECK(folder.Newest() == "100000000");
    PrepareCheckpoints(folder.path());
    CHECK(NamesInFolder(folder.path()).size() == 12);
  }

  TEST_CASE("checkpoint folder: killed between the renames of a step that is done again") {
    const CheckpointFolder folder;
    CreateFolders(folder.path());
    const std::string path = folder.path() + "/step-00000003",
                      old = folder.path() + "/.step-00000003.old";
    // The old checkpoint is found, and then comes back.
    fs::create_directory(old);
    WriteBytes(old + "/a", "third");
    fs::create_directory(AsideOf(folder.path(), 3));
    CHECK(CompleteSteps(folder.path()).at(3) == old);
    RemoveLeftovers(folder.path());
    CHECK(folder.Names() == "step-00000003");
    CHECK(ReadBytes(path + "/a") == "third");
    // Killed after them: the new one stays.
    fs::create_directory(old);
    CHECK(CompleteSteps(folder.path()).at(3) == path);
    RemoveLeftovers(folder.path());
    CHECK(folder.Names() == "step-00000003");
    CHECK(ReadBytes(path + "/a") == "third");
  }

  TEST_CASE("checkpoint folder: one job at a time and a killed one lets go") {
    const CheckpointFolder folder;
    int ready[2];
    REQUIRE(pipe(ready) == 0);
    const pid_t first = fork();
    if (first == 0) {
      const auto lock = PrepareCheckpoints(folder.path());
      if (write(ready[1], "x", 1) == 1) pause();
      _exit(3);
    }
    char x = 0;
    REQUIRE(read(ready[0], &x, 1) == 1);
    WriteBytes(AsideOf(folder.path(), 4), "of the first");
    char host[64] = "";
    REQUIRE(gethostname(host, sizeof host - 1) == 0);
    CHECK(Failure([&] { PrepareCheckpoints(folder.path()); }) ==
          folder.path() + ": is in use by another job (process " + std::to_string(first) + " on " +
              host + "); wait until it ends, or use another folder");
    CHECK(folder.Names() == ".step-00000004.new");
    WriteBytes(folder.path() + "/.lock", "\x1b[31mme");
    CHECK(Contains(Failure([&] { PrepareCheckpoints(folder.path()); }), "job (?[31mme); wait"));
    kill(first, SIGKILL);
    REQUIRE(waitpid(first, nullptr, 0) == first);
    PrepareCheckpoints(folder.path());
    CHECK(folder.Names() == "");
  }

  TEST_CASE("checkpoint folder: what killed runs leave is removed and nothing else") {
    const CheckpointFolder folder;
    PrepareCheckpoints(folder.path() + "/deep/er//");
    PrepareCheckpoints(folder.path());
    CHECK(folder.Names() == "deep");
    fs::create_directories(folder.path() + "/.step-00000004.new/shard-0000/x");
    fs::create_directories(folder.path() + "/.step-00000000.new");
    fs::create_directories(folder.path() + "/.step-2.new");
    WriteBytes(folder.path() + "/mine", "");
    // Out of the folder leads a link, which must not be followed.
    fs::create_directory(folder.root / "other");
    WriteBytes(folder.root / "other/kept", "");
    fs::create_symlink(folder.root / "other", folder.path() + "/.step-00000004.new/link");
    fs::create_symlink(folder.root / "other", folder.path() + "/.step-00000007.new");
    PrepareCheckpoints(folder.path());
    CHECK(folder.Names() == ".step-2.new deep mine");
    CHECK(fs::exists(folder.root / "other/kept"));
  }

  TEST_CASE("checkpoint folder: one that cannot be is refused with path reason and remedy") {
    const CheckpointFolder folder;
    const std::string path = folder.path();
    CHECK(Failure([] { PrepareCheckpoints(""); }) ==
          "`checkpoint`: the name of the folder is empty");
    WriteBytes(path, "a file");
    CHECK(Failure([&] { PrepareCheckpoints(path); }) ==
          path + ": is not a folder: Not a directory; a file stands where a folder should be");
    CHECK(Failure([&] { PrepareCheckpoints(path + "/in/it"); }) ==
          path +
              "/in/it: the folder cannot be made: Not a directory; a file stands where a folder "
              "should be");
    CHECK(Failure([&] { Checkpoint::Open(path, std::nullopt); }) ==
          path + ": cannot be read: Not a directory; a file stands where a folder should be");
    fs::remove(path);
    PrepareCheckpoints(path);
    CutModel cut(CheckpointModel(), 1, 1);
    cut.Save(path, 1);
    fs::permissions(folder.root, fs::perms(0555));
    fs::permissions(path, fs::perms(0555));
    CHECK(FailureOfNobody([&] { PrepareCheckpoints(path); }) ==
          path + "/.lock: cannot be locked: " + kOfYourOwn);
    CHECK(FailureOfNobody([&] { PrepareCheckpoints(path + "/deeper"); }) ==
          path + "/deeper: the folder cannot be made: " + kOfYourOwn);
    CHECK(FailureOfNobody([&] { WriteShardOf(path, 2, 0, cut.All()); }) ==
          AsideOf(path, 2) + ": the folder cannot be made: " + kOfYourOwn);
    fs::permissions(folder.File(1), fs::perms(0));
    CHECK(FailureOfNobody([&] { Checkpoint::Open(path, std::nullopt); }) ==
          folder.File(1) +
              ": cannot be read: Permission denied; there is no older "
              "checkpoint in " +
              path);
    fs::permissions(path, fs::perms(0));
    CHECK(FailureOfNobody([&] { Checkpoint::Open(path, std::nullopt); }) ==
          path + ": cannot be read: " + kOfYourOwn);
    fs::permissions(path, fs::perms(0755));
    fs::permissions(folder.root, fs::perms(0755));
    // Reading from a pipe of this name would never end.
    fs::remove(folder.File(1));
    REQUIRE(mkfifo(folder.File(1).c_str(), 0600) == 0);
    CHECK(Failure([&] { Checkpoint::Open(path, std::nullopt); }) ==
          folder.File(1) + ": is not a regular file; there is no older checkpoint in " + path);
  }

  TEST_CASE("checkpoint folder: without room nothing is lost and nothing half written is left") {
    const CheckpointFolder folder;
    PrepareCheckpoints(folder.path());
    CutModel cut(CheckpointModel(), 1, 1);
    cut.Set(1);
    cut.Save(folder.path(), 1);
    const auto shard = static_cast<rlim_t>(fs::file_size(folder.File(1, 0)));
    const auto save_with_room = [&](rlim_t bytes) {
      return FailureWithRoom(bytes, [&] { cut.Save(folder.path(), 2); });
    };
    for (const rlim_t room : {rlim_t{0}, rlim_t{1}, shard / 2, shard - 1}) {
      CAPTURE(room);
      CHECK(save_with_room(room) == AsideOf(folder.path(), 2) + "/shard-0000" + kNoRoom);
      CHECK(fs::is_empty(AsideOf(folder.path(), 2)));
      CHECK(folder.Newest() == "1");
    }
    PrepareCheckpoints(folder.path());
    CHECK(folder.Names() == "step-00000001");
    CHECK(save_with_room(shard) == "accepted");
    CHECK(folder.Names() == "step-00000001 step-00000002");
    // Without room for the manifest the folder aside goes away.
    const std::string note = WriteShardOf(folder.path(), 3, 0, cut.All());
    CHECK(FailureWithRoom(1000,
                          [&] {
                            CommitCheckpoint(folder.path(), cut.Head(3), std::span(&note, 1), 2);
                          }) == "the checkpoint of step 3 was not made: " +
                                    AsideOf(folder.path(), 3) + "/manifest" + kNoRoom);
    CHECK(folder.Names() == "step-00000001 step-00000002");
    WriteShardOf(folder.path(), 2, 0, cut.All());
    CHECK(
        Failure([&] { WriteShardOf(folder.path(), 2, 0, cut.All()); }) ==
        AsideOf(folder.path(), 2) +
            "/shard-0000: cannot be made: File exists; do two jobs write to the same `checkpoint` "
            "folder?");
  }
}

}  // namespace
}  // namespace contraflow::folder_test
