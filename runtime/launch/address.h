#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/launch/socket.h"

namespace contraflow {

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

/// Connects, and retries until the deadline. Throws Error with the address and the last failure.
Socket Connect(const Address& to, Clock::time_point deadline);

}  // namespace contraflow
