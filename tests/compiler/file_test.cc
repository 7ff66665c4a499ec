#include "compiler/files/file.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "tests/support/failure.h"
#include "tests/support/test_folder.h"

namespace contraflow::file_test {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kLimit = 1 << 20;

/// Entries, hidden ones too.
int CountIn(const TestFolder& folder) {
  return static_cast<int>(
      std::distance(fs::directory_iterator(folder.path), fs::directory_iterator()));
}

std::string Write(const std::string& path, const std::string& content = "content") {
  return Failure([&] { WriteFile(path, content); });
}

/// Exit status of `call` in a process of its own, or -N where signal N ended it.
template <typename Call>
int InChild(Call call) {
  std::fflush(nullptr);  // Else the child would print what is buffered again.
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) _exit(call());
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

TEST_SUITE("unit") {
  TEST_CASE("what is written is what is read and nothing else is left") {
    const TestFolder folder;
    const std::string path = folder.File("a");
    std::string content("\0 binary \xFF", 10);
    WriteFile(path, content);
    CHECK(ReadFile(path, kLimit) == content);
    WriteFile(path, "");
    CHECK(ReadFile(path, kLimit).empty());
    content.assign(300000, 'x');
    WriteFile(path, content);
    CHECK(ReadFile(path, 300000) == content);
    CHECK(CountIn(folder) == 1);
  }

  TEST_CASE("the beginning of a file is looked at without being taken") {
    const TestFolder folder;
    const std::string path = folder.File("a");
    std::string content;
    for (int i = 0; i < 20000; ++i) content += std::to_string(i) + " ";
    for (const size_t size : {size_t{0}, size_t{5}, size_t{65536}, content.size()}) {
      WriteFile(path, std::string_view(content).substr(0, size));
      InputFile file(path, std::ssize(content));
      CHECK(file.Beginning() == std::string_view(content).substr(0, std::min(size, size_t{65536})));
      std::string read(3, '-');
      read.resize(file.Read(read.data(), 3));
      CHECK(file.Beginning().starts_with(read));
      file.ReadRest(&read);
      CHECK(read == content.substr(0, size));
    }
  }

  TEST_CASE("what cannot be read names the path and the reason") {
    const TestFolder folder;
    const std::string path = folder.File("a");
    WriteFile(path, "12345");
    const auto read = [](const std::string& name, int64_t limit) {
      return Failure([&] { ReadFile(name, limit); });
    };
    CHECK(read(path, 4) == path + ": is larger than 4 bytes, the limit for its kind");
    CHECK(read(path, 5) == "accepted");
    CHECK(read("/dev/zero", 100000) ==
          "/dev/zero: is larger than 100000 bytes, the limit for its kind");
    CHECK(read(path + "x", 5) == path + "x: cannot be read: No such file or directory");
    CHECK(read(path + "/x", 5) == path + "/x: cannot be read: Not a directory");
    CHECK(read(folder.path.string(), 5) ==
          folder.path.string() + ": cannot be read: Is a directory");
    CHECK(read("", 5) == "the file name is empty");
  }

  TEST_CASE("what cannot be written names the path and the reason and leaves nothing") {
    const TestFolder folder;
    const std::string base = folder.path.string();
    CHECK(Write(base) == base + ": cannot be written: Is a directory");
    CHECK(Write(base + "/") == base + "/: cannot be written: Is a directory");
    CHECK(Write(base + "/new/") == base + "/new/: cannot be written: Is a directory");
    CHECK(Write(base + "/no/file") ==
          base + "/no/file: cannot be written: No such file or directory; does its folder exist?");
    CHECK(Write("") == "the file name is empty");
    const std::string long_name = base + "/" + std::string(300, 'x');
    CHECK(Write(long_name) == long_name + ": cannot be written: File name too long");
    CHECK(CountIn(folder) == 0);
    WriteFile(folder.File("file"), "x");
    CHECK(Write(folder.File("file/x")) ==
          folder.File("file/x") + ": cannot be written: Not a directory");
    CHECK(CountIn(folder) == 1);
    // The name is as long as one can be: the temporary name must not be longer.
    CHECK(Write(folder.path / std::string(255, 'y')) == "accepted");
  }

  TEST_CASE("an unwritable folder or file is refused") {
    const TestFolder folder;
    WriteFile(folder.File("file"), "kept");
    fs::permissions(folder.File("file"), fs::perms(0444));
    fs::permissions(folder.path, fs::perms(0777));
    fs::create_directory(folder.File("closed"));
    fs::permissions(folder.File("closed"), fs::perms(0555));
    // The superuser may write everywhere, so the test acts as nobody there.
    const int status = InChild([&] {
      if (geteuid() == 0 && setuid(65534) != 0) return 1;
      const std::string closed = folder.File("closed/new"), file = folder.File("file");
      if (Write(closed) != closed + ": cannot be written: Permission denied") return 2;
      if (Write(file) != file + ": cannot be written: Permission denied") return 3;
      return 0;
    });
    CHECK(status == 0);
    CHECK(ReadFile(folder.File("file"), kLimit) == "kept");
    CHECK(fs::is_empty(folder.File("closed")));
  }

  TEST_CASE("a full disk keeps the old file and leaves no other") {
    const TestFolder folder;
    const std::string path = folder.File("a"), fresh = folder.File("b");
    WriteFile(path, "old");
    const int status = InChild([&] {
      std::signal(SIGXFSZ, SIG_IGN);
      const rlimit limit = {4096, 4096};
      if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
      const std::string content(10000, 'x');
      const std::string reason = ": cannot be written: File too large; nothing was kept of it";
      if (Write(path, content) != path + reason) return 2;
      if (Write(fresh, content) != fresh + reason) return 3;
      return 0;
    });
    CHECK(status == 0);
    CHECK(ReadFile(path, kLimit) == "old");
    CHECK(CountIn(folder) == 1);
  }

  TEST_CASE("a signal ends the process once what is half written is removed") {
    const std::string piece(1 << 19, 'x');
    for (const int signal : {SIGHUP, SIGINT, SIGTERM}) {
      CAPTURE(signal);
      const TestFolder folder;
      const auto write = [&](bool in_folder) {
        return InChild([&] {
          RemoveUnfinishedOnSignals();
          std::optional<NewFolder> made;
          if (in_folder) made.emplace(folder.File("made"));
          WriteFile(in_folder ? PathIn(made->path(), "a") : folder.File("a"), [&](const auto& put) {
            put(piece);
            std::raise(signal);
            if (CountIn(folder) == 1) put(piece);
          });
          return 1;
        });
      };
      CHECK(write(false) == -signal);
      CHECK(CountIn(folder) == 0);
      CHECK(write(true) == -signal);
      CHECK(CountIn(folder) == 0);
      // One that comes when all is written takes effect then.
      CHECK(InChild([&] {
              RemoveUnfinishedOnSignals();
              WriteFile(folder.File("whole"), [&](const auto& put) {
                put(piece);
                std::raise(signal);
              });
              return 1;
            }) == -signal);
      CHECK(ReadFile(folder.File("whole"), kLimit) == piece);
      CHECK(InChild([&] {
              RemoveUnfinishedOnSignals();
              std::raise(signal);
              return 1;
            }) == -signal);
    }
  }

  TEST_CASE("devices and pipes are written straight") {
    CHECK(Write("/dev/null") == "accepted");
    CHECK(Write("/dev/full") ==
          "/dev/full: cannot be written: No space left on device; nothing was kept of it");
    CHECK(fs::is_character_file("/dev/full"));
    const TestFolder folder;
    const std::string pipe = folder.File("pipe");
    REQUIRE(mkfifo(pipe.c_str(), 0666) == 0);
    // Opened both ways, so that neither side waits for the other.
    const int both = open(pipe.c_str(), O_RDWR);
    REQUIRE(both >= 0);
    CHECK(Write(pipe, "through") == "accepted");
    char got[16];
    CHECK(std::string(got, static_cast<size_t>(read(both, got, sizeof got))) == "through");
    close(both);
    CHECK(fs::is_fifo(pipe));
    CHECK(CountIn(folder) == 1);
  }

  TEST_CASE("a link stays a link its target is replaced and keeps its mode") {
    const TestFolder folder;
    fs::create_directory(folder.File("sub"));
    WriteFile(folder.File("sub/file"), "old");
    fs::permissions(folder.File("sub/file"), fs::perms(0640));
    fs::create_symlink("sub/file", folder.File("link"));
    fs::create_symlink("sub", folder.File("folder"));
    fs::create_symlink("nowhere", folder.File("dangling"));
    CHECK(Write(folder.File("link"), "new") == "accepted");
    CHECK(fs::is_symlink(folder.File("link")));
    CHECK(ReadFile(folder.File("sub/file"), kLimit) == "new");
    CHECK(fs::status(folder.File("sub/file")).permissions() == fs::perms(0640));
    CHECK(Write(folder.File("folder")) ==
          (folder.File("folder")) + ": cannot be written: Is a directory");
    CHECK(Write(folder.File("dangling")) ==
          (folder.File("dangling")) +
              ": cannot be written: it is a symbolic link to a file that does not exist");
    CHECK(CountIn(folder) == 4);
  }

  TEST_CASE("nobody else can look into a folder that is being made nor foresee its name") {
    const TestFolder folder;
    const fs::perms own = fs::perms::owner_all;
    std::set<std::string> rooms;
    const mode_t before = umask(0);
    for (int k = 0; k < 3; ++k) {
      NewFolder made(folder.File("made"));
      const fs::path room = fs::path(made.path()).parent_path();
      CHECK(fs::status(room).permissions() == own);
      CHECK(fs::status(made.path()).permissions() == fs::perms::all);
      CHECK(!Contains(room.filename().string(), std::to_string(getpid())));
      rooms.insert(room.string());
      WriteFile(PathIn(made.path(), "a"), std::to_string(k));
      if (k > 0) made.Keep();
    }
    umask(before);
    CHECK(rooms.size() == 3);
    CHECK(fs::status(folder.File("made")).permissions() == fs::perms::all);
    CHECK(ReadFile(folder.File("made/a"), kLimit) == "2");
    CHECK(CountIn(folder) == 1);
  }

  TEST_CASE("a folder is made step by step") {
    const TestFolder folder;
    const std::string deep = folder.File("a/b/c");
    CreateFolders(deep);
    CreateFolders(deep);
    CHECK(Failure([&] { CreateFolder(deep); }) ==
          deep + ": the folder cannot be made: File exists");
    {
      OutputFile given_up(deep + "/x");
      given_up.Write("lost");
    }
    CHECK(FileSize(deep + "/x") == -1);
    const std::string block(300000, 'b');
    OutputFile file(deep + "/x");
    file.Write("head");
    file.Write(block);
    CHECK(file.size() == 300004);
    file.Close();
    CHECK(ReadFile(deep + "/x", kLimit) == "head" + block);
    CHECK(Failure([&] { OutputFile again(deep + "/x"); }) ==
          deep + "/x: cannot be made: File exists");
    char tail[2];
    const SeekableFile saved(deep + "/x");
    saved.Read(300002, std::as_writable_bytes(std::span(tail)));
    CHECK(std::string(tail, 2) == "bb");
    CHECK(Failure([&] { saved.Read(300003, std::as_writable_bytes(std::span(tail))); }) ==
          deep + "/x: ends at byte 300004: it is truncated");
    FlushFolder(deep);
    RenameFile(deep, folder.File("done"));
    CHECK(Failure([&] {
            RenameFile(deep, folder.File("x"));
          }).starts_with(deep + ": cannot be renamed"));
    CHECK(NamesInFolder(folder.File("done")) == std::vector<std::string>{"x"});
    CHECK(NamesInFolder(folder.File("none")).empty());
    // A link is removed, not followed.
    fs::create_symlink(folder.File("done"), folder.File("a/link"));
    RemoveTree(folder.File("a"));
    RemoveTree(folder.File("a"));
    CHECK(NamesInFolder(folder.path.string()) == std::vector<std::string>{"done"});
    CHECK(FileSize(folder.File("done/x")) == 300004);
    CHECK(Failure([&] { FileSize(folder.File("done")); }) ==
          (folder.File("done")) + ": is not a regular file");
  }

  TEST_CASE("- is standard input and output") {
    const TestFolder folder;
    const std::string path = folder.File("a"), copy = folder.File("b");
    WriteFile(path, "piped");
    CHECK(InChild([&] {
            const int in = open(path.c_str(), O_RDONLY);
            const int out = open(copy.c_str(), O_WRONLY | O_CREAT, 0666);
            if (dup2(in, STDIN_FILENO) < 0 || dup2(out, STDOUT_FILENO) < 0) return 1;
            return Write("-", ReadFile("-", kLimit)) == "accepted" ? 0 : 2;
          }) == 0);
    CHECK(ReadFile(copy, kLimit) == "piped");
    CHECK(InChild([] {
            if (dup2(open("/dev/full", O_WRONLY), STDOUT_FILENO) < 0) return 1;
            return Write("-") ==
                           "standard output: cannot be written: No space left on device; "
                           "nothing was kept of it"
                       ? 0
                       : 2;
          }) == 0);
    CHECK(InChild([] {
            close(STDIN_FILENO);
            return Failure([] { ReadFile("-", kLimit); }) ==
                           "standard input: cannot be read: Bad file descriptor"
                       ? 0
                       : 1;
          }) == 0);
  }
}

}  // namespace
}  // namespace contraflow::file_test
