#include "tests/runtime/transport/mpi_wire_cases.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "compiler/plan/error.h"
#include "runtime/transport/wire.h"

namespace contraflow {
namespace {

constexpr std::array kChannels = {Wire::Channel::kMessages, Wire::Channel::kSums,
                                  Wire::Channel::kExperts};

Wire::Status Await(Wire* wire, int ticket) {
  const Clock::time_point deadline = Clock::now() + kLimit;
  while (true) {
    const Wire::Status status = wire->Test(ticket);
    if (status.done) return status;
    EXPECT(Clock::now() < deadline);
    wire->Pause();
  }
}

/// A message that tells where it belongs.
struct Sample {
  Label label;
  std::vector<std::byte> bytes;
};

Sample MakeSample(int from, int to, size_t channel, int number, size_t size) {
  std::seed_seq seeds = {from, to, static_cast<int>(channel), number};
  std::mt19937_64 random(seeds);
  Sample message;
  message.bytes.resize(size);
  for (size_t i = 0; i < size; i += sizeof(uint64_t)) {
    const uint64_t word = random();
    std::memcpy(&message.bytes[i], &word, std::min(sizeof word, size - i));
  }
  message.label.instruction = Component(Op::DISPATCH_F, number, from, to);
  message.label.part = static_cast<int32_t>(random() >> 32);
  message.label.bytes = size;
  return message;
}

void RequireEqual(const Sample& expected, const Wire::Status& status,
                  const std::vector<std::byte>& bytes) {
  const Label& label = status.label;
  EXPECT(label.instruction.op == expected.label.instruction.op);
  EXPECT(label.instruction.stage == expected.label.instruction.stage);
  EXPECT(label.instruction.layer == expected.label.instruction.layer);
  EXPECT(label.instruction.microbatch == expected.label.instruction.microbatch);
  EXPECT(label.part == expected.label.part);
  EXPECT(label.bytes == expected.label.bytes);
  EXPECT(bytes == expected.bytes);
}

/// Every pair of processes, both ways at once, on all channels: random sizes, and sends and
/// receives begun in an order that differs from process to process but for that on each edge.
void Cross(Wire* wire, std::span<const size_t> sizes, int count, bool rendezvous, unsigned seed) {
  struct Edge {
    int peer = 0;
    size_t channel = 0;
    bool sends = false;
    int begun = 0;
  };
  struct UnderWay {
    int ticket = 0;
    bool sends = false;
    Sample message;                // what is sent, or must come
    std::vector<std::byte> bytes;  // what has come
  };
  std::vector<Edge> edges;
  for (int peer = 0; peer < wire->processes(); ++peer) {
    if (peer == process) continue;
    for (size_t channel = 0; channel < kChannels.size(); ++channel) {
      edges.push_back({peer, channel, true});
      edges.push_back({peer, channel, false});
    }
  }
  std::mt19937 order(seed + static_cast<unsigned>(process));
  std::vector<std::unique_ptr<UnderWay>> under_way;
  while (!edges.empty()) {
    const size_t place = order() % edges.size();
    Edge& edge = edges[place];
    const int number = edge.begun++;
    const int from = edge.sends ? process : edge.peer, to = edge.sends ? edge.peer : process;
    std::seed_seq seeds = {from, to, static_cast<int>(edge.channel), number,
                           static_cast<int>(seed)};
    const size_t size = sizes[std::mt19937(seeds)() % sizes.size()];
    auto one = std::make_unique<UnderWay>();
    one->sends = edge.sends;
    one->message = MakeSample(from, to, edge.channel, number, size);
    if (edge.sends) {
      one->ticket = wire->Send(kChannels[edge.channel], to, one->message.label, one->message.bytes,
                               rendezvous);
    } else {
      one->bytes.resize(size);
      one->ticket = wire->Receive(kChannels[edge.channel], from, one->bytes);
    }
    under_way.push_back(std::move(one));
    if (edge.begun == count) edges.erase(edges.begin() + static_cast<std::ptrdiff_t>(place));
    if (order() % 4 == 0) wire->Poll();
  }
  // Asked for in any order, too.
  std::shuffle(under_way.begin(), under_way.end(), order);
  for (const auto& one : under_way) {
    const Clock::time_point asked = Clock::now();
    const Wire::Status status = Await(wire, one->ticket);
    if (one->sends) continue;
    RequireEqual(one->message, status, one->bytes);
    EXPECT(status.begun <= Clock::now() && status.begun > asked - kLimit);
  }
}

/// Whoever calls it goes on when all have come.
void Barrier(Wire* wire) {
  const std::array<size_t, 1> empty = {0};
  Cross(wire, empty, 1, true, 0);
}

/// A send by rendezvous is not done before its receive has begun, however small it is.
void Rendezvous(Wire* wire, size_t size) {
  const int partner = process ^ 1;
  if (partner >= wire->processes()) return;
  const bool sends = process < partner;
  const Sample message = MakeSample(process & ~1, process | 1, 0, 1, size);
  const Sample go = MakeSample(process & ~1, process | 1, 1, 2, 8);
  std::vector<std::byte> bytes(sends ? 0 : size), go_bytes(sends ? 0 : 8);
  if (sends) {
    const int ticket = wire->Send(kChannels[0], partner, message.label, message.bytes, true);
    for (const Clock::time_point end = Clock::now() + std::chrono::milliseconds(30);
         Clock::now() < end;) {
      EXPECT(!wire->Test(ticket).done);
      wire->Pause();
    }
    Await(wire, wire->Send(kChannels[1], partner, go.label, go.bytes, false));
    Await(wire, ticket);
  } else {
    Await(wire, wire->Receive(kChannels[1], partner, go_bytes));
    RequireEqual(message, Await(wire, wire->Receive(kChannels[0], partner, bytes)), bytes);
  }
}

/// Once aborted, by another thread, a wait ends, and so does everything from then on.
void Abort(Wire* wire) {
  std::array<std::byte, 16> bytes{};
  const int ticket = wire->Receive(kChannels[0], (process + 1) % wire->processes(), bytes);
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    wire->Abort();
  });
  bool aborted = false;
  try {
    Await(wire, ticket);
  } catch (const Aborted&) {
    aborted = true;
  }
  other.join();
  EXPECT(aborted);
  const auto throws = [&](const auto& call) {
    try {
      call();
    } catch (const Aborted&) {
      return true;
    }
    return false;
  };
  EXPECT(throws([&] { wire->Test(ticket); }));
  EXPECT(throws([&] { wire->Poll(); }));
  EXPECT(throws([&] { wire->Pause(); }));
  EXPECT(throws([&] { wire->Send(kChannels[1], 0, Label{}, {}, false); }));
  EXPECT(throws([&] { wire->Receive(kChannels[1], 0, {}); }));
}

}  // namespace

void TestWire(Mpi* mpi) {
  const std::unique_ptr<Wire> wire = mpi->MakeWire();
  EXPECT(wire->self() == process);
  const std::array<size_t, 9> small = {0, 1, 7, 31, 32, 33, 64, 1000, 4097};
  Cross(wire.get(), small, 40, false, 1);
  Cross(wire.get(), small, 20, true, 2);
  const std::array<size_t, 4> large = {0, 65'537, 300'000, 1};
  Cross(wire.get(), large, 3, false, 3);
  Barrier(wire.get());
  for (const size_t size : {size_t{0}, size_t{1}, size_t{100'000}}) Rendezvous(wire.get(), size);

  // 10 MB around the ring.
  const int n = wire->processes(), next = (process + 1) % n, last = (process + n - 1) % n;
  const Sample out = MakeSample(process, next, 2, 0, 10'000'000);
  std::vector<std::byte> bytes(out.bytes.size());
  const int send = wire->Send(kChannels[2], next, out.label, out.bytes, false);
  const int receive = wire->Receive(kChannels[2], last, bytes);
  RequireEqual(MakeSample(last, process, 2, 0, bytes.size()), Await(wire.get(), receive), bytes);
  Await(wire.get(), send);
  Barrier(wire.get());

  // In pieces, as more bytes than an int can count are.
  const std::unique_ptr<Wire> pieces = mpi->MakeWire(1000);
  const std::array<size_t, 6> sizes = {0, 999, 1000, 1001, 2000, 12'345};
  Cross(pieces.get(), sizes, 20, false, 4);
  Cross(pieces.get(), sizes, 20, true, 5);

  // The last, as messages of another wire would match the receive that it leaves.
  Barrier(wire.get());
  Abort(mpi->MakeWire().get());
}

/// Messages of another size than their receives expect: each on an edge of its own, as nothing that
/// follows there can be trusted.
void TestSizes(Mpi* mpi) {
  struct Case {
    size_t sent, expected;
  };
  constexpr std::array<Case, 6> cases = {
      {{100, 60}, {60, 100}, {100, 0}, {0, 100}, {3'000'000, 2'000'000}, {2'000'000, 3'000'000}}};
  const std::unique_ptr<Wire> wire = mpi->MakeWire();
  Barrier(wire.get());
  if (process < 2) {
    const int partner = 1 - process;
    constexpr size_t kGuard = 4096;
    std::array<Sample, cases.size()> sent;
    std::array<std::vector<std::byte>, cases.size()> received;
    std::array<int, cases.size()> tickets;
    for (size_t c = 0; c < cases.size(); ++c) {
      const Wire::Channel channel = kChannels[c / 2];
      if (c % 2 == static_cast<size_t>(process)) {
        sent[c] = MakeSample(process, partner, c, 5, cases[c].sent);
        wire->Send(channel, partner, sent[c].label, sent[c].bytes, false);
      } else {
        received[c].resize(cases[c].expected + kGuard, std::byte{0x5a});
        tickets[c] =
            wire->Receive(channel, partner, std::span(received[c]).first(cases[c].expected));
      }
    }
    for (size_t c = 0; c < cases.size(); ++c) {
      if (c % 2 == static_cast<size_t>(process)) continue;
      const Label label = Await(wire.get(), tickets[c]).label;
      EXPECT(label.bytes == cases[c].sent);
      EXPECT(label.instruction.stage == 5);
      const std::span<const std::byte> guard = std::span(received[c]).last(kGuard);
      EXPECT(std::count(guard.begin(), guard.end(), std::byte{0x5a}) == kGuard);
    }
    // What follows on such an edge is refused, and the wire goes down with it in any state: the
    // receives expect more than comes, so some are left without, one of them half way.
    constexpr int kMore = 21;
    const Sample follows = MakeSample(process, partner, 0, 6, 0);
    for (int i = 0; i < kMore; ++i) {
      wire->Send(kChannels[0], partner, follows.label, {}, false);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    std::array<std::array<std::byte, 50>, kMore> bytes;
    int ticket = -1;
    for (auto& more : bytes) {
      const int begun = wire->Receive(kChannels[0], partner, more);
      if (ticket < 0) ticket = begun;
    }
    std::string error;
    try {
      Await(wire.get(), ticket);
    } catch (const Error& e) {
      error = e.what();
    }
    EXPECT(error == "messages of process " + std::to_string(partner) +
                        " are out of step since one of another size than was expected");
  }
}

}  // namespace contraflow
