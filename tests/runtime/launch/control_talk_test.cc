// Data of main threads through Control, the end of a job, and connections that carry messages that
// are not of the job.

#include <doctest/doctest.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "compiler/plan/error.h"
#include "runtime/core/bytes.h"
#include "tests/runtime/launch/watched_job.h"

namespace contraflow::control_talk_test {
namespace {

using std::chrono::milliseconds;

void Sleep(int ms) { std::this_thread::sleep_for(milliseconds(ms)); }

/// Bytes that both sides of a test know.
std::string Bytes(int rank, int round, size_t size) {
  std::string bytes(size, static_cast<char>('a' + (rank * 7 + round) % 26));
  return bytes + std::to_string(rank) + "/" + std::to_string(round);
}

/// The bytes of a beat.
std::string BeatBytes(int waits_for) {
  ByteWriter bytes;
  bytes.Put(uint64_t{1}).Put(int32_t{1}).Put(int32_t{waits_for}).Put(uint32_t{0});
  return bytes.PutText("here").Take();
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
          if (control.Barrier()) ++wrong;
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
    struct Case {
      uint8_t channel;
      std::string bytes, reason;
    };
    const std::string fault = BytesOf({FaultKind::kError, 1, "text"});
    const Case cases[] = {
        {99, "", "it sent something that is not a message of this job"},
        {Watch::kFault, fault + "x",
         "a message of the watch is followed by bytes that belong to nothing"},
        {Watch::kFault, fault.substr(0, 12), "a message of the watch is cut off"},
        {Watch::kFault, BytesOf({FaultKind::kError, 99, ""}), "tells of a fault there is not"},
        {Watch::kBeat, BeatBytes(3), "names a process there is not"},
    };
    for (const Case& c : cases) {
      CAPTURE(&c - cases);
      WatchedJob job(3, Unhurried(), {2});
      SendTalk(job.membership(2).links[0], Watch::kFinish);
      SendTalk(job.membership(2).links[0], c.channel, c.bytes);
      job.Run([](int, Control& control, Progress&) { WaitForStop(control); });
      CHECK(FirstLine(job.Report()) == "contraflow-run: error: rank 2 was lost: " + c.reason);
    }
    WatchedJob job(3, Unhurried(), {2});
    for (int i = 0; i < 5; ++i) SendTalk(job.membership(2).links[0], Watch::kData, "g");
    job.Run([](int, Control& control, Progress&) { WaitForStop(control); });
    CHECK(FirstLine(job.Report()) ==
          "contraflow-run: error: rank 2 was lost: it sent data that nobody asked for");
  }

  TEST_CASE("control: what was said before the end is heard though nothing can be sent any more") {
    std::vector<Membership> members = JoinWatch(2);
    std::string heard;
    Link link(1, std::move(members[0].links[1]),
              [&](int, uint8_t, std::string bytes) { heard += bytes; });
    SendTalk(members[1].links[0], Watch::kStop, "no memory");
    members[1].links.clear();
    link.Put(Watch::kBeat, "here");
    link.Write();
    CHECK(link.open());
    CHECK(!link.writes());
    for (int reads = 0; link.open() && reads < 3; ++reads) link.Read();
    CHECK(heard == "no memory");
    CHECK(link.reason() == "its connection closed (it was killed, or its machine is gone)");
  }

  TEST_CASE("control: one who was stopped before tells the others of the fault in its last words") {
    Control::Options options;
    options.bound = milliseconds(6000);  // of which a third
    WatchedJob job(3, options, {2});
    SendTalk(job.membership(2).links[0], Watch::kWords,
             BeatBytes(-1) + BytesOf({FaultKind::kError, 2, "it broke"}));
    job.Run([](int, Control& control, Progress&) { WaitForStop(control); });
    CHECK(FirstLine(job.Report()) == "contraflow-run: error: rank 2: it broke");
  }

  TEST_CASE("control: a process that orders what it may not is not obeyed") {
    // Rank 2 neither stops the others nor ends the job.
    WatchedJob job(3, Unhurried(), {2});
    Socket& stream = job.membership(2).links[0];
    SendTalk(stream, Watch::kStop, BytesOf({FaultKind::kError, 2, "now"}));
    SendTalk(stream, Watch::kEnd);
    SendTalk(stream, Watch::kFinished);
    SendTalk(stream, Watch::kFinish);
    job.Run([](int, Control& control, Progress&) { control.Finish(); });
    CHECK(job.reports().empty());
    CHECK(job.end(0).code == -1);
    CHECK(job.end(1).code == -1);
  }

  TEST_CASE("control: texts are cut and cannot steer a terminal") {
    WatchedJob job(2, {}, {1});
    const std::string text = "a\x1b[2Jb\nc\x7f" + std::string(200'000, 'x');
    SendTalk(job.membership(1).links[0], Watch::kFault, BytesOf({FaultKind::kError, 1, text}));
    job.Run([](int, Control& control, Progress&) { WaitForStop(control); });
    CHECK(job.Report().starts_with("contraflow-run: error: rank 1: a\\u001b[2Jb\n    c\\u007fxxx"));
    CHECK(job.Report().size() < 20'000);
  }
}

}  // namespace
}  // namespace contraflow::control_talk_test
