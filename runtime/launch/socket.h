#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "compiler/plan/error.h"
#include "runtime/core/transport.h"

namespace contraflow {

/// An open TCP connection, listener, or other file descriptor; closed when destroyed. Connections
/// have TCP_NODELAY set, do not block, and are closed in child processes, forked ones too. Used by
/// one thread at a time, but for Shutdown.
class Socket {
 public:
  /// The connection has ended, at the other end or on the way.
  struct Closed : Error {
    using Error::Error;
  };

  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept;
  ~Socket();

  int fd() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  /// From now on forked children close it: a connection that a helper still holds does not end with
  /// the process that is killed.
  void HideFromChildren() const;
  /// Wakes everyone who waits for it, in this process and at the other end; keeps the descriptor.
  void Shutdown() const;
  /// Says that nothing more is sent; the other side reads its end after the last byte.
  void EndSending() const;

  /// Reads bytes that are there, at most `room`, which is not empty. Returns their number, 0 if
  /// there are none now. Throws Closed.
  size_t Read(std::span<std::byte> room) const;
  /// Writes as many bytes as the connection has room for. Returns their number. Throws Closed.
  size_t Write(std::span<const std::byte> bytes) const;
  /// Read and write all of them. Throw Closed, or Error "timed out".
  void ReadAll(std::span<std::byte> room, Clock::time_point deadline) const;
  void WriteAll(std::span<const std::byte> bytes, Clock::time_point deadline) const;

 private:
  int fd_ = -1;
};

/// Returns a descriptor that wakes a thread from poll: readable after SetEvent, until ClearEvent. A
/// system that refuses calls may lose the event, so a waiting thread also polls with a timeout.
/// Throws Error if the system has no descriptor left.
Socket NewWakeEvent();
void SetEvent(const Socket& event);
void ClearEvent(const Socket& event);

/// Waits until a descriptor can be read from, or written to; false at the deadline.
bool AwaitReady(const Socket& socket, bool to_write, Clock::time_point deadline);

}  // namespace contraflow
