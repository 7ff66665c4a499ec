#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "runtime/core/transport.h"

namespace contraflow {

/// An open TCP connection, listener, or other file descriptor; closed when destroyed. Connections
/// have TCP_NODELAY set, do not block, and are closed in child processes, forked ones too.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept;
  ~Socket();

  int fd() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  /// Wakes everyone who waits for it, in this process and at the other end; keeps the descriptor.
  void Shutdown();

 private:
  int fd_ = -1;
};

/// A host (name, IPv4 or IPv6 address) and a port. For messages `host:port`, `[v6]:port`.
struct Address {
  std::string host;
  int port = 0;

  std::string Text() const;
};

/// Whether a host is the machine itself to itself: "localhost", or a numeric loopback address.
bool IsLoopback(const std::string& host);

/// Listens at a host's address; port 0 is any free port. Every interface where the host is "", or
/// is a name (not localhost) that this machine knows only as a loopback address of its own. Throws
/// Error: the port is taken (by an older job, perhaps), the host is not this machine, and so on,
/// with the remedy.
Socket Listen(const Address& at);
/// The next connection that a listener has, or none if nobody waits for it; never waits. Throws
/// Error where the system has no room for more.
Socket Accept(const Socket& listener);
/// The address a listener or connection has on this side; numeric.
Address LocalAddress(const Socket& socket);
/// That of the other side of a connection; numeric.
Address PeerAddress(const Socket& socket);
/// The user who holds the other side of a connection inside this machine, once that side has
/// accepted it; none where it is on another machine, has closed, or cannot be known.
std::optional<uint32_t> PeerUser(const Socket& socket);

/// Connects, again and again while nobody listens there, until the deadline. Throws Error naming
/// the address and what went wrong last.
Socket Connect(const Address& to, Clock::time_point deadline);

/// What wakes a thread that waits for descriptors: can be read from once it was rung, until it is
/// hushed. That a bell rings is not certain where the system refuses calls: who waits for one looks
/// up now and then. Throws Error where the system has no room for it.
Socket NewBell();
void Ring(const Socket& bell);
void Hush(const Socket& bell);

/// Waits until a descriptor can be read from, or written to; false at the deadline.
bool AwaitReady(const Socket& socket, bool to_write, Clock::time_point deadline);

}  // namespace contraflow
