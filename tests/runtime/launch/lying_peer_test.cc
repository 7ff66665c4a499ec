// Lies of a process of the job: valid messages of every kind and connection, changed at random
// places. Whatever comes, who hears it ends in a clean error or takes no harm. CF_LIES is the
// number of lies of each kind.

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <future>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "compiler/files/plan_io.h"
#include "compiler/plan/error.h"
#include "runtime/core/bytes.h"
#include "runtime/core/digest.h"
#include "runtime/host/run.h"
#include "runtime/launch/meeting.h"
#include "runtime/launch/process_run.h"
#include "runtime/launch/watch.h"
#include "tests/runtime/launch/watched_job.h"
#include "tests/support/failure.h"
#include "tests/support/run_support.h"

namespace contraflow::lying_peer_test {
namespace {

using Milliseconds = std::chrono::milliseconds;
using Random = std::mt19937_64;
/// Text that is written, in pieces that mean something.
using Script = std::vector<std::string>;

const std::string kSecret = "the secret of the lies";

int Lies(int usual) {
  const char* const given = std::getenv("CF_LIES");
  return given == nullptr ? usual : std::atoi(given);
}

/// Calls lie(number) for all numbers, `together` at a time.
void Tell(int lies, int together, const std::function<void(int)>& lie) {
  std::signal(SIGPIPE, SIG_IGN);
  std::atomic<int> next = 0;
  std::vector<std::jthread> threads;
  for (int t = 0; t < together; ++t) {
    threads.emplace_back([&] {
      for (int i = next++; i < lies; i = next++) lie(i);
    });
  }
}

template <typename T>
std::string BytesOfValue(const T& value) {
  return ByteWriter().Put(value).Take();
}

void MutateBytes(std::string* bytes, Random& random) {
  if (bytes->empty()) {
    bytes->append(random() % 9, static_cast<char>(random()));
    return;
  }
  const size_t at = random() % bytes->size();
  switch (random() % 6) {
    case 0:
      (*bytes)[at] = static_cast<char>((*bytes)[at] ^ (1 << random() % 8));
      break;
    case 1:
      (*bytes)[at] = static_cast<char>(random());
      break;
    case 2: {  // a number, where numbers are
      constexpr uint64_t kNumbers[] = {0,
                                       1,
                                       2,
                                       7,
                                       255,
                                       4096,
                                       uint64_t{1} << 18,
                                       uint64_t{1} << 20,
                                       0x7fffffff,
                                       0x80000000,
                                       0xffffffff,
                                       uint64_t{1} << 40,
                                       uint64_t{1} << 63,
                                       ~uint64_t{0}};
      const size_t size = random() % 2 == 0 ? 4 : 8;
      const size_t place = at / 4 * 4;
      const uint64_t number = kNumbers[random() % std::size(kNumbers)];
      bytes->replace(place, std::min(size, bytes->size() - place),
                     BytesOfValue(number).substr(0, std::min(size, bytes->size() - place)));
      break;
    }
    case 3:
      bytes->resize(at);
      break;
    case 4:
      bytes->insert(at, std::string(1 + random() % 40, static_cast<char>(random())));
      break;
    default:
      bytes->erase(at, 1 + random() % 8);
  }
}

Script Mutated(Script script, Random& random) {
  for (size_t i = 0, changes = 1 + random() % 3; i < changes && !script.empty(); ++i) {
    const size_t one = random() % script.size(), two = random() % script.size();
    switch (random() % 8) {
      case 0:
        script.erase(script.begin() + static_cast<std::ptrdiff_t>(one));
        break;
      case 1:
        std::swap(script[one], script[two]);
        break;
      case 2: {
        const std::string again = script[one];
        script.insert(script.begin() + static_cast<std::ptrdiff_t>(two), again);
        break;
      }
      default:
        MutateBytes(&script[one], random);
    }
  }
  return script;
}

/// A deadline for what should take no time, however busy the machine.
Clock::time_point Soon() { return Clock::now() + std::chrono::seconds(120); }

void Write(Socket& stream, const std::string& bytes) {
  stream.WriteAll(std::as_bytes(std::span(bytes)), Soon());
}
/// Writes as much of it as the other side takes, and the end.
void WriteAll(Socket& stream, const Script& script) {
  try {
    for (const std::string& bytes : script) Write(stream, bytes);
    stream.EndSending();
  } catch (const Error&) {  // it has had enough
  }
}

/// Words of the watch, one after the other; a message of a main thread in parts too.
Script TalkScript() {
  const std::string beat = ByteWriter()
                               .Put(uint64_t{7})
                               .Put(int32_t{3})
                               .Put(int32_t{-1})
                               .Put(uint32_t{50})
                               .PutText("step 3, instruction 17")
                               .Take();
  const Fault fault{FaultKind::kError, 1, "it has had enough"};
  const auto frame = [](Watch::Talk channel, Frame::Part part, const std::string& bytes) {
    const Frame head{channel, part, 0, static_cast<uint32_t>(bytes.size())};
    return BytesOfValue(head) + bytes;
  };
  const auto talk = [&](Watch::Talk channel, const std::string& bytes) {
    return frame(channel, Frame::kWhole, bytes);
  };
  const auto part = [&](const std::string& bytes, bool more) {
    return frame(Watch::kData, more ? Frame::kMore : Frame::kLast, bytes);
  };
  return {talk(Watch::kBeat, beat),
          talk(Watch::kData, "w"),
          part("g" + std::string(3000, 'a'), true),
          talk(Watch::kBeat, beat),
          part("bcd", false),
          talk(Watch::kFinish, ""),
          talk(Watch::kFault, BytesOf(fault)),
          talk(Watch::kStop, BytesOf(fault)),
          talk(Watch::kWords, beat + BytesOf(fault)),
          talk(Watch::kEnd, ""),
          talk(Watch::kFinished, "")};
}

std::string HelloBytes(Purpose purpose, int from, int size) {
  return ByteWriter()
      .Put(std::array<char, 8>{'C', 'F', 'M', 'E', 'E', 'T', '\r', '\n'})
      .Put(uint32_t{4})
      .Put(purpose)
      .Put(int32_t{from})
      .Put(int32_t{size})
      .Put(Sha256(std::string("a job")))
      .Put(Digest{})
      .Take();
}
constexpr size_t kHello = 88, kAnswer = 40, kProofBytes = 32;
/// Stands for the HMAC of all that was said.
const std::string kProof = "proof";
std::string ProofBytes(char side, const std::string& secret, const std::string& said) {
  const Digest proof = HmacSha256(secret, side + said);
  return {reinterpret_cast<const char*>(proof.data()), proof.size()};
}
std::string ReadText(Socket& stream, size_t bytes, Milliseconds patience) {
  std::string text(bytes, ' ');
  stream.ReadAll(std::as_writable_bytes(std::span(text)), Clock::now() + patience);
  return text;
}
std::string WordBytes(Word word, const std::string& text) {
  return ByteWriter().Put(word).Put(static_cast<uint32_t>(text.size())).Take() + text;
}

/// Time limit for the meeting of a liar; honest peers get enough.
constexpr Milliseconds kLiar{100}, kHonest{100'000};

MeetingPoint PointOf(int rank, const std::string& secret, Milliseconds patience) {
  MeetingPoint point;
  point.rank = rank;
  point.size = 2;
  point.address = {"127.0.0.1", 0};
  point.secret = secret;
  point.job = "a job";
  point.timeout = patience;
  return point;
}

/// Result of the host's meeting with one peer that follows the script.
std::string HostSays(const Script& script, const std::string& secret, Milliseconds patience) {
  MeetingPoint point = PointOf(0, secret, patience);
  std::promise<Address> listens;
  point.ready = [&](const Address& at) { listens.set_value(at); };
  std::jthread client([&] {
    try {
      const Address at = listens.get_future().get();
      Socket stream(Connect(at, Soon()));
      std::string said;
      for (const std::string& bytes : script) {
        Write(stream, bytes == kProof ? ProofBytes('c', secret, said) : bytes);
        if (said.empty()) said = bytes + ReadText(stream, kAnswer, patience);
      }
      ReadText(stream, kProofBytes, patience);
      for (int heard = 0; heard < 2; ++heard) ReceiveWord(&stream, Clock::now() + patience);
      stream.EndSending();
    } catch (const Error&) {  // it has had enough
    }
  });
  return Failure([&] { Meet(point); });
}

/// How a client's meeting ends whose host writes the script.
std::string ClientSays(const Script& script, const std::string& secret, Milliseconds patience) {
  MeetingPoint point = PointOf(1, secret, patience);
  const Socket listener = Listen({"127.0.0.1", 0});
  point.address = LocalAddress(listener);
  std::jthread host([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      try {
        if (!AwaitReady(listener, false, Clock::now() + Milliseconds(5))) continue;
        Socket stream(Accept(listener));
        std::string said = ReadText(stream, kHello, patience);
        for (const std::string& bytes : script) {
          Write(stream, bytes == kProof ? ProofBytes('a', secret, said) : bytes);
          if (said.size() == kHello) {
            said += bytes;
            ReadText(stream, kProofBytes, patience);
          }
        }
        stream.EndSending();
        std::byte rest[64];
        while (AwaitReady(stream, false, Clock::now() + Milliseconds(300))) {
          stream.Read(rest);
        }
      } catch (const Error&) {  // it has had enough
      }
    }
  });
  return Failure([&] { Meet(point); });
}

TEST_SUITE("unit") {
  TEST_CASE("lying peer: what the watch says") {
    Control::Options options;
    options.bound = Milliseconds(60);
    options.timeout = Milliseconds(5000);
    const Script valid = TalkScript();
    Tell(Lies(150), 16, [&](int i) {
      Random random(static_cast<uint64_t>(i));
      const int victim = i % 3;
      std::vector<int> others = {0, 1, 2};
      others.erase(others.begin() + victim);
      WatchedJob job(3, options, others);
      const int liar = victim == 0 ? others[random() % 2] : 0;
      const Script script = Mutated(valid, random);
      const int way = static_cast<int>(random() % 4);
      bool finished = false;
      job.Start(victim, [&](int, Control& control, Progress&) {
        if (way == 0) control.Barrier();
        if (way == 1) control.Gather("mine");
        if (way == 2) control.Broadcast("rank 0's");
        if (way == 3) {
          control.Finish();
          finished = true;
          return;
        }
        WaitForStop(control);
      });
      WriteAll(job.membership(liar).links[static_cast<size_t>(victim)], script);
      for (const int other : others) job.membership(other).links.clear();
      job.Join();
      const size_t reports = job.reports().size();
      if ((!finished && job.end(victim).code < 1) || reports > 1) FAIL_CHECK(i);
    });
  }

  TEST_CASE("lying peer: a client of the meeting, and its host") {
    const Script client = {HelloBytes(Purpose::kMeet, 1, 2), kProof};
    const Script host = {"CFMEET\r\n" + std::string(kAnswer - 8, 'n'), kProof,
                         WordBytes(Word::kWelcome, ""), WordBytes(Word::kGo, "")};
    for (const std::string& secret : {std::string(), kSecret}) {
      CHECK(HostSays(client, secret, kHonest) == "accepted");
      CHECK(ClientSays(host, secret, kHonest) == "accepted");
    }
    Script other = host;
    other.insert(other.begin() + 3, WordBytes(Word::kFailed, "no\x1b[1m"));
    CHECK(ClientSays(other, "", kHonest) == "no\\u001b[1m");
    other[3] = WordBytes(Word::kStatus, "step 1");
    std::atomic<int> accepted = 0;
    Tell(Lies(100), 32, [&](int i) {
      Random random(static_cast<uint64_t>(i));
      const std::string secret = i % 4 == 0 ? kSecret : "";
      const std::string first = HostSays(Mutated(client, random), secret, kLiar);
      const std::string second =
          ClientSays(Mutated(i % 8 == 1 ? other : host, random), secret, kLiar);
      for (const std::string& end : {first, second}) {
        if (end == "accepted") ++accepted;
        if (end.empty() || end.size() > 4000 || Contains(end, "internal error")) {
          FAIL_CHECK(end);
        }
      }
    });
    CHECK(accepted < Lies(100));
  }

  TEST_CASE("lying peer: what main threads tell each other") {
    const Plan plan = TwoRankPlan();
    const std::vector<Fact> facts = {{"plan", "abc", "plan.json"}, {"seed", "7", "7"}};
    DeviceStep step;
    step.losses = {{0, 1.5f}, {1, 2.5f}};
    step.spans.resize(plan.programs[1].size());
    const std::map<std::string, Digest> digests = {{"stage-0", Sha256(std::string("a"))},
                                                   {"stage-1", Sha256(std::string("b"))}};
    const std::string texts[] = {WriteFacts(facts), WriteDeviceStep(step),
                                 ByteWriter().PutByName(digests).Take(), WriteRankPlan(plan, 1)};
    CHECK(ReadFacts(texts[0]) == facts);
    CHECK(ReadDeviceStep(texts[1]).losses == step.losses);
    CHECK(ByteReader(texts[2], "digests are").TakeByName<Digest>() == digests);
    CHECK(ReadRankPlan(texts[3], "it").plan.programs[1] == plan.programs[1]);
    int refused = 0;
    Random random(1);
    for (int i = 0; i < Lies(1000); ++i) {
      for (size_t kind = 0; kind < 4; ++kind) {
        const Script lie = Mutated({texts[kind]}, random);
        std::string bytes;
        for (const std::string& one : lie) bytes += one;
        const std::string end = Failure([&] {
          if (kind == 0) {
            const std::vector<std::vector<Fact>> both = {facts, ReadFacts(bytes)};
            Disagreement(both, [](int p) { return std::to_string(p); });
          }
          if (kind == 1) {
            const DeviceStep steps[] = {step, ReadDeviceStep(bytes)};
            JoinDevices(plan, steps, 0);
          }
          if (kind == 2) ByteReader(bytes, "digests are").TakeByName<Digest>();
          if (kind == 3) ReadRankPlan(bytes, "it");
        });
        if (end != "accepted") ++refused;
        if (end.empty() || Contains(end, "internal error")) FAIL_CHECK(end);
      }
    }
    CHECK(refused > Lies(1000));
  }

  TEST_CASE("lying peer: the spans of another plan") {
    const Plan plan = TwoRankPlan();
    const RankOrder order(RankOrder::kDefault, plan);
    WatchedJob job(2);
    job.Run([&](int rank, Control& control, Progress&) {
      DeviceStep step;
      step.spans.resize(plan.programs[static_cast<size_t>(rank)].size() + (rank == 1 ? 1 : 0));
      GatherSteps(plan, order, control, step);
      WaitForStop(control);
    });
    CHECK(job.end(0).error == "the record of a step is another plan's");
    CHECK(job.end(1).aborted);
  }
}

}  // namespace
}  // namespace contraflow::lying_peer_test
