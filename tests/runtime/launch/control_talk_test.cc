// What main threads tell each other through Control, the end of a job, and connections that carry
// what they should not.

#include <doctest/doctest.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "compiler/plan/error.h"
#include "runtime/launch/control_link.h"
#include "tests/runtime/launch/watched_job.h"

namespace contraflow::control_talk_test {
namespace {

using Kind = ControlMessage::Kind;
using std::chrono::milliseconds;

constexpr const char* kClosed =
    " was lost: its connection closed (it was killed, or its machine is gone)";

void Sleep(int ms) { std::this_thread::sleep_for(milliseconds(ms)); }

/// Bytes that both sides of a test know.
std::string Bytes(int rank, int round, size_t size) {
  std::string bytes(size, static_cast<char>('a' + (rank * 7 + round) % 26));
  return bytes + std::to_string(rank) + "/" + std::to_string(round);
}

std::string RandomText(std::mt19937& random, size_t most) {
  std::string text(random() % (most + 1), ' ');
  for (char& c : text) c = static_cast<char>(' ' + random() % 95);
  return text;
}

Fault RandomFault(std::mt19937& random) {
  return {static_cast<FaultKind>(random() % 5), static_cast<int>(random() % 9),
          static_cast<int>(random() % 9) - 1, random() % 2 == 0, RandomText(random, 2000)};
}

ControlMessage RandomMessage(std::mt19937& random) {
  ControlMessage message(static_cast<Kind>(random() % ControlMessage::kKinds));
  if (message.kind == Kind::kBeat || message.kind == Kind::kWords) {
    message.beat = {uint64_t{random()} << 20, static_cast<int32_t>(random() % 9) - 1,
                    static_cast<uint32_t>(random()), RandomText(random, 1000)};
  }
  message.has_fault = message.kind == Kind::kWords && random() % 2 == 0;
  if (message.kind == Kind::kFault || message.kind == Kind::kStop || message.has_fault) {
    message.fault = RandomFault(random);
  }
  if (message.kind == Kind::kData) message.operation = static_cast<uint8_t>(random());
  if (message.kind == Kind::kData || message.kind == Kind::kPart) {
    message.bytes = RandomText(random, 3000);
  }
  return message;
}

TEST_SUITE("unit") {
  TEST_CASE("control: gather and broadcast and barrier") {
    constexpr size_t kBytes[] = {0, 1, 1000, 700'000};
    for (const int size : {1, 2, 3, 5}) {
      CAPTURE(size);
      WatchedJob job(size);
      std::atomic<int> wrong = 0, arrived = 0;
      job.Run([&](int rank, Control& control, Progress&) {
        for (int round = 0; round < 4; ++round) {
          const auto gathered = control.Gather(Bytes(rank, round, kBytes[(rank + round) % 4]));
          if (gathered.size() != (rank == 0 ? static_cast<size_t>(size) : 0)) ++wrong;
          for (int r = 0; r < static_cast<int>(gathered.size()); ++r) {
            const std::string expected = Bytes(r, round, kBytes[(r + round) % 4]);
            if (gathered[static_cast<size_t>(r)] != expected) ++wrong;
          }
          const std::string sent = Bytes(size, round, kBytes[round]);
          if (control.Broadcast(rank == 0 ? sent : "nobody hears this") != sent) ++wrong;
          ++arrived;
          control.Barrier();
          if (arrived < (round + 1) * size) ++wrong;
        }
        if (control.rank() != rank || control.size() != size) ++wrong;
        control.Finish();
      });
      CHECK(wrong == 0);
      CHECK(arrived == 4 * size);
      CHECK(job.reports().empty());
      for (int rank = 0; rank < size; ++rank) CHECK(job.end(rank).code == -1);
    }
  }

  TEST_CASE("control: the loss of a rank ends all waiting for it") {
    const std::vector<std::function<void(Control&)>> waits = {
        [](Control& control) { control.Gather("x"); },
        [](Control& control) { control.Broadcast("x"); },
        [](Control& control) { control.Barrier(); },
        [](Control& control) { control.Finish(); },
    };
    for (int lost = 0; lost < 4; ++lost) {
      for (const auto& wait : waits) {
        CAPTURE(lost);
        CAPTURE(&wait - waits.data());
        WatchedJob job(4);
        std::atomic<int> waiting = 0;
        for (int rank = 0; rank < 4; ++rank) {
          if (rank == lost) continue;
          job.Start(rank, [&](int, Control& control, Progress&) {
            ++waiting;
            wait(control);
          });
        }
        while (waiting < 3) Sleep(1);
        Sleep(2);
        job.Kill(lost);
        job.Join();
        for (int rank = 0; rank < 4; ++rank) {
          CHECK(job.end(rank).code == (rank == lost ? -1 : 1));
          CHECK(job.end(rank).aborted == (rank != lost));
        }
        CHECK(FirstLine(job.Report()) ==
              "contraflow-run: error: rank " + std::to_string(lost) + kClosed);
      }
    }
  }

  TEST_CASE("control: a job that is done ends in any order without a report") {
    std::mt19937 random(4);
    for (int round = 0; round < 60; ++round) {
      const int size = 1 + static_cast<int>(random() % 6);
      const auto pause = static_cast<unsigned>(random() % 3);
      CAPTURE(round);
      WatchedJob job(size);
      job.Run([&](int rank, Control& control, Progress&) {
        Sleep(static_cast<int>(static_cast<unsigned>(rank) * pause));
        control.Finish();
        job.Kill(rank);
      });
      CHECK(job.reports().empty());
      for (int rank = 0; rank < size; ++rank) CHECK(job.end(rank).code == -1);
    }
  }

  TEST_CASE("control: an error after the end of the job is its rank's own") {
    WatchedJob job(3);
    job.Run([&](int rank, Control& control, Progress&) {
      control.Finish();
      if (rank == 1) throw Error("out.json: disk full");
    });
    CHECK(job.Report() == "contraflow-run: error: out.json: disk full\n");
    CHECK(job.end(1).code == 11);
    CHECK(job.end(0).code == -1);
    CHECK(job.end(2).code == -1);
  }

  TEST_CASE("control: who is to be woken is woken once") {
    WatchedJob job(2);
    std::atomic<int> early = 0, late = 0, replaced = 0;
    job.Run([&](int rank, Control& control, Progress&) {
      control.OnStop([&] { ++replaced; });
      control.OnStop([&] { ++early; });
      control.Barrier();
      if (rank == 1) throw Error("it broke");
      while (early == 0) Sleep(1);
      control.OnStop([&] { ++late; });
      control.Barrier();
    });
    CHECK(replaced == 0);
    CHECK(early == 2);
    CHECK(late == 1);
    CHECK(job.end(0).aborted);
  }

  TEST_CASE("control: a connection that carries no messages of the job is lost") {
    const std::string hello = Encode(ControlMessage(Kind::kFinish));
    ControlMessage data(Kind::kData), stranger(Kind::kFault);
    stranger.fault.process = 99;
    ControlMessage waits(Kind::kBeat);
    waits.beat.waits_for = 3;
    std::string long_length("\x05\xff\xff\xff\xff", 5);
    struct Case {
      std::string bytes, reason;
    };
    const std::string none = "it sent what is no message of this job";
    const Case cases[] = {
        {"GET / HTTP/1.1\r\n\r\n", none},
        {long_length, none},
        {hello + Encode(stranger), none},
        {Encode(waits), none},
        {Encode(data) + Encode(data), "it sent data that nobody asked for"},
    };
    for (const Case& c : cases) {
      CAPTURE(&c - cases);
      WatchedJob job(3, {}, {2});
      SendAll(job.membership(2).watch[0], std::as_bytes(std::span(c.bytes)),
              Clock::now() + std::chrono::seconds(30));
      job.Run([](int, Control& control, Progress&) { WaitForStop(control); });
      CHECK(FirstLine(job.Report()) == "contraflow-run: error: rank 2 was lost: " + c.reason);
    }
  }

  TEST_CASE("control: a leader that orders what it may not is not obeyed") {
    // Rank 2 is no hub: neither stops the others nor ends the job.
    WatchedJob job(3, {}, {2});
    for (const Kind kind : {Kind::kStop, Kind::kEnd, Kind::kFinished}) {
      for (const int hub : {0, 1}) {
        SendControl(job.membership(2).watch[static_cast<size_t>(hub)], ControlMessage(kind));
      }
    }
    SendControl(job.membership(2).watch[0], ControlMessage(Kind::kFinish));
    job.Run([](int, Control& control, Progress&) { control.Finish(); });
    CHECK(job.reports().empty());
    CHECK(job.end(0).code == -1);
    CHECK(job.end(1).code == -1);
  }

  TEST_CASE("control: messages come out as they went in") {
    std::mt19937 random(1);
    std::vector<ControlMessage> sent;
    std::string bytes;
    for (int i = 0; i < 2000; ++i) {
      sent.push_back(RandomMessage(random));
      bytes += Encode(sent.back());
    }
    ControlReader reader;
    size_t received = 0;
    for (size_t at = 0; at < bytes.size();) {
      const size_t count = std::min<size_t>(bytes.size() - at, random() % 5000);
      reader.Add(bytes.data() + at, count);
      at += count;
      for (ControlMessage message; reader.Next(&message); ++received) {
        const ControlMessage& expected = sent.at(received);
        REQUIRE(message.kind == expected.kind);
        REQUIRE(Encode(message) == Encode(expected));
        REQUIRE(message.beat.position == expected.beat.position);
        REQUIRE(message.beat.moves == expected.beat.moves);
        REQUIRE(message.beat.waits_for == expected.beat.waits_for);
        REQUIRE(message.fault.text == expected.fault.text);
        REQUIRE(message.fault.about == expected.fault.about);
        REQUIRE(message.bytes == expected.bytes);
      }
    }
    CHECK(received == sent.size());
  }

  TEST_CASE("control: damaged messages are read or refused") {
    std::mt19937 random(2);
    int refused = 0;
    for (int round = 0; round < 5000; ++round) {
      std::string bytes = Encode(RandomMessage(random));
      for (auto i = random() % 3; i > 0; --i) {
        bytes[random() % bytes.size()] = static_cast<char>(random());
      }
      bytes.resize(bytes.size() - random() % std::min<size_t>(bytes.size(), 3));
      ControlReader reader;
      reader.Add(bytes.data(), bytes.size());
      try {
        for (ControlMessage message; reader.Next(&message);) {
          CHECK(message.fault.text.size() <= kMaxFaultText);
        }
      } catch (const Error& error) {
        CHECK(std::string(error.what()) == "it sent what is no message of this job");
        ++refused;
      }
    }
    CHECK(refused > 100);
  }

  TEST_CASE("control: texts are cut and cannot steer a terminal") {
    ControlMessage message(Kind::kFault);
    message.fault.text = "a\x1b[2Jb\nc\x7f" + std::string(1 << 20, 'x');
    const std::string bytes = Encode(message);
    ControlReader reader;
    reader.Add(bytes.data(), bytes.size());
    ControlMessage read;
    REQUIRE(reader.Next(&read));
    CHECK(read.fault.text.size() == kMaxFaultText);
    CHECK(read.fault.text.substr(0, 10) == "a?[2Jb\nc?x");
  }

  TEST_CASE("control: who does not read keeps nobody waiting and is given up") {
    int fds[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    ControlLink link{Socket(fds[0])};
    ControlLink other{Socket(fds[1])};
    // A main thread's data may be large; what is urgent passes it by.
    const std::string data(size_t{20} << 20, 'd');
    link.SendBytes(3, data);
    link.Send(ControlMessage(Kind::kEnd));
    CHECK(link.open());
    std::vector<ControlMessage> messages;
    uint64_t pieces = 0;
    while (messages.size() < 2) {
      link.Flush();
      other.Receive(&messages, &pieces);
      REQUIRE(other.open());
    }
    CHECK(messages[0].kind == Kind::kEnd);
    CHECK(messages[1].kind == Kind::kData);
    CHECK(messages[1].operation == 3);
    CHECK(messages[1].bytes == data);
    CHECK(pieces == 80);
    CHECK(!link.Unsent());

    ControlMessage beat(Kind::kBeat);
    beat.beat.position = std::string(1000, 'p');
    int sent = 0;
    for (; link.open() && sent < 100'000; ++sent) link.Send(beat);
    CHECK(!link.open());
    CHECK(sent > 1000);
    CHECK(link.reason() ==
          "it does not read what it is sent (it is stopped, or its machine is gone)");
  }
}

}  // namespace
}  // namespace contraflow::control_talk_test
