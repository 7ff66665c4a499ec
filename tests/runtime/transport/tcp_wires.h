#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/transport/tcp_wire.h"

namespace contraflow {

using Channel = Wire::Channel;
using Bytes = std::vector<std::byte>;
using Milliseconds = std::chrono::milliseconds;

/// Nobody watches for lost processes.
inline constexpr Milliseconds kNoGrace{0};

/// The wires of so many processes that are threads here, joined by socket pairs or by TCP
/// connections on this machine.
std::vector<std::unique_ptr<TcpWire>> Wires(int processes, bool loopback = false,
                                            Milliseconds grace = kNoGrace);

Label LabelOf(int microbatch, size_t bytes);

/// What a send or a receive came to; throws what it ends with.
Wire::Status Await(Wire& wire, int ticket);

/// Bytes that tell which message they are of.
Bytes Pattern(size_t size, uint64_t seed);

}  // namespace contraflow
