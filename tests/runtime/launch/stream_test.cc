// Connections between processes: bytes, deadlines and ends.

#include <doctest/doctest.h>

#include <future>
#include <string>
#include <thread>
#include <vector>

#include "runtime/launch/socket.h"
#include "tests/runtime/launch/gathering.h"
#include "tests/support/failure.h"

namespace contraflow::stream_test {
namespace {

using Bytes = std::vector<std::byte>;
const std::string kClosed = "it was closed at the other end";

Clock::time_point In(int ms) { return Clock::now() + std::chrono::milliseconds(ms); }

Bytes Pattern(size_t size, unsigned seed) {
  Bytes bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>((seed = seed * 1664525 + 1) >> 24);
  return bytes;
}

template <typename Check>
void Both(const Check& check) {
  SocketPair pair;
  Socket a(std::move(pair.a)), b(std::move(pair.b));
  check(a, b);
}

TEST_SUITE("unit") {
  TEST_CASE("stream: much in both directions at once") {
    Both([](Socket& a, Socket& b) {
      const Bytes there = Pattern(8'000'000, 1), back = Pattern(8'000'000, 2);
      Bytes got_there(there.size()), got_back(back.size());
      // Each end is one thread's, which writes and reads in turns, as much as goes.
      const auto work = [](Socket& stream, std::span<const std::byte> out,
                           std::span<std::byte> in) {
        while (!out.empty() || !in.empty()) {
          const size_t written = out.empty() ? 0 : stream.Write(out);
          const size_t read = in.empty() ? 0 : stream.Read(in);
          out = out.subspan(written);
          in = in.subspan(read);
        }
      };
      std::jthread other([&, &b = b] { work(b, back, got_there); });
      work(a, there, got_back);
      other.join();
      CHECK(got_there == there);
      CHECK(got_back == back);
    });
  }

  TEST_CASE("stream: deadlines of what nobody sends or takes") {
    Both([](Socket& a, Socket&) {
      std::byte byte;
      CHECK(Failure([&] { a.ReadAll({&byte, 1}, In(50)); }) == "timed out");
      const Bytes much(64'000'000);
      CHECK(Failure([&] { a.WriteAll(much, In(50)); }) == "timed out");
      a.ReadAll({}, In(0));
    });
  }

  TEST_CASE("stream: who sends to one that has left is told") {
    Both([](Socket& a, Socket& b) {
      b = Socket();
      const Bytes much(1'000'000);
      std::string failure = "accepted";
      for (int i = 0; i < 100 && failure == "accepted"; ++i) {
        failure = Failure([&] { a.WriteAll(much, Soon()); });
      }
      CHECK(failure == kClosed);
    });
  }

  TEST_CASE("stream: what was sent before the end comes, and then the end") {
    Both([](Socket& a, Socket& b) {
      const Bytes sent = Pattern(100'000, 3);
      Bytes got(sent.size());
      std::jthread reads([&, &b = b] { b.ReadAll(got, Soon()); });
      a.WriteAll(sent, Soon());
      a.EndSending();
      reads.join();
      CHECK(got == sent);
      std::byte byte;
      CHECK(Failure([&, &b = b] { b.ReadAll({&byte, 1}, Soon()); }) == kClosed);
      // The other direction is open still.
      b.WriteAll({&byte, 1}, Soon());
      a.ReadAll({&byte, 1}, Soon());
    });
  }

  TEST_CASE("stream: shut down it wakes who waits on either side") {
    Both([](Socket& a, Socket& b) {
      const auto wait = [](Socket& stream) {
        std::byte byte;
        return Failure([&] { stream.ReadAll({&byte, 1}, Soon()); });
      };
      auto there = std::async(std::launch::async, [&, &b = b] { return wait(b); });
      a.Shutdown();
      CHECK(wait(a) == kClosed);
      CHECK(there.get() == kClosed);
      CHECK(a.fd() >= 0);
    });
  }
}

}  // namespace
}  // namespace contraflow::stream_test
