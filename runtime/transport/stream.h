#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "runtime/transport/socket.h"

struct ssl_st;

namespace contraflow {

/// One end of a connection between two processes of a job. With a secret everything on it is
/// encrypted and authenticated: TLS 1.3 with the secret as pre-shared key and an ephemeral key
/// exchange (RFC 8446, psk_dhe_ke), no certificates; the first such makes the process ignore
/// SIGPIPE. Without one it is plain TCP, for the loopback. Used by one thread at a time.
class Stream {
 public:
  /// The connection has ended, at the other end or on the way.
  struct Closed : Error {
    using Error::Error;
  };

  Stream() = default;
  /// Plain. The socket is connected.
  explicit Stream(Socket socket) : socket_(std::move(socket)) {}
  /// Proves to the other side that this one knows the secret, and the reverse; "": plain. Throws
  /// Error: the other side did not prove it by the deadline.
  static Stream Connect(Socket socket, const std::string& secret, Clock::time_point deadline);
  static Stream Accept(Socket socket, const std::string& secret, Clock::time_point deadline);

  explicit operator bool() const { return static_cast<bool>(socket_); }
  const Socket& socket() const { return socket_; }
  int fd() const { return socket_.fd(); }
  /// Whether something was received that Read has not given yet: poll(2) does not tell.
  bool buffered() const;
  /// Ends the connection at both sides; keeps the descriptor.
  void Shutdown() { socket_.Shutdown(); }
  /// Says that nothing more is sent; the other side reads its end behind the last byte.
  void EndSending();

  /// Bytes that are there, at most what fits into `room`, which has room; 0 if there are none now.
  /// Throws Closed.
  size_t Read(std::span<std::byte> room);
  /// Takes what the connection has room for; 0 if there is none now. `more` comes at once. Throws
  /// Closed.
  size_t Write(std::span<const std::byte> bytes, bool more = false);

  /// All of them. Throws Closed, or Error "timed out".
  void ReadAll(std::span<std::byte> room, Clock::time_point deadline);
  void WriteAll(std::span<const std::byte> bytes, Clock::time_point deadline);

 private:
  struct Free {
    void operator()(ssl_st* tls) const;
  };
  static Stream Secure(Socket socket, const std::string& secret, bool connects,
                       Clock::time_point deadline);
  bool Await(bool to_write, Clock::time_point deadline) const;

  Socket socket_;
  std::unique_ptr<ssl_st, Free> tls_;  // null: plain
};

}  // namespace contraflow
