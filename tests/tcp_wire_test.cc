// The wire over TCP connections: what arrives, in which order, and how it ends where a process is
// lost, speaks nonsense or gives up. Here the processes are threads, joined by socket pairs.

#include "runtime/tcp_wire.h"

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "compiler/error.h"
#include "runtime/tcp_link.h"
#include "tests/failure.h"
#include "tests/tcp_network.h"

namespace contraflow {
namespace {

using Channel = Wire::Channel;
using Bytes = std::vector<std::byte>;
using Milliseconds = std::chrono::milliseconds;

/// The operations there are; a frame with this one or a later one has none of them.
constexpr uint8_t kOps = 0
#define CF_OP(name, operands, work) +1
    CF_OPS(CF_OP)
#undef CF_OP
    ;
constexpr Milliseconds kNoGrace{0};

/// As SocketMesh, of TCP connections on this machine.
std::vector<std::vector<Socket>> LoopbackMesh(int processes) {
  auto mesh = SocketMesh(processes);
  const Clock::time_point deadline = Clock::now() + std::chrono::seconds(30);
  const Socket listener = Listen({"127.0.0.1", 0});
  for (size_t a = 0; a < mesh.size(); ++a) {
    for (size_t b = a + 1; b < mesh.size(); ++b) {
      mesh[a][b] = Connect(LocalAddress(listener), deadline);
      mesh[b][a] = Socket(accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC));
    }
  }
  return mesh;
}

std::vector<std::unique_ptr<TcpWire>> Wires(int processes, bool loopback = false,
                                            Milliseconds grace = kNoGrace) {
  std::vector<std::unique_ptr<TcpWire>> wires;
  auto mesh = loopback ? LoopbackMesh(processes) : SocketMesh(processes);
  for (int p = 0; p < processes; ++p) {
    wires.push_back(
        std::make_unique<TcpWire>(p, std::move(mesh[static_cast<size_t>(p)]), nullptr, grace));
  }
  return wires;
}

Label LabelOf(int microbatch, size_t bytes) { return {Chunk(Op::SEND_F, 0, microbatch), 0, bytes}; }

Wire::Status Await(Wire& wire, int ticket) {
  for (;;) {
    const Wire::Status status = wire.Test(ticket);
    if (status.done) return status;
    wire.Pause();
  }
}

/// Bytes that tell which message they are of.
Bytes Pattern(size_t size, uint64_t seed) {
  Bytes bytes(size);
  for (size_t i = 0; i < size; ++i) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    bytes[i] = static_cast<std::byte>(seed >> 56);
  }
  return bytes;
}

/// A wire and the bare other end of its only connection.
struct Bare {
  Bare() {
    auto mesh = SocketMesh(2);
    other = std::move(mesh[1][0]);
    wire = std::make_unique<TcpWire>(0, std::move(mesh[0]), nullptr, kNoGrace);
  }

  void Write(const Frame& frame) { WriteBytes(&frame, sizeof frame); }
  void WriteBytes(const void* bytes, size_t size) {
    const char* at = static_cast<const char*>(bytes);
    while (size > 0) {
      const ssize_t count = send(other.fd(), at, size, MSG_NOSIGNAL);
      if (count < 0) return;
      at += count;
      size -= static_cast<size_t>(count);
    }
  }
  Frame Read() {
    Frame frame;
    REQUIRE(recv(other.fd(), &frame, sizeof frame, MSG_WAITALL) == sizeof frame);
    return frame;
  }

  Socket other;
  std::unique_ptr<TcpWire> wire;
};

/// What a wire says after the other end has sent these frames, with a send (ticket 0) and a receive
/// of 8 bytes (ticket 1) under way.
std::string Says(const std::vector<Frame>& frames) {
  Bytes out(8), in(8);
  Bare bare;
  CHECK(bare.wire->Send(Channel::kMessages, 1, LabelOf(0, 8), out, true) == 0);
  CHECK(bare.wire->Receive(Channel::kMessages, 1, in) == 1);
  for (const Frame& frame : frames) bare.Write(frame);
  return Failure([&] { Await(*bare.wire, 1); });
}

Frame FrameOf(Frame::Kind kind, int sender, int receiver, uint64_t bytes) {
  Frame frame;
  frame.kind = kind;
  frame.op = static_cast<uint8_t>(Op::SEND_F);
  frame.sender = sender;
  frame.receiver = receiver;
  frame.bytes = bytes;
  return frame;
}

size_t OpenFiles() {
  size_t count = 0;
  for (const auto& file : std::filesystem::directory_iterator("/proc/self/fd")) {
    count += file.exists() ? 1 : 0;
  }
  return count;
}

TEST_SUITE("unit") {
  TEST_CASE("tcp wire: a message of every size arrives with its label") {
    auto wires = Wires(2, true);
    for (const size_t size : {size_t{0}, size_t{1}, size_t{39}, size_t{1960}, size_t{2000},
                              size_t{262144}, size_t{262145}, size_t{3000000}}) {
      CAPTURE(size);
      const Bytes sent = Pattern(size, size);
      Bytes got(size);
      Label label = {Component(Op::COMBINE_B, 3, 4, 5), 6, size};
      const Clock::time_point before = Clock::now();
      const int send = wires[0]->Send(Channel::kExperts, 1, label, sent, false);
      const int receive = wires[1]->Receive(Channel::kExperts, 0, got);
      const Wire::Status status = Await(*wires[1], receive);
      CHECK(status.label.instruction.op == Op::COMBINE_B);
      CHECK(status.label.instruction.stage == 3);
      CHECK(status.label.instruction.layer == 4);
      CHECK(status.label.instruction.microbatch == 5);
      CHECK(status.label.part == 6);
      CHECK(status.label.bytes == size);
      CHECK(status.begun >= before);
      CHECK(status.begun <= Clock::now());
      Await(*wires[0], send);
      CHECK(got == sent);
    }
  }

  TEST_CASE("tcp wire: messages of a channel are taken in order and channels are apart") {
    constexpr int kMessages = 150;
    for (const uint32_t seed : {1u, 2u, 3u}) {
      CAPTURE(seed);
      auto wires = Wires(3);
      // Every process sends everybody messages of random sizes on random channels, each with its
      // number on the channel, and receives them in an order of its own.
      const auto size_of = [&](int from, int to, int channel, int number) {
        std::seed_seq key{seed, static_cast<uint32_t>(from), static_cast<uint32_t>(to),
                          static_cast<uint32_t>(channel), static_cast<uint32_t>(number)};
        std::mt19937 random(key);
        return random() % 8 == 0 ? size_t{random() % 400000} : size_t{random() % 100};
      };
      std::atomic<int> right = 0;
      std::vector<std::jthread> threads;
      for (int self = 0; self < 3; ++self) {
        threads.emplace_back([&, self] {
          Wire& wire = *wires[static_cast<size_t>(self)];
          std::mt19937 random(seed * 10 + static_cast<uint32_t>(self));
          int sent[3][3] = {}, begun[3][3] = {};  // [process][channel]
          struct Open {
            int ticket, process, channel, number;
            bool receive;
            Bytes bytes;
          };
          std::vector<std::unique_ptr<Open>> open;
          int left = 2 * 2 * kMessages;
          while (left > 0 || !open.empty()) {
            const auto process = static_cast<int>(random() % 3);
            const auto channel = static_cast<int>(random() % 3);
            const bool receive = random() % 2 == 0;
            int& number = (receive ? begun : sent)[process][channel];
            if (process != self && left > 0 && number < kMessages / 3) {
              auto one = std::make_unique<Open>(Open{-1, process, channel, number++, receive, {}});
              const size_t size = receive ? size_of(process, self, channel, one->number)
                                          : size_of(self, process, channel, one->number);
              one->bytes = receive ? Bytes(size) : Pattern(size, size + 1);
              one->ticket = receive
                                ? wire.Receive(static_cast<Channel>(channel), process, one->bytes)
                                : wire.Send(static_cast<Channel>(channel), process,
                                            LabelOf(one->number, size), one->bytes, false);
              open.push_back(std::move(one));
              --left;
            }
            const size_t before = open.size();
            std::erase_if(open, [&](const auto& one) {
              const Wire::Status status = wire.Test(one->ticket);
              if (!status.done) return false;
              if (one->receive && status.label.instruction.microbatch == one->number &&
                  one->bytes == Pattern(one->bytes.size(), one->bytes.size() + 1)) {
                ++right;
              }
              return true;
            });
            if (left == 0 && open.size() == before) wire.Pause();
          }
        });
      }
      threads.clear();
      CHECK(right == 3 * 2 * kMessages);
    }
  }

  TEST_CASE("tcp wire: a send is done only once its receive has begun") {
    auto wires = Wires(2);
    for (const size_t size : {size_t{0}, size_t{4}}) {
      Bytes sent(size), got(size);
      const int send = wires[0]->Send(Channel::kSums, 1, LabelOf(0, size), sent, false);
      std::this_thread::sleep_for(Milliseconds(10));
      wires[1]->Poll();
      CHECK_FALSE(wires[0]->Test(send).done);
      const int receive = wires[1]->Receive(Channel::kSums, 0, got);
      Await(*wires[0], send);
      Await(*wires[1], receive);
    }
  }

  TEST_CASE("tcp wire: a large message does not hold up those behind it") {
    auto wires = Wires(2);
    const Bytes large = Pattern(size_t{32} << 20, 1), small = Pattern(100, 2);
    Bytes got_large(large.size()), got_small(small.size());
    // Nobody takes the first for now, or it is long on its way.
    for (const bool taken : {false, true}) {
      CAPTURE(taken);
      const int a = wires[0]->Send(Channel::kMessages, 1, LabelOf(0, large.size()), large, false);
      int in = -1;
      if (taken) in = wires[1]->Receive(Channel::kMessages, 0, got_large);
      const int b = wires[0]->Send(Channel::kExperts, 1, LabelOf(1, 100), small, false);
      Await(*wires[1], wires[1]->Receive(Channel::kExperts, 0, got_small));
      Await(*wires[0], b);
      CHECK(got_small == small);
      if (!taken) in = wires[1]->Receive(Channel::kMessages, 0, got_large);
      Await(*wires[1], in);
      Await(*wires[0], a);
      CHECK(got_large == large);
      std::fill(got_large.begin(), got_large.end(), std::byte{0});
      std::fill(got_small.begin(), got_small.end(), std::byte{0});
    }
  }

  TEST_CASE("tcp wire: a message of another size is refused and the next one is not") {
    auto wires = Wires(2);
    Bytes sent(8, std::byte{1}), got(4);
    for (const bool receive_first : {false, true}) {
      int send = -1, receive = -1;
      const auto begin_send = [&] {
        send = wires[0]->Send(Channel::kMessages, 1, LabelOf(1, 8), sent, true);
      };
      if (!receive_first) begin_send();
      receive = wires[1]->Receive(Channel::kMessages, 0, got);
      if (receive_first) begin_send();
      const Wire::Status status = Await(*wires[1], receive);
      CHECK(status.label.bytes == 8);
      CHECK(status.label.instruction.microbatch == 1);
      CHECK(got == Bytes(4));
      Await(*wires[0], send);
    }
    Bytes right(8);
    const int send = wires[0]->Send(Channel::kMessages, 1, LabelOf(2, 8), sent, true);
    Await(*wires[1], wires[1]->Receive(Channel::kMessages, 0, right));
    Await(*wires[0], send);
    CHECK(right == sent);
  }

  TEST_CASE("tcp wire: a process that ends early has left everything behind") {
    // It ends at once after its last message; the others go on with each other.
    for (int round = 0; round < 20; ++round) {
      auto wires = Wires(3, round % 2 == 0);
      const Bytes sent = Pattern(600000, 5);
      Bytes got_a(sent.size()), got_b(sent.size()), got_late(sent.size());
      std::jthread first([&] {
        const int a = wires[0]->Send(Channel::kMessages, 1, LabelOf(0, sent.size()), sent, false);
        const int b = wires[0]->Send(Channel::kMessages, 2, LabelOf(0, sent.size()), sent, false);
        Await(*wires[0], a);
        Await(*wires[0], b);
        wires[0].reset();
      });
      std::jthread second([&] {
        Await(*wires[1], wires[1]->Receive(Channel::kMessages, 0, got_a));
        Await(*wires[1],
              wires[1]->Send(Channel::kMessages, 2, LabelOf(1, sent.size()), sent, true));
        wires[1]->Poll();
      });
      Await(*wires[2], wires[2]->Receive(Channel::kMessages, 0, got_b));
      first.join();
      Await(*wires[2], wires[2]->Receive(Channel::kMessages, 1, got_late));
      wires[2]->Poll();
      wires[2]->Pause();
      second.join();
      CHECK(got_a == sent);
      CHECK(got_b == sent);
      CHECK(got_late == sent);
    }
  }

  TEST_CASE("tcp wire: a refusal is handed over before the end") {
    auto wires = Wires(2);
    Bytes sent(8), got(4);
    const int send = wires[0]->Send(Channel::kMessages, 1, LabelOf(0, 8), sent, true);
    Await(*wires[1], wires[1]->Receive(Channel::kMessages, 0, got));
    wires[1].reset();
    Await(*wires[0], send);
  }

  TEST_CASE("tcp wire: a lost process ends what needs it and nothing else") {
    auto wires = Wires(3);
    Bytes from_lost(4), to_lost(4), from_other(4), other(4, std::byte{7});
    const int receive = wires[0]->Receive(Channel::kMessages, 1, from_lost);
    const int send = wires[0]->Send(Channel::kSums, 1, LabelOf(0, 4), to_lost, false);
    const int good = wires[0]->Receive(Channel::kMessages, 2, from_other);
    wires[1].reset();
    const std::string lost = "lost the connection to process 1: it was closed at the other end";
    CHECK(Failure([&] { Await(*wires[0], receive); }) == lost);
    CHECK(Failure([&] { wires[0]->Test(send); }) == lost);
    CHECK(Failure([&] { wires[0]->Poll(); }) == lost);
    CHECK(Failure([&] { wires[0]->Pause(); }) == lost);
    const int sent = wires[2]->Send(Channel::kMessages, 0, LabelOf(0, 4), other, false);
    while (!wires[0]->Test(good).done) std::this_thread::yield();
    Await(*wires[2], sent);
    CHECK(from_other == other);
    // Whatever is begun later is as lost.
    Bytes more(4);
    CHECK(Failure([&] {
            wires[0]->Test(wires[0]->Send(Channel::kMessages, 1, LabelOf(0, 4), more, false));
          }) == lost);
  }

  TEST_CASE("tcp wire: who watches has the first word about a lost process") {
    auto wires = Wires(2, false, Milliseconds(200));
    Bytes in(4);
    const int ticket = wires[0]->Receive(Channel::kMessages, 1, in);
    const Clock::time_point start = Clock::now();
    wires[1].reset();
    CHECK(Failure([&] { Await(*wires[0], ticket); }).starts_with("lost the connection"));
    CHECK(Clock::now() - start >= Milliseconds(200));

    auto watched = Wires(2, false, Milliseconds(600'000));
    const int other = watched[0]->Receive(Channel::kMessages, 1, in);
    watched[1].reset();
    std::jthread watch([&] {
      std::this_thread::sleep_for(Milliseconds(10));
      watched[0]->Abort();
    });
    CHECK_THROWS_AS(Await(*watched[0], other), Aborted);
  }

  TEST_CASE("tcp wire: a lost process is called by its name") {
    auto mesh = SocketMesh(2);
    TcpWire wire(
        0, std::move(mesh[0]), [](int p) { return "rank " + std::to_string(p + 10); }, kNoGrace);
    Bytes in(1);
    const int ticket = wire.Receive(Channel::kMessages, 1, in);
    mesh[1][0] = Socket();
    CHECK(Failure([&] { Await(wire, ticket); }) ==
          "lost the connection to rank 11: it was closed at the other end");
  }

  TEST_CASE("tcp wire: abort ends all waiting and leaves the caller's memory alone") {
    auto wires = Wires(2);
    auto sent = std::make_unique<Bytes>(size_t{8} << 20), got = std::make_unique<Bytes>(*sent);
    const int send = wires[0]->Send(Channel::kMessages, 1, LabelOf(0, sent->size()), *sent, false);
    const int receive = wires[1]->Receive(Channel::kMessages, 0, *got);
    Bytes never(1);
    const int waits = wires[0]->Receive(Channel::kSums, 1, never);
    int aborted = 0;
    std::jthread other([&] {
      std::this_thread::sleep_for(Milliseconds(2));
      for (const auto& wire : wires) wire->Abort();
    });
    try {
      Await(*wires[0], waits);
    } catch (const Aborted&) {
      ++aborted;
    }
    other.join();
    // Whether they were done or not.
    sent.reset();
    got.reset();
    for (const auto& call : std::vector<std::function<void()>>{
             [&] { wires[0]->Test(send); }, [&] { wires[1]->Test(receive); },
             [&] { wires[0]->Poll(); }, [&] { wires[1]->Pause(); },
             [&] { wires[0]->Receive(Channel::kSums, 1, never); }}) {
      CHECK_THROWS_AS(call(), Aborted);
      ++aborted;
    }
    CHECK(aborted == 6);
  }

  TEST_CASE("tcp wire: a peer that speaks nonsense is lost and nothing is touched") {
    const std::string lost = "lost the connection to process 1: ";
    using enum Frame::Kind;
    Frame unknown = FrameOf(kLabel, 0, 0, 8);
    unknown.kind = 9;
    CHECK(Says({unknown}) == lost + "it sent a frame of an unknown kind");
    Frame channel = FrameOf(kLabel, 0, 0, 8);
    channel.channel = 3;
    CHECK(Says({channel}) == lost + "it sent a message with an unknown label");
    Frame op = FrameOf(kLabel, 0, 0, 8);
    op.op = kOps;
    CHECK(Says({op}) == lost + "it sent a message with an unknown label");
    Frame layer = FrameOf(kLabel, 0, 0, 8);
    layer.layer = 1 << 15;
    CHECK(Says({layer}) == lost + "it sent a message with an unknown label");
    const std::string answer = lost + "it answered a message that was not sent";
    for (const int ticket : {-1, 1, 2, 1 << 30}) {
      CHECK(Says({FrameOf(kReady, ticket, 0, 0)}) == answer);
      CHECK(Says({FrameOf(kRefuse, ticket, 0, 0)}) == answer);
    }
    CHECK(Says({FrameOf(kReady, 0, 0, 0), FrameOf(kReady, 0, 0, 0)}) == answer);
    for (const int ticket : {-1, 0, 2, 1 << 30}) {
      CHECK(Says({FrameOf(kBytes, 0, ticket, 8)}) == lost + "it sent bytes that nobody receives");
    }
    const std::string other = lost + "it sent other bytes than it announced";
    CHECK(Says({FrameOf(kBytes, 0, 1, 8)}) == other);
    for (const uint64_t bytes : {uint64_t{0}, uint64_t{9}, ~uint64_t{0}}) {
      CHECK(Says({FrameOf(kLabel, 5, 0, 8), FrameOf(kBytes, 0, 1, bytes)}) == other);
    }
    // The same frames as they should be are accepted.
    CHECK(Says({FrameOf(kLabel, 5, 0, 7)}) == "accepted");
  }

  TEST_CASE("tcp wire: frames may come in pieces of any size") {
    Bare bare;
    Bytes in(100);
    const int ticket = bare.wire->Receive(Channel::kMessages, 1, in);
    const Bytes bytes = Pattern(100, 3);
    std::string stream;
    const auto add = [&](const void* from, size_t size) {
      stream.append(static_cast<const char*>(from), size);
    };
    const Frame label = FrameOf(Frame::kLabel, 77, 0, 100);
    add(&label, sizeof label);
    for (const size_t begin : {size_t{0}, size_t{30}}) {
      const Frame chunk = FrameOf(Frame::kBytes, 0, ticket, begin == 0 ? 30 : 70);
      add(&chunk, sizeof chunk);
      add(bytes.data() + begin, static_cast<size_t>(chunk.bytes));
    }
    for (const char c : stream) {
      bare.WriteBytes(&c, 1);
      bare.wire->Poll();
    }
    CHECK(Await(*bare.wire, ticket).label.bytes == 100);
    CHECK(in == bytes);
    const Frame answer = bare.Read();
    CHECK(answer.kind == Frame::kReady);
    CHECK(answer.sender == 77);
    CHECK(answer.receiver == ticket);
  }

  TEST_CASE("tcp wire: random bytes never do more than lose the process") {
    std::mt19937_64 random(11);
    for (int round = 0; round < 300; ++round) {
      Bare bare;
      Bytes in(16), out(16);
      const int receive = bare.wire->Receive(Channel::kMessages, 1, in);
      bare.wire->Send(Channel::kSums, 1, LabelOf(0, 16), out, true);
      for (int f = 0; f < 20; ++f) {
        Frame frame =
            FrameOf(static_cast<Frame::Kind>(random() % 5), static_cast<int>(random() % 4),
                    static_cast<int>(random() % 4), random() % 20);
        frame.channel = static_cast<uint8_t>(random() % 4);
        frame.op = static_cast<uint8_t>(random() % (kOps + 3));
        bare.Write(frame);
        if (frame.kind == Frame::kBytes) {
          const Bytes bytes = Pattern(static_cast<size_t>(frame.bytes), random());
          bare.WriteBytes(bytes.data(), bytes.size());
        }
      }
      bare.other.Shutdown();
      const std::string failure = Failure([&] {
        Await(*bare.wire, receive);
        for (;;) Await(*bare.wire, bare.wire->Receive(Channel::kExperts, 1, in));
      });
      CHECK((failure.starts_with("lost the connection to process 1: ")));
    }
  }

  TEST_CASE("tcp wire: a flood of messages is bounded") {
    Bare bare;
    Bytes in(8);
    const int ticket = bare.wire->Receive(Channel::kSums, 1, in);
    const std::vector<Frame> flood(4096, FrameOf(Frame::kLabel, 0, 0, 8));
    std::jthread other([&] {
      for (int i = 0; i < 65; ++i) {
        bare.WriteBytes(flood.data(), flood.size() * sizeof(Frame));
      }
    });
    CHECK(Failure([&] { Await(*bare.wire, ticket); }) ==
          "lost the connection to process 1: it sent more than 262144 messages that nobody "
          "received yet");
  }

  TEST_CASE("tcp wire: ends within its time although the other side takes nothing") {
    Bare bare;
    const Bytes out(size_t{16} << 20);
    bare.wire->Send(Channel::kMessages, 1, LabelOf(0, out.size()), out, true);
    bare.Write(FrameOf(Frame::kReady, 0, 0, 0));
    std::this_thread::sleep_for(Milliseconds(20));
    const Clock::time_point start = Clock::now();
    bare.wire.reset();
    CHECK(Clock::now() - start < Milliseconds(20'000));
  }

  TEST_CASE("tcp wire: no file stays open") {
    const size_t before = OpenFiles();
    {
      auto wires = Wires(4);
      CHECK(OpenFiles() == before + 4 + 12);
      wires[2].reset();
      wires[1]->Abort();
    }
    CHECK(OpenFiles() == before);
  }
}

}  // namespace
}  // namespace contraflow
