// Whatever strangers send to a process of a job: they are not let in, change nothing and delay
// nobody.

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <thread>

#include "compiler/plan/error.h"
#include "compiler/plan/text.h"
#include "runtime/core/bytes.h"
#include "runtime/core/digest.h"
#include "tests/runtime/launch/gathering.h"
#include "tests/support/failure.h"

namespace contraflow::stranger_test {
namespace {

using std::chrono::milliseconds;

std::string Noise(std::mt19937_64* random, size_t bytes) {
  std::string noise(bytes, '\0');
  for (char& byte : noise) byte = static_cast<char>((*random)());
  return noise;
}

/// The first words of a process, as bytes; by default of rank 1 of 2 that comes to the meeting.
struct Hello {
  uint32_t version = 4, purpose = 0;
  int32_t from = 1, size = 2;

  std::string Bytes() const {
    return "CFMEET\r\n" + ByteWriter()
                              .Put(version)
                              .Put(purpose)
                              .Put(from)
                              .Put(size)
                              .Put(Sha256(std::string_view()))
                              .Put(Digest{})
                              .Take();
  }
};

/// Says the hello and proves to know the secret. Returns the text that the other side answers, or
/// "" where it closes silently.
std::string Answer(const Address& at, const std::string& secret, const std::string& hello) {
  try {
    const Socket socket = Connect(at, Soon());
    SendText(socket, hello);
    const Digest proof = HmacSha256(secret, "c" + hello + ReceiveText(socket, 40));
    SendText(socket, std::string(proof.begin(), proof.end()));
    (void)ReceiveText(socket, 32);
    Socket stream{Socket(dup(socket.fd()))};
    const WordFrame said = ReceiveWord(&stream, Soon());
    return said.word == Word::kFailed ? said.text : "welcome";
  } catch (const Error&) {
    return "";
  }
}

TEST_SUITE("unit") {
  TEST_CASE("strangers: of every kind at once and nobody waits for them") {
    for (const bool secret : {true, false}) {
      CAPTURE(secret);
      std::mt19937_64 random(11);
      std::vector<Socket> kept;
      const std::string hello = Hello{.from = 9, .size = 8}.Bytes();
      const auto come = [&](const Address& at) {
        const auto say = [&](const std::string& text) {
          kept.push_back(Connect(at, Soon()));
          try {
            SendText(kept.back(), text);
          } catch (const Error&) {
            // It was sent away.
          }
        };
        for (int i = 0; i < 12; ++i) {
          say("");                                                      // silent
          Connect(at, Soon());                                          // a port scanner
          say("GET / HTTP/1.1\r\nHost: " + at.Text() + "\r\n\r\n");     // a browser
          say(std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc", 9));  // TLS
          say(Noise(&random, 200));
          say(hello.substr(0, random() % hello.size()));  // and no more
          say(hello + std::string(100'000, 'x'));
        }
      };
      std::vector<MeetingPoint> points = Points(8);
      for (MeetingPoint& point : points) {
        if (secret) continue;
        point.secret = "";
        point.user = geteuid();
      }
      std::vector<Attendance> all = Gather(points, come);
      for (const Attendance& one : all) CHECK(one.seconds < kPlenty / 2000);
      CheckMet(std::move(all));
    }
  }

  TEST_CASE("strangers: more silent ones than there is room for") {
    std::vector<Socket> kept;
    CheckMet(Gather(Points(2), [&](const Address& at) {
      for (int i = 0; i < 150; ++i) kept.push_back(Connect(at, Soon()));
    }));
  }

  TEST_CASE("strangers: who was sent away is named") {
    std::vector<MeetingPoint> points = Points(2, kBrief);
    points[0].secret = "";
    points[0].user = geteuid();
    const std::vector<Attendance> all = Gather({points[0]}, [&](const Address& at) {
      for (int i = 0; i < 3; ++i) {
        const Socket socket = Connect(at, Soon());
        SendText(socket, "GET / HTTP/1.1");
        CHECK(ReceiveRest(socket) == "");
      }
    });
    CHECK(Contains(
        all[0].error,
        "; refused meanwhile: 127.0.0.1 (does not speak this protocol; 3 times); were they "
        "started"));
  }

  TEST_CASE("strangers: who knows the secret is let in for what fits only") {
    const std::vector<MeetingPoint> points = Points(3);
    CheckMet(Gather(points, [&](const Address& at) {
      const auto answer = [&](const Hello& hello) {
        return Answer(at, points[0].secret, hello.Bytes());
      };
      const Hello good{.size = 3};
      Hello hello = good;
      hello.version = 1;
      CHECK(answer(hello) ==
            "one side speaks version 1 of the protocol, the other version 4; start "
            "the same program everywhere");
      hello = good;
      hello.from = 0;
      CHECK(Contains(answer(hello), "rank 0 is here already, at "));
      hello = good;
      hello.size = 2;
      CHECK(Contains(answer(hello), "rank 1 was started as one of 2 processes"));
      for (const auto& [from, purpose] : {std::pair(3, 0), std::pair(-1, 0), std::pair(1, 7)}) {
        hello = good;
        hello.from = from;
        hello.purpose = static_cast<uint32_t>(purpose);
        CHECK(answer(hello) == "");
      }
      hello = good;
      hello.purpose = static_cast<uint32_t>(Purpose::kAsk);
      CHECK(answer(hello) == "the job has not begun");
    }));
  }

  TEST_CASE("strangers: what a process says cannot be turned back to it") {
    // Whoever answers a guest with the guest's own words is not taken for rank 0.
    const Socket listener = Listen({"127.0.0.1", 0});
    std::jthread mirror([&] {
      Socket socket;
      while (!socket) socket = Accept(listener);
      const std::string hello = ReceiveText(socket, 88);
      SendText(socket, hello.substr(0, 8) + hello.substr(56));
      SendText(socket, ReceiveText(socket, 32));
      (void)ReceiveRest(socket);
    });
    const MeetingPoint point = Points(2)[1];
    CHECK(Contains(Failure([&] {
                     Handshake(Connect(LocalAddress(listener), Soon()), {Purpose::kMeet, 1, 2},
                               point, "rank 0", Soon());
                   }),
                   "what answers as rank 0 does not know the secret of this job"));
  }

  TEST_CASE("strangers: without a secret only processes of the same user") {
    for (const char* const host : {"127.0.0.1", "::1"}) {
      CAPTURE(host);
      const Socket listener = Listen({host, 0});
      const Socket near = Connect(LocalAddress(listener), Soon());
      Socket far;
      while (!far) far = Accept(listener);
      CHECK(PeerUser(near) == geteuid());
      CHECK(PeerUser(far) == geteuid());
    }
    std::vector<MeetingPoint> points = Points(2);
    for (MeetingPoint& point : points) {
      point.secret = "";
      point.user = geteuid();
      point.job = "17";
    }
    CheckMet(Gather(points));
    const auto failure_at = [&](const Listener& listener) {
      points[1].address = listener.address();
      return Failure([&] { Meet(points[1]); });
    };
    Listener listener(points[0]);
    points[1].job = "18";
    CHECK(failure_at(listener) ==
          "says it is rank 1, but belongs to another job; set another MASTER_PORT");
    points[1].job = "17";
    // A guest that takes the host for a stranger, then a host that takes the guest for one.
    points[1].user = geteuid() + 1;
    CHECK(Contains(failure_at(listener), " belongs to another user, "));
    MeetingPoint stranger = points[0];
    stranger.user = geteuid() + 1;
    Listener other(stranger);
    CHECK(ReceiveRest(Connect(other.address(), Soon())) == "");
    while (other.Refused().empty()) std::this_thread::sleep_for(milliseconds(1));
    CHECK(other.Refused() == "127.0.0.1 (belongs to another user, and this job has no secret)");
  }

  TEST_CASE("strangers: what they write cannot steer a terminal") {
    CHECK(PlainText("plain, \xC3\xA9\n\x1B[2J\x7F\xC2\x9B"
                    "31m") == "plain, \xC3\xA9\n\\u001b[2J\\u007f\\u009b31m");
  }

  TEST_CASE("strangers: random bytes on connections") {
    std::vector<MeetingPoint> points = Points(2);
    for (MeetingPoint& point : points) {
      point.secret = "";
      point.user = geteuid();
    }
    CheckMet(Gather(points, [&](const Address& at) {
      std::mt19937_64 random(3);
      for (int round = 0; round < 300; ++round) {
        const Socket socket = Connect(at, Soon());
        // A valid handshake never results.
        std::string bytes = Hello{}.Bytes() + Noise(&random, random() % 100);
        for (uint64_t edits = random() % 8; edits > 0; --edits) {
          bytes[random() % bytes.size()] = static_cast<char>(random());
        }
        bytes.resize(random() % (bytes.size() + 1));
        try {
          // In pieces, as they come over slow lines.
          for (std::string_view rest = bytes; !rest.empty();) {
            const size_t piece = std::min<size_t>(rest.size(), 1 + random() % 60);
            SendText(socket, std::string(rest.substr(0, piece)));
            rest.remove_prefix(piece);
          }
        } catch (const Error&) {
          // It was sent away.
        }
      }
    }));
  }

// Without descriptors the check of dynamic types, which opens a pipe to look at memory, takes every
// object for none.
#ifndef __SANITIZE_ADDRESS__
  TEST_CASE("strangers: when the system has no more descriptors") {
    const MeetingPoint point = Points(2)[0];
    Listener listener(point);
    std::vector<Socket> kept;
    for (int i = 0; i < 20; ++i) kept.push_back(Connect(listener.address(), Soon()));
    Socket honest = Connect(listener.address(), Soon());
    rlimit before;
    REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
    rlimit less = before;
    less.rlim_cur = static_cast<rlim_t>(Socket(dup(honest.fd())).fd()) + 8;
    REQUIRE(setrlimit(RLIMIT_NOFILE, &less) == 0);
    // The honest one comes last.
    const Claim claim{Purpose::kMeet, 1, 2};
    const std::string failure =
        Failure([&] { Handshake(std::move(honest), claim, point, "rank 0", Soon()); });
    const auto peer = listener.Next(Soon());
    REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
    CHECK(failure == "accepted");
    REQUIRE(peer.has_value());
    CHECK(peer->claim.from == 1);
  }
#endif
}

}  // namespace
}  // namespace contraflow::stranger_test
