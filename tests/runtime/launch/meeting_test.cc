#include "runtime/launch/meeting.h"

#include <doctest/doctest.h>

#include <atomic>
#include <future>
#include <thread>

#include "compiler/plan/error.h"
#include "runtime/core/bytes.h"
#include "runtime/core/seconds.h"
#include "tests/runtime/launch/gathering.h"
#include "tests/support/failure.h"
#include "tests/support/held_port.h"

namespace contraflow::meeting_test {
namespace {

using std::chrono::milliseconds;

/// ` within 3 s`.
std::string WithinBrief() { return " within " + SecondsText(milliseconds(kBrief)); }

/// A listener that greets everyone with `words`, and then stays silent or closes.
class Impostor {
 public:
  Impostor(std::string words, bool closes) : listener_(Listen({"127.0.0.1", 0})) {
    thread_ = std::thread([this, words, closes] {
      std::vector<Socket> kept;
      while (!ended_) {
        Socket socket = Accept(listener_);
        if (!socket) {
          std::this_thread::sleep_for(milliseconds(2));
          continue;
        }
        // No byte is left unread, so that closing does not take back what was said.
        if (closes && !words.empty()) (void)ReceiveText(socket, 88);
        SendText(socket, words);
        if (!closes) kept.push_back(std::move(socket));
      }
    });
  }
  ~Impostor() {
    ended_ = true;
    thread_.join();
  }

  Address address() const { return LocalAddress(listener_); }

 private:
  const Socket listener_;
  std::atomic<bool> ended_ = false;
  std::thread thread_;
};

/// Returns the error of a process that comes to `address` as rank 1 of 2.
std::string FailureAt(const Address& address, int timeout_ms) {
  std::vector<MeetingPoint> points = Points(2, timeout_ms);
  points[1].address = address;
  return Failure([&] { Meet(points[1]); });
}

TEST_SUITE("unit") {
  TEST_CASE("meeting: every connection joins the pair it says") {
    for (const int size : {1, 2, 3, 8}) {
      CAPTURE(size);
      std::vector<MeetingPoint> points = Points(size);
      if (size == 1) points[0].address.port = 29'500;  // it does not listen there
      CheckMet(Gather(points));
    }
  }

  TEST_CASE("meeting: by name and over IPv6 and where every interface is listened at") {
    for (const auto& [at, to] : std::vector<std::pair<std::string, std::string>>{
             {"localhost", "localhost"}, {"::1", "::1"}, {"", "127.0.0.1"}}) {
      CAPTURE(at);
      if (at == "::1" && Failure([] { Listen({"::1", 0}); }) != "accepted") continue;
      std::vector<MeetingPoint> points = Points(3);
      const HeldPort held;
      points[0].address = {at, held.port()};
      points[1].address = points[2].address = {to, held.port()};
      CheckMet(Gather(points));
    }
  }

  TEST_CASE("meeting: the others may come first") {
    const HeldPort held;
    std::vector<MeetingPoint> points = Points(3);
    for (MeetingPoint& point : points) point.address = {"127.0.0.1", held.port()};
    std::vector<Attendance> all(3);
    std::thread late([&] {
      std::this_thread::sleep_for(milliseconds(200));
      all[0] = std::move(Gather({points[0]}).front());
    });
    std::vector<Attendance> early = Gather({points[1], points[2]});
    late.join();
    all[1] = std::move(early[0]);
    all[2] = std::move(early[1]);
    CheckMet(std::move(all));
  }

  TEST_CASE("meeting: a port is free again as soon as all have met") {
    const HeldPort held;
    for (int round = 0; round < 2; ++round) {
      std::vector<MeetingPoint> points = Points(2);
      points[0].address = points[1].address = {"127.0.0.1", held.port()};
      CheckMet(Gather(points));
    }
  }

  TEST_CASE("meeting: ranks that do not come or may not") {
    // At the same time, because each takes as long as rank 0 waits.
    const auto begin = [](const std::vector<MeetingPoint>& points) {
      return std::async(std::launch::async, [points] { return Gather(points); });
    };
    std::vector<MeetingPoint> points = Points(6, kBrief);
    std::future<std::vector<Attendance>> few = begin({points[0], points[2]});

    points = Points(3, kBrief);
    points[1].secret = "another";
    std::future<std::vector<Attendance>> secret = begin(points);

    points = Points(4, kBrief);
    points[2].size = 3;
    std::future<std::vector<Attendance>> size = begin(points);

    std::vector<Attendance> all = few.get();
    CHECK(all[0].error.starts_with("ranks 1, 3-5 of 6 did not reach rank 0 at 127.0.0.1:"));
    CHECK(all[0].error.ends_with(WithinBrief() +
                                 "; were they started, with the same MASTER_ADDR, MASTER_PORT and "
                                 "secret?"));
    CHECK(all[1].error == all[0].error);
    CHECK(all[0].seconds >= kBrief / 1000);

    all = secret.get();
    CHECK(Contains(all[1].error, "what answers as rank 0 at 127.0.0.1:"));
    CHECK(Contains(all[1].error, " does not know the secret of this job, or is another program"));
    CHECK(Contains(all[0].error, "rank 1 of 3 did not reach rank 0 at "));
    CHECK(Contains(all[0].error,
                   "; refused meanwhile: 127.0.0.1 (does not know the secret of this job)"));
    CHECK(all[2].error == all[0].error);

    all = size.get();
    const std::string three =
        "rank 2 was started as one of 3 processes, rank 0 as one of 4; start all with the same "
        "number of processes";
    CHECK(all[2].error == three);
    CHECK(Contains(all[0].error, "rank 2 of 4 did not reach rank 0 at "));
    CHECK(Contains(all[0].error, "127.0.0.1 (" + three + ")"));
    CHECK(all[1].error == all[0].error);
    CHECK(all[3].error == all[0].error);
  }

  TEST_CASE("meeting: nobody is there") {
    const HeldPort held;
    const Address address{"127.0.0.1", held.port()};
    CHECK(FailureAt(address, 200) ==
          "cannot connect to " + address.Text() +
              ": Connection refused, for 0.2 s; rank 0 must run there and be reachable: check "
              "MASTER_ADDR, MASTER_PORT and firewalls");
  }

  TEST_CASE("meeting: the port is taken") {
    const Impostor other("", false);
    std::vector<MeetingPoint> points = Points(2);
    points[0].address = other.address();
    CHECK(Contains(Failure([&] { Meet(points[0]); }), " is taken "));
  }

  TEST_CASE("meeting: what answers is none") {
    const auto answers = [](const std::string& words, bool closes, int timeout_ms) {
      const Impostor other(words, closes);
      const std::string place = "rank 0 at " + other.address().Text();
      std::string text = FailureAt(other.address(), timeout_ms);
      const size_t at = text.find(place);
      REQUIRE(at != std::string::npos);
      return text.replace(at, place.size(), "HOST");
    };
    const std::string none =
        "what answers as HOST does not know the secret of this job, or is another program; give "
        "all "
        "processes the same secret, or set another MASTER_PORT";
    CHECK(answers("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", true, kPlenty) == none);
    CHECK(answers("SSH-2.0-OpenSSH_9.2p1\r\n", false, kPlenty) == none);
    CHECK(answers(std::string(10'000, '\0'), false, kPlenty) == none);
    CHECK(answers("", false, 200) ==
          "what answers as HOST did not answer within 0.2 s: it is stopped, or another "
          "program uses the port; end it, or set another MASTER_PORT");
    CHECK(
        answers("", true, kBrief) ==
        "what answers as HOST closes every connection silently: it has another secret, or another "
        "program uses the port; give all processes the same secret, or set another MASTER_PORT");
  }
}

/// Comes to rank 0 by hand; returns the connection as soon as it stands.
Socket Come(const Address& address, const MeetingPoint& point) {
  const Claim claim{Purpose::kMeet, point.rank, point.size};
  Socket stream = Handshake(Connect(address, Soon()), claim, point, "rank 0", Soon());
  REQUIRE(stream);
  return stream;
}

/// Words of rank 0 to one that has come, until it closes.
std::vector<WordFrame> Rest(Socket& stream) {
  std::vector<WordFrame> rest;
  try {
    for (;;) rest.push_back(ReceiveWord(&stream, Soon()));
  } catch (const Socket::Closed&) {
  }
  return rest;
}

void CheckTold(Socket& stream, const std::string& error) {
  const std::vector<WordFrame> rest = Rest(stream);
  REQUIRE(!rest.empty());
  CHECK((rest.back().word == Word::kFailed || rest.back().word == Word::kLost));
  CHECK(rest.back().text == error);
}

TEST_SUITE("unit") {
  TEST_CASE("meeting: two processes with the same number") {
    const std::vector<MeetingPoint> points = Points(4);
    Socket rank1, rank2;
    const std::vector<Attendance> all = Gather({points[0], points[2]}, [&](const Address& at) {
      rank1 = Come(at, points[1]);
      rank2 = Come(at, points[2]);
    });
    CHECK(Contains(all[0].error, "two processes claim to be rank 2: one comes from 127.0.0.1:"));
    CHECK(Contains(all[0].error, "; give every process its own number"));
    CHECK(all[0].seconds < kPlenty / 2000);
    // All processes get the error.
    CHECK(all[1].error == all[0].error);
    CheckTold(rank1, all[0].error);
    CheckTold(rank2, all[0].error);
  }

  TEST_CASE("meeting: one that leaves before all have come") {
    std::vector<MeetingPoint> points = Points(4);
    points[2].timeout = milliseconds(kBrief);
    Socket rank1;
    const std::vector<Attendance> all =
        Gather({points[0], points[2]}, [&](const Address& at) { rank1 = Come(at, points[1]); });
    CHECK(Contains(all[1].error,
                   " did not say" + WithinBrief() + " that all processes of the job have met"));
    // Its last words are everyone's.
    CHECK(all[0].error == all[1].error);
    CheckTold(rank1, all[0].error);
    CHECK(all[0].seconds < kPlenty / 2000);
  }

  TEST_CASE("meeting: one that is killed before all have come") {
    std::vector<MeetingPoint> points = Points(4);
    Socket rank1;
    const std::vector<Attendance> all = Gather({points[0]}, [&](const Address& at) {
      rank1 = Come(at, points[1]);
      Come(at, points[2]);
    });
    CHECK(Contains(all[0].error, "rank 2 (127.0.0.1:"));
    CHECK(Contains(all[0].error, "left before all processes of the job had met; see its output"));
    CHECK(all[0].seconds < kPlenty / 2000);
    CheckTold(rank1, all[0].error);
  }

  TEST_CASE("meeting: rank 0 is killed before all have come") {
    std::vector<MeetingPoint> points = Points(3);
    auto host = std::make_unique<Listener>(points[0]);
    points[1].address = host->address();
    std::string failure;
    std::thread guest([&] { failure = Failure([&] { Meet(points[1]); }); });
    REQUIRE(host->Next(Soon()));
    guest.join();
    CHECK(failure == "rank 0 at " + points[1].address.Text() +
                         " left before all processes of the job had met; see its output");
  }

  TEST_CASE("meeting: garbage from a process of the job") {
    const auto frame = [](uint32_t word, uint32_t length, const std::string& text) {
      return ByteWriter().Put(word).Put(length).Take() + text;
    };
    for (const std::string& garbage :
         {std::string(64, '\xff'), frame(1, 0, ""), frame(0, 1, "x"), frame(2, 7, "because")}) {
      // Rank 3 never comes.
      const std::vector<MeetingPoint> points = Points(4);
      Socket rank1, rank2;
      const std::vector<Attendance> all = Gather({points[0]}, [&](const Address& at) {
        rank2 = Come(at, points[2]);
        rank1 = Come(at, points[1]);
        rank1.WriteAll(std::as_bytes(std::span(garbage)), Soon());
      });
      CHECK((Contains(all[0].error, "sent something ") || all[0].error == "because"));
      CHECK(all[0].seconds < kPlenty / 2000);
      CheckTold(rank2, all[0].error);
    }
  }

  TEST_CASE("meeting: a job that runs answers who asks") {
    std::vector<MeetingPoint> points = Points(2);
    std::vector<Attendance> all = Gather(points);
    REQUIRE(all[0].members.has_value());
    Listener& listener = *all[0].members->listener;
    MeetingPoint ask = points[0];
    ask.address = listener.address();
    CHECK(Failure([&] { AskJob(ask); }) == "the job has not begun");
    listener.Serve([] { return std::string("step 3\n\x1b[2J"); });
    CHECK(AskJob(ask) == "step 3\n\\u001b[2J");
    ask.secret = "another";
    CHECK(Contains(Failure([&] { AskJob(ask); }), "does not know the secret of this job"));
    // A process that comes too late to train is told.
    MeetingPoint late = points[1];
    late.address = listener.address();
    CHECK(Failure([&] { Meet(late); }) == "the job has begun without rank 1");
  }
}

}  // namespace
}  // namespace contraflow::meeting_test
