#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/transport/tcp_wire.h"

namespace contraflow {

using Channel = Wire::Channel;
using Bytes = std::vector<std::byte>;
using Milliseconds = std::chrono::milliseconds;

/// Nobody watches for lost processes.
inline constexpr Milliseconds kNoGrace{0};

/// A deadline for what should take no time, however busy the machine.
inline Clock::time_point Soon() { return Clock::now() + std::chrono::seconds(120); }

/// The two ends of a connection, a socket pair or a TCP connection on this machine.
std::pair<Socket, Socket> Joined(bool loopback = false);
/// The same once both have proven the secret; "": plain.
std::pair<Stream, Stream> JoinedStreams(const std::string& secret, bool loopback = false);
/// Connections between every two of so many processes: [a][b] is the end that a has to b.
std::vector<std::vector<Stream>> StreamMesh(int processes, const std::string& secret = "",
                                            bool loopback = false);

struct OwnLinks {
  LinkSet links;
};
/// A wire and the connections below it, which nobody watches.
class LinkedWire : private OwnLinks, public TcpWire {
 public:
  LinkedWire(int self, std::vector<Stream> streams, Milliseconds grace = kNoGrace);
  /// From here on the thread of the links does not call it: it is becoming another class.
  ~LinkedWire() override {
    const std::lock_guard lock(links.mutex());
    links.SetTensors(nullptr);
  }
};

/// The wires of so many processes that are threads here.
std::vector<std::unique_ptr<LinkedWire>> Wires(int processes, const std::string& secret = "",
                                               bool loopback = false,
                                               Milliseconds grace = kNoGrace);

Label LabelOf(int microbatch, size_t bytes);

/// What a send or a receive came to; throws what it ends with.
Wire::Status Await(Wire& wire, int ticket);

/// Bytes that tell which message they are of.
Bytes Pattern(size_t size, uint64_t seed);

}  // namespace contraflow
