#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "compiler/plan/error.h"
#include "runtime/launch/socket.h"

namespace contraflow {

/// One end of a connection between two processes of a job. Used by one thread at a time.
class Stream {
 public:
  /// The connection has ended, at the other end or on the way.
  struct Closed : Error {
    using Error::Error;
  };

  Stream() = default;
  /// The socket is connected.
  explicit Stream(Socket socket) : socket_(std::move(socket)) {}

  explicit operator bool() const { return static_cast<bool>(socket_); }
  const Socket& socket() const { return socket_; }
  int fd() const { return socket_.fd(); }
  /// Ends the connection at both sides; keeps the descriptor.
  void Shutdown() { socket_.Shutdown(); }
  /// Says that nothing more is sent; the other side reads its end after the last byte.
  void EndSending();

  /// Reads bytes that are there, at most `room`, which is not empty. Returns their number, 0 if
  /// there are none now. Throws Closed.
  size_t Read(std::span<std::byte> room);
  /// Writes as many bytes as the connection has room for. Returns their number. Throws Closed.
  size_t Write(std::span<const std::byte> bytes);

  /// Read and write all of them. Throw Closed, or Error "timed out".
  void ReadAll(std::span<std::byte> room, Clock::time_point deadline);
  void WriteAll(std::span<const std::byte> bytes, Clock::time_point deadline);

 private:
  Socket socket_;
};

}  // namespace contraflow
