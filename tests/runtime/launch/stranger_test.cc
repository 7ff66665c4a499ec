// Whatever strangers send to a process of a job, or answer to it: they are not let in, change
// nothing and delay nobody.

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <thread>

#include "compiler/plan/error.h"
#include "runtime/launch/handshake.h"
#include "runtime/launch/peer.h"
#include "tests/runtime/launch/gathering.h"
#include "tests/support/failure.h"

namespace contraflow::stranger_test {
namespace {

using std::chrono::milliseconds;

constexpr const char* kSecret = "the secret of the tests";  // Points

std::string Noise(std::mt19937_64* random, size_t bytes) {
  std::string noise(bytes, '\0');
  for (char& byte : noise) byte = static_cast<char>((*random)());
  return noise;
}

std::string FlipBit(std::string bytes, size_t bit) {
  bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
  return bytes;
}

/// Says both lines of the handshake, each changed by a function; what came back behind the
/// challenge, or "no challenge".
template <typename Change, typename ChangeProof>
std::string Try(const Address& at, const Claim& claim, Change change, ChangeProof change_proof) {
  const Socket socket = Connect(at, Soon());
  const std::string hello = WriteHello(claim);
  SendText(socket, change(hello));
  try {
    const std::string challenge = ReceiveText(socket, kChallengeBytes);
    SendText(socket, change_proof(WriteProof(kSecret, hello, challenge), challenge));
  } catch (const Error&) {
    return "no challenge";
  }
  try {
    return ReceiveText(socket, 1);
  } catch (const Error&) {
    return "";
  }
}

const auto kSame = [](const std::string& bytes) { return bytes; };
const auto kSameProof = [](const std::string& proof, const std::string&) { return proof; };

TEST_SUITE("unit") {
  TEST_CASE("strangers: of every kind at once and nobody waits for them") {
    std::mt19937_64 random(11);
    std::vector<Socket> kept;
    const Claim claim{Purpose::kMeet, 1, 0, 8, 1, true};
    const auto come = [&](const Address& at) {
      const auto say = [&](const std::string& text) {
        kept.push_back(Connect(at, Soon()));
        SendText(kept.back(), text);
      };
      for (int i = 0; i < 12; ++i) {
        say("");                                                      // silent
        Connect(at, Soon());                                          // a port scanner
        say("GET / HTTP/1.1\r\nHost: " + at.Text() + "\r\n\r\n");     // a browser
        say(std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc", 9));  // TLS
        say(Noise(&random, 200));
        const std::string hello = WriteHello(claim);
        say(hello.substr(0, random() % kHelloBytes));  // and no more
        say(hello);                                    // proves nothing
        say(hello + Noise(&random, kProofBytes));
        say(hello + std::string(100'000, 'x'));
      }
    };
    const std::vector<Attendance> all = Gather(Points(8, true), come);
    CheckMet(all, true);
    for (const Attendance& one : all) CHECK(one.seconds < 20);
  }

  TEST_CASE("strangers: more silent ones than there is room for") {
    std::vector<Socket> kept;
    const std::vector<Attendance> all = Gather(Points(2, false), [&](const Address& at) {
      for (int i = 0; i < 150; ++i) kept.push_back(Connect(at, Soon()));
    });
    CheckMet(all, false);
  }

  TEST_CASE("strangers: who was sent away is named") {
    std::vector<MeetingPoint> points = Points(2, false, 1'000);
    const std::vector<Attendance> all = Gather({points[0]}, [&](const Address& at) {
      const Claim claim{Purpose::kMeet, 1, 0, 2, 1, false};
      for (int i = 0; i < 3; ++i) {
        const Socket socket = Connect(at, Soon());
        SendText(socket, "GET / HTTP/1.1");
        CHECK(ReceiveRest(socket) == "");
      }
      CHECK(Try(at, claim, kSame, [](const std::string& proof, const std::string&) {
              return FlipBit(proof, 0);
            }) == "");
    });
    CHECK(all[0].error.find("; refused meanwhile: 127.0.0.1 (does not speak this protocol; 3 "
                            "times), 127.0.0.1 (says that it is rank 1 of 2, but does not know "
                            "the secret); were they started") != std::string::npos);
  }

  TEST_CASE("strangers: no changed bit of a handshake is let in") {
    const std::vector<Attendance> all = Gather(Points(3, false), [&](const Address& at) {
      const Claim claim{Purpose::kMeet, 1, 0, 3, 1, false};
      for (size_t bit = 0; bit < 8 * kHelloBytes; ++bit) {
        CAPTURE(bit);
        // One that changes what it claimed, or its nonce, behind its own proof.
        const std::string answer = Try(
            at, claim, [&](const std::string& hello) { return FlipBit(hello, bit); }, kSameProof);
        CHECK((answer == "" || answer == "no challenge"));
      }
      for (size_t bit = 0; bit < 8 * kProofBytes; ++bit) {
        CAPTURE(bit);
        CHECK(Try(at, claim, kSame, [&](const std::string& proof, const std::string&) {
                return FlipBit(proof, bit);
              }) == "");
      }
    });
    CheckMet(all, false);
  }

  TEST_CASE("strangers: one of another version learns which this is") {
    const std::vector<Attendance> all = Gather(Points(2, false), [&](const Address& at) {
      const Socket socket = Connect(at, Soon());
      const std::string hello = WriteHello({Purpose::kMeet, 1, 0, 2, 1, false});
      SendText(socket, FlipBit(hello, 8 * kMagicBytes + 1));
      CHECK(ReceiveRest(socket) == WriteVersion());
    });
    CheckMet(all, false);
  }

  TEST_CASE("strangers: proofs cannot be sent back or again") {
    const std::vector<Attendance> all = Gather(Points(3, false), [&](const Address& at) {
      const Claim claim{Purpose::kMeet, 1, 0, 3, 1, false};
      // The server's own proof.
      CHECK(Try(at, claim, kSame, [&](const std::string&, const std::string& challenge) {
              return challenge.substr(kChallengeBytes - kProofBytes);
            }) == "");
      // A whole handshake that was good once (for another connection, which was not accepted for
      // its size; so that rank 1 can still come).
      Claim other = claim;
      other.size = 4;
      std::string hello, proof;
      CHECK(Try(
                at, other, [&](const std::string& said) { return hello = said; },
                [&](const std::string& said, const std::string&) { return proof = said; }) ==
            WriteFrame(Word::kFailed).substr(0, 1));
      CHECK(Try(
                at, other, [&](const std::string&) { return hello; },
                [&](const std::string&, const std::string&) { return proof; }) == "");
    });
    CheckMet(all, false);
  }

  TEST_CASE("strangers: who knows the secret is let in for what fits only") {
    std::vector<MeetingPoint> points = Points(3, false);
    const std::string refused = WriteFrame(Word::kFailed).substr(0, 1);
    const std::vector<Attendance> all = Gather(points, [&](const Address& at) {
      const auto answer = [&](const Claim& claim) { return Try(at, claim, kSame, kSameProof); };
      CHECK(answer({Purpose::kMeet, 0, 0, 3, 1, false}) == refused);
      CHECK(answer({Purpose::kMeet, 1, 0, 2, 1, false}) == refused);
      CHECK(answer({Purpose::kMeet, 1, 0, 3, 1, true}) == refused);
      CHECK(answer({Purpose::kMeet, 1, 2, 3, 1, false}) == "");   // not for rank 0
      CHECK(answer({Purpose::kWatch, 1, 0, 3, 1, false}) == "");  // rank 0's watch is the meeting
      CHECK(answer({Purpose::kMesh, 1, 0, 3, 1, false}) == "");   // not asked for
      CHECK(answer({Purpose::kMeet, 3, 0, 3, 1, false}) == "no challenge");
      CHECK(answer({Purpose::kMeet, -1, 0, 3, 1, false}) == "no challenge");
      CHECK(answer({Purpose::kMeet, 1, 0, 3, 70'000, false}) == "no challenge");
      CHECK(answer({static_cast<Purpose>(7), 1, 0, 3, 1, false}) == "no challenge");
    });
    CheckMet(all, false);
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
    std::vector<MeetingPoint> points = Points(2, true);
    for (MeetingPoint& point : points) point.user = geteuid();
    CheckMet(Gather(points), true);
    // A guest that takes the host for a stranger, then a host that takes the guest for one.
    points[1].user = geteuid() + 1;
    for (MeetingPoint& point : points) point.timeout = milliseconds(500);
    std::vector<Attendance> all = Gather(points);
    CHECK(all[1].error.find(" belongs to another user, ") != std::string::npos);
    std::swap(points[0].user, points[1].user);
    all = Gather(points);
    CHECK(all[0].error.find("127.0.0.1 (of another user, and this job has no secret") !=
          std::string::npos);
  }

  TEST_CASE("strangers: what they write cannot steer a terminal") {
    CHECK(PlainText("plain, \xC3\xA9\n\x1B[2J\x7F\xC2\x9B"
                    "31m") == "plain, \xC3\xA9\n?[2J???31m");
  }

  TEST_CASE("strangers: random bytes on connections") {
    const std::vector<Attendance> all = Gather(Points(2, true), [&](const Address& at) {
      CHECK(Try(at, {Purpose::kMesh, 0, 0, 2, 1, true}, kSame, kSameProof) == "");  // from itself
      std::mt19937_64 random(3);
      const Claim claim{Purpose::kMeet, 1, 0, 2, 1, true};
      for (int round = 0; round < 300; ++round) {
        const Socket socket = Connect(at, Soon());
        std::string bytes = WriteHello(claim) + Noise(&random, random() % 100);
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
    });
    CheckMet(all, true);
  }

  TEST_CASE("strangers: no changed bit of an answer is believed") {
    const Claim claim{Purpose::kMeet, 1, 0, 2, 1, false};
    std::atomic<int> refused = 0;
    for (size_t bit = 0; bit <= 8 * kChallengeBytes; ++bit) {
      CAPTURE(bit);
      SocketPair pair;
      Call call(std::move(pair.a), claim, kSecret, "rank 0 at HOST");
      Readiness readiness;
      const auto serve = [&] {
        call.Ask(&readiness);
        readiness.Wait(Soon());
        return call.Serve(readiness);
      };
      CHECK(serve() == Call::State::kGoing);
      const std::string hello = ReceiveText(pair.b, kHelloBytes);
      const std::string challenge = WriteChallenge(kSecret, hello, 0, 2);
      const bool whole = bit == 8 * kChallengeBytes;
      SendText(pair.b, whole ? challenge : FlipBit(challenge, bit));
      if (whole) {
        CHECK(serve() == Call::State::kGoing);
        CHECK(ProofHolds(kSecret, hello, challenge, ReceiveText(pair.b, kProofBytes)));
        continue;
      }
      const std::string failure = Failure(serve);
      refused += failure.find("what answers as rank 0 at HOST ") == 0 ? 1 : 0;
    }
    CHECK(refused == 8 * kChallengeBytes);
  }

  TEST_CASE("strangers: whatever is no message of a meeting is an error") {
    std::mt19937_64 random(5);
    const std::vector<Address> roster = {{"127.0.0.1", 1}, {"::1", 65'535}, {"", 0}};
    const std::string good = WriteRoster(roster);
    CHECK(ReadRoster(good, 3).size() == 3);
    CHECK(ReadRoster(good, 3)[1].Text() == "[::1]:65535");
    CHECK(ReadRoster("", 0).empty());
    const std::string none = "rank 0 sent an invalid list of processes";
    for (const int size : {0, 2, 4}) CHECK(Failure([&] { ReadRoster(good, size); }) == none);
    for (size_t cut = 0; cut < good.size(); ++cut) {
      CHECK(Failure([&] { ReadRoster(good.substr(0, cut), 3); }) == none);
    }
    for (int round = 0; round < 2'000; ++round) {
      std::string bytes = good;
      for (int edits = 0; edits < 3; ++edits) {
        bytes[random() % bytes.size()] = static_cast<char>(random());
      }
      try {
        for (const Address& address : ReadRoster(bytes, 3)) {
          CHECK(address.port >= 0);
          CHECK(address.port <= 65'535);
        }
      } catch (const Error& error) {
        CHECK(std::string(error.what()) == none);
      }
      Claim claim{Purpose::kMeet, -7, -7, -7, -7, false};
      std::string hello = WriteHello({Purpose::kMesh, 2, 1, 3, 80, true});
      for (int edits = 0; edits < 2; ++edits) {
        hello[8 + random() % 28] = static_cast<char>(random() % 4);
      }
      if (ReadHello(hello, &claim) != "") continue;
      CHECK(claim.size >= 1);
      CHECK(claim.from >= 0);
      CHECK(claim.from < claim.size);
      CHECK(claim.to < claim.size);
      CHECK(claim.port <= 65'535);
    }
  }

  TEST_CASE("strangers: frames of any size and kind") {
    struct Case {
      std::string bytes;
      std::string failure;
    };
    const std::string kind_5("\5\0\0\0\0\0\0\0", 8), huge("\1\0\0\0\xff\xff\xff\xff", 8);
    for (const Case& c :
         {Case{kind_5, "sent something invalid"}, Case{huge, "sent something invalid"},
          Case{WriteFrame(Word::kGo, "x").substr(0, 8), "closed the connection"},
          Case{"\1", "closed the connection"}}) {
      SocketPair pair;
      SendText(pair.a, WriteFrame(Word::kRoster, "some") + WriteFrame(Word::kGo) + c.bytes);
      pair.a.Shutdown();
      FrameInbox frames;
      const auto next = [&] {
        Readiness readiness;
        readiness.Add(pair.b);
        readiness.Wait(Soon());
        return frames.Fill(pair.b);
      };
      REQUIRE(next());
      CHECK(frames.word() == Word::kRoster);
      CHECK(frames.payload() == "some");
      REQUIRE(next());
      CHECK(frames.word() == Word::kGo);
      CHECK(frames.payload() == "");
      CHECK(Failure([&] {
              while (!next()) {
              }
            }) == c.failure);
    }
  }

// Without descriptors the check of dynamic types, which opens a pipe to look at memory, takes every
// object for none.
#ifndef __SANITIZE_ADDRESS__
  TEST_CASE("strangers: when the system has no more descriptors") {
    Acceptor acceptor(Listen({"127.0.0.1", 0}), kSecret, 0, 2);
    const Address at = LocalAddress(acceptor.listener());
    std::vector<Socket> kept;
    for (int i = 0; i < 20; ++i) kept.push_back(Connect(at, Soon()));
    // The honest one comes last.
    const Claim claim{Purpose::kMeet, 1, 0, 2, 80, false};
    Call call(Connect(at, Soon()), claim, kSecret, "rank 0");
    rlimit before;
    REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
    rlimit less = before;
    const Socket highest(dup(kept.back().fd()));
    less.rlim_cur = static_cast<rlim_t>(highest.fd()) + 8;
    REQUIRE(setrlimit(RLIMIT_NOFILE, &less) == 0);
    std::vector<Peer> peers;
    std::string failure;
    const Clock::time_point deadline = Soon();
    try {
      Readiness readiness;
      while (peers.empty() && Clock::now() < deadline) {
        acceptor.Ask(&readiness);
        call.Ask(&readiness);
        readiness.Wait(Clock::now() + milliseconds(20));
        CHECK(call.Serve(readiness) == Call::State::kGoing);
        peers = acceptor.Serve(readiness);
      }
    } catch (const Error& error) {
      failure = error.what();
    }
    REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
    CHECK(failure == "");
    REQUIRE(peers.size() == 1);
    CHECK(peers[0].claim.port == 80);
    CHECK(acceptor.Refused().find("127.0.0.1 (is one too many at a time; ") == 0);
  }
#endif
}

}  // namespace
}  // namespace contraflow::stranger_test
