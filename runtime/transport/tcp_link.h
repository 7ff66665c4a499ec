#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "compiler/plan/error.h"
#include "runtime/transport/socket.h"

namespace contraflow {

/// What goes over the connection of two wires; behind a frame of kBytes come so many bytes of a
/// message. Both ends are the same build on the same kind of machine: it goes as it lies in memory.
struct Frame {
  enum Kind : uint8_t {
    kLabel,   ///< a send was begun
    kReady,   ///< its receive was, and takes it
    kRefuse,  ///< its receive expects another number of bytes
    kBytes,   ///< some of the bytes
  };
  uint8_t kind = kLabel, channel = 0, op = 0, unused = 0;
  int32_t sender = 0;    ///< ticket of the send, where it was begun
  int32_t receiver = 0;  ///< ticket of the receive, likewise
  int32_t stage = 0, microbatch = 0, layer = 0, part = 0;
  int32_t unused_too = 0;
  uint64_t bytes = 0;  ///< of the message (kLabel), or behind this frame (kBytes)
};
static_assert(sizeof(Frame) == 40);

/// One connection of a wire: frames, and the bytes of messages between them, in chunks that take
/// turns. Never waits. Used with the wire's mutex held.
class TcpLink {
 public:
  /// The connection ended, at the other side or on the way.
  struct Closed : Error {
    using Error::Error;
  };

  /// Who is told what comes and goes. Throws Error where the other side does what no wire does.
  class User {
   public:
    virtual ~User() = default;

    virtual void OnFrame(const Frame& frame) = 0;
    /// Where the bytes behind a frame of kBytes go: exactly so many as it says.
    virtual std::span<std::byte> Room(const Frame& frame) = 0;
    /// So many bytes have been put there.
    virtual void OnBytes(int receiver, size_t count) = 0;
    /// All bytes of a message are on their way.
    virtual void OnSent(int sender) = 0;
  };

  /// The user must outlive it.
  TcpLink(Socket socket, User& user);

  int fd() const { return socket_.fd(); }
  /// Ends the connection at both sides.
  void Shutdown() { socket_.Shutdown(); }

  void Put(const Frame& frame);
  /// The bytes of a message whose receive is ready; at least one.
  void PutBytes(int sender, int receiver, std::span<const std::byte> bytes);

  /// Whether something is left to be written.
  bool writes() const;
  /// Writes what the connection takes, at most one chunk. Throws Closed.
  void Write();
  /// Reads what is there, at most one chunk. Throws Closed, and what the user throws.
  void Read();

 private:
  /// A message whose bytes are on their way.
  struct Message {
    int sender = 0, receiver = 0;
    std::span<const std::byte> rest;
  };

  void Parse();

  Socket socket_;
  User& user_;
  // What is being written: frames of written_..., and behind them a chunk of the first message.
  std::vector<std::byte> frames_, writing_;
  size_t written_ = 0;
  std::deque<Message> messages_;
  std::span<const std::byte> chunk_;
  // What has been read and not been looked at, and the room for bytes that come next.
  std::vector<std::byte> read_;
  size_t begin_ = 0, end_ = 0;
  std::span<std::byte> room_;
  int receiver_ = 0;
};

}  // namespace contraflow
