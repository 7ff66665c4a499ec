// Frames as the other end of a TCP connection may send them: in pieces, too many, or nonsense.

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "compiler/plan/error.h"
#include "runtime/transport/tcp_wire.h"
#include "tests/runtime/transport/tcp_wires.h"
#include "tests/support/failure.h"

namespace contraflow::tcp_wire_frame_test {
namespace {

/// A wire and the bare other end of its only connection.
struct Bare {
  Bare() {
    auto mesh = StreamMesh(2);
    other = std::move(mesh[1][0]);
    wire = std::make_unique<LinkedWire>(0, std::move(mesh[0]));
  }

  void Write(const Frame& frame) { WriteBytes(&frame, sizeof frame); }
  void WriteBytes(const void* bytes, size_t size) {
    try {
      other.WriteAll({static_cast<const std::byte*>(bytes), size}, Soon());
    } catch (const Stream::Closed&) {  // it has had enough
    }
  }
  Frame Read() {
    Frame frame;
    other.ReadAll(std::as_writable_bytes(std::span(&frame, 1)), Soon());
    return frame;
  }

  Stream other;
  std::unique_ptr<LinkedWire> wire;
};

/// What a wire says after the other end has sent these frames, with a send (ticket 0) and a receive
/// of 8 bytes (ticket 1) under way.
std::string Says(const std::vector<Frame>& frames) {
  Bytes out(8), in(8);
  Bare bare;
  CHECK(bare.wire->Send(Channel::kMessages, 1, LabelOf(0, 8), out) == 0);
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

TEST_SUITE("unit") {
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
    op.op = kOpCount;
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
    for (const uint64_t bytes : {uint64_t{0}, uint64_t{9}, uint64_t{kMaxPiece}}) {
      CHECK(Says({FrameOf(kLabel, 5, 0, 8), FrameOf(kBytes, 0, 1, bytes)}) == other);
    }
    CHECK(Says({FrameOf(kLabel, 5, 0, 8), FrameOf(kBytes, 0, 1, ~uint64_t{0})}) ==
          lost + "it sent a piece that is too long");
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
    bare.wire->Send(Channel::kMessages, 1, LabelOf(0, out.size()), out);
    bare.Write(FrameOf(Frame::kReady, 0, 0, 0));
    std::this_thread::sleep_for(Milliseconds(20));
    const Clock::time_point start = Clock::now();
    bare.wire.reset();
    CHECK(Clock::now() - start < Milliseconds(60'000));
  }
}

}  // namespace
}  // namespace contraflow::tcp_wire_frame_test
