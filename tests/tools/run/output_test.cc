// Output of a training, to readers that stop, come back, or go, and onto disks that are full.

#include "tools/contraflow-run/output.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <sstream>
#include <string>
#include <thread>

#include "tests/support/failure.h"

namespace contraflow {
namespace {

using Clock = std::chrono::steady_clock;

/// A pipe with room for one page.
struct Pipe {
  Pipe() {
    REQUIRE(pipe2(fd, O_CLOEXEC) == 0);
    fcntl(fd[1], F_SETPIPE_SZ, 4096);
  }
  ~Pipe() {
    close(fd[0]);
    close(fd[1]);
  }
  /// Returns all that comes until nothing has come for a tenth of a second.
  std::string Read() {
    fcntl(fd[0], F_SETFL, O_NONBLOCK);
    std::string text;
    char buffer[4096];
    pollfd ready{fd[0], POLLIN, 0};
    while (poll(&ready, 1, 100) == 1) {
      const ssize_t got = read(fd[0], buffer, sizeof buffer);
      if (got <= 0) break;
      text.append(buffer, static_cast<size_t>(got));
    }
    return text;
  }

  int fd[2];
};

TEST_SUITE("unit") {
  TEST_CASE("a reader that stops delays nobody, and is told how much was dropped") {
    Pipe pipe;
    Output output(pipe.fd[1]);
    const auto start = Clock::now();
    for (int i = 0; i < 10'000; ++i) output.Say("line " + std::to_string(i) + "\n");
    CHECK(Clock::now() - start < std::chrono::seconds(60));
    std::string text;
    std::thread reader([&] {
      while (!text.ends_with("end\n")) text += pipe.Read();
    });
    CHECK(output.Finish("end\n"));
    reader.join();
    CHECK(text.starts_with("line 0\nline 1\n"));
    CHECK(Contains(text, " lines dropped: nobody read them]\n"));
    // Each line is there or counted.
    int64_t lines = 0, dropped = 0;
    std::istringstream all(text);
    for (std::string line; std::getline(all, line);) {
      lines += line.starts_with("line ");
      if (!line.starts_with("[")) continue;
      std::erase(line, ',');
      dropped += std::stoll(line.substr(1));
    }
    CHECK(lines > 1'000);
    CHECK(dropped > 1'000);
    CHECK(lines + dropped == 10'000);
  }

  TEST_CASE("the last text waits for a slow reader, however long it is") {
    Pipe pipe;
    const std::string report(300'000, 'x');
    Output output(pipe.fd[1]);
    std::string text;
    std::thread reader([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      while (text.size() < report.size()) text += pipe.Read();
    });
    CHECK(output.Finish(report));
    reader.join();
    CHECK(text == report);
  }

  TEST_CASE("a reader who went away is no failure, a disk that is full is one") {
    Pipe pipe;
    close(pipe.fd[0]);
    pipe.fd[0] = -1;
    Output gone(pipe.fd[1]);
    gone.Say("line\n");
    CHECK(gone.Finish("end\n"));

    const int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
    Output disk(full);
    disk.Say("line\n");
    CHECK_FALSE(disk.Finish("end\n"));
    close(full);

    // Space that comes back: the count of what was lost, and all that follows.
    Pipe other;
    const int moved = dup(other.fd[1]);
    const int refused = open("/dev/full", O_WRONLY | O_CLOEXEC);
    dup2(refused, moved);
    Output disk_with_room(moved);
    disk_with_room.Say("lost\nlost\n");
    std::this_thread::sleep_for(std::chrono::milliseconds(1000));  // until it is refused
    dup2(other.fd[1], moved);
    CHECK(disk_with_room.Finish("end\n"));
    CHECK(other.Read() == "[2 lines dropped: No space left on device]\nend\n");
    close(refused);
    close(moved);
  }
}

}  // namespace
}  // namespace contraflow
