#include "runtime/checkpoint/folder.h"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <string>

#include "runtime/checkpoint/checkpoint.h"
#include "tests/runtime/checkpoint/support.h"
#include "tests/support/failure.h"

namespace contraflow::folder_test {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOfYourOwn = "Permission denied; use a `checkpoint` folder of your own";

/// What a call in a process of its own says: its Error, or "accepted".
template <typename Call>
std::string FailureInChild(Call call) {
  std::fflush(nullptr);  // Else the child would print what is buffered again.
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const std::string failure = Failure(call);
    _exit(write(ends[1], failure.data(), failure.size()) < 0 ? 1 : 0);
  }
  close(ends[1]);
  std::string failure;
  char bytes[4096];
  for (ssize_t got = 0; (got = read(ends[0], bytes, sizeof bytes)) > 0;) {
    failure.append(bytes, static_cast<size_t>(got));
  }
  close(ends[0]);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(status == 0);
  return failure;
}

/// Whoever may write everywhere becomes somebody who may not.
void BecomeNobody() {
  if (geteuid() != 0) return;
  if (setgid(65534) != 0 || setuid(65534) != 0) throw Error("cannot become nobody");
}

/// What is newest, loaded and compared.
std::string NewestIs(const CheckpointFolder& folder, int step) {
  const auto checkpoint = Checkpoint::Open(folder.path(), std::nullopt);
  if (!checkpoint) return "there is none";
  if (checkpoint->head().step != step) {
    return "step " + std::to_string(checkpoint->head().step);
  }
  CutModel cut(CheckpointModel(), 1, 1);
  checkpoint->Load(cut.All());
  return cut.Wrong(step);
}

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
    CHECK(NewestIs(folder, 100000000) == "");
    // The newer ones are of a run that this one does not follow.
    cut.Save(folder.path(), 11, 1);
    CHECK(folder.Names() == "step-00000011 step-100000000 step-99999999");
    for (const char* name : {"step-11", "step-000000012", "step-0000001x", "step-", "step--0000001",
                             "step-99999999999", ".step-00000012", "notes.txt"}) {
      fs::create_directory(folder.path() + "/" + name);
    }
    CHECK(CompleteSteps(folder.path()).size() == 3);
    CHECK(NewestIs(folder, 100000000) == "");
    PrepareCheckpoints(folder.path());
    CHECK(NamesInFolder(folder.path()).size() == 11);
  }

  TEST_CASE("checkpoint folder: a step that is done again takes the place of the first") {
    const CheckpointFolder folder;
    PrepareCheckpoints(folder.path());
    CutModel one(CheckpointModel(), 1, 1), two(CheckpointModel(), 2, 2);
    one.Set(8);
    one.Save(folder.path(), 8);
    two.Set(8);
    two.Save(folder.path(), 8);
    CHECK(folder.Names() == "step-00000008");
    CHECK(Checkpoint::Open(folder.path(), 8)->head().stages == 2);
    CHECK(NewestIs(folder, 8) == "");
  }

  TEST_CASE("checkpoint folder: file systems that cannot exchange folders do as well") {
    const CheckpointFolder folder;
    CreateFolders(folder.path());
    const auto publish = [&](const char* content) {
      RemoveTree(AsideOf(folder.path(), 3));
      CreateFolder(AsideOf(folder.path(), 3));
      WriteBytes(AsideOf(folder.path(), 3) + "/a", content);
      Publish(folder.path(), 3, false);
      CHECK(folder.Names() == "step-00000003");
      CHECK(ReadBytes(folder.path() + "/step-00000003/a") == content);
    };
    publish("first");
    publish("second");
    publish("third");
    // Killed between the two renames: what was there is found, and then comes back.
    fs::rename(folder.path() + "/step-00000003", folder.path() + "/.step-00000003.old");
    fs::create_directory(AsideOf(folder.path(), 3));
    const auto steps = CompleteSteps(folder.path());
    CHECK(steps.at(3) == folder.path() + "/.step-00000003.old");
    RemoveLeftovers(folder.path());
    CHECK(folder.Names() == "step-00000003");
    CHECK(ReadBytes(folder.path() + "/step-00000003/a") == "third");
    // Killed behind them: the new one stays.
    fs::create_directory(folder.path() + "/.step-00000003.old");
    CHECK(CompleteSteps(folder.path()).at(3) == folder.path() + "/step-00000003");
    RemoveLeftovers(folder.path());
    CHECK(folder.Names() == "step-00000003");
  }

  TEST_CASE("checkpoint folder: what killed runs leave is removed and nothing else") {
    const CheckpointFolder folder;
    PrepareCheckpoints(folder.path() + "/deep/er//");
    PrepareCheckpoints(folder.path());
    CHECK(folder.Names() == "deep");
    fs::create_directories(folder.path() + "/.step-00000004.new/shard-0000/x");
    fs::create_directories(folder.path() + "/.step-00000002.gone");
    fs::create_directories(folder.path() + "/.step-00000000.new");
    fs::create_directories(folder.path() + "/.step-2.gone");
    WriteBytes(folder.path() + "/mine", "");
    // Out of the folder leads a link, which must not be followed.
    fs::create_directory(folder.root / "other");
    WriteBytes(folder.root / "other/kept", "");
    fs::create_symlink(folder.root / "other", folder.path() + "/.step-00000004.new/link");
    fs::create_symlink(folder.root / "other", folder.path() + "/.step-00000007.new");
    PrepareCheckpoints(folder.path());
    CHECK(folder.Names() == ".step-2.gone deep mine");
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
    CHECK(FailureInChild([&] {
            BecomeNobody();
            PrepareCheckpoints(path);
          }) == AsideOf(path, 0) + ": the folder cannot be made: " + kOfYourOwn);
    CHECK(FailureInChild([&] {
            BecomeNobody();
            PrepareCheckpoints(path + "/deeper");
          }) == path + "/deeper: the folder cannot be made: " + kOfYourOwn);
    CHECK(FailureInChild([&] {
            BecomeNobody();
            BeginCheckpoint(path, 2);
          }) == AsideOf(path, 2) + ": the folder cannot be made: " + kOfYourOwn);
    fs::permissions(folder.File(1), fs::perms(0));
    CHECK(FailureInChild([&] {
            BecomeNobody();
            Checkpoint::Open(path, std::nullopt);
          }) == folder.File(1) +
                    ": cannot be read: Permission denied; there is no older "
                    "checkpoint in " +
                    path);
    fs::permissions(path, fs::perms(0));
    CHECK(FailureInChild([&] {
            BecomeNobody();
            Checkpoint::Open(path, std::nullopt);
          }) == path + ": cannot be read: " + kOfYourOwn);
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
      return FailureInChild([&] {
        std::signal(SIGXFSZ, SIG_IGN);
        const rlimit limit{bytes, bytes};
        if (setrlimit(RLIMIT_FSIZE, &limit) != 0) throw Error("setrlimit");
        cut.Save(folder.path(), 2);
      });
    };
    const std::string reason =
        ": cannot be written: File too large; make room, or use another `checkpoint` folder: "
        "earlier checkpoints are intact";
    for (const rlim_t room : {rlim_t{0}, rlim_t{1}, shard / 2, shard - 1}) {
      CAPTURE(room);
      CHECK(save_with_room(room) == AsideOf(folder.path(), 2) + "/shard-0000" + reason);
      CHECK(fs::is_empty(AsideOf(folder.path(), 2)));
      CHECK(NewestIs(folder, 1) == "");
    }
    PrepareCheckpoints(folder.path());
    CHECK(folder.Names() == "step-00000001");
    CHECK(save_with_room(shard) == "accepted");
    CHECK(folder.Names() == "step-00000001 step-00000002");
  }

  TEST_CASE("checkpoint folder: without room for the manifest the folder aside goes away") {
    const CheckpointFolder folder;
    PrepareCheckpoints(folder.path());
    CutModel cut(CheckpointModel(), 1, 1);
    cut.Save(folder.path(), 1);
    BeginCheckpoint(folder.path(), 2);
    const std::string note = WriteShard(folder.path(), 2, 0, cut.All());
    CHECK(FailureInChild([&] {
            std::signal(SIGXFSZ, SIG_IGN);
            const rlimit limit{1000, 1000};
            if (setrlimit(RLIMIT_FSIZE, &limit) != 0) throw Error("setrlimit");
            CommitCheckpoint(folder.path(), cut.Head(2), std::span(&note, 1), 2);
          }) == "the checkpoint of step 2 was not made: " + AsideOf(folder.path(), 2) +
                    "/manifest.json: cannot be written: File too large; make room, or use another "
                    "`checkpoint` folder: earlier checkpoints are intact");
    CHECK(folder.Names() == "step-00000001");
    CHECK(
        Failure([&] { WriteShard(folder.path(), 2, 0, cut.All()); }) ==
        AsideOf(folder.path(), 2) +
            "/shard-0000: cannot be made: No such file or directory; was it removed meanwhile, or "
            "is it a folder that other machines do not see?");
    BeginCheckpoint(folder.path(), 2);
    WriteShard(folder.path(), 2, 0, cut.All());
    CHECK(
        Failure([&] { WriteShard(folder.path(), 2, 0, cut.All()); }) ==
        AsideOf(folder.path(), 2) +
            "/shard-0000: cannot be made: File exists; do two jobs write to the same `checkpoint` "
            "folder?");
  }
}

}  // namespace
}  // namespace contraflow::folder_test
