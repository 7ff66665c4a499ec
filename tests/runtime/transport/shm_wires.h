#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/transport/shm_wire.h"

namespace contraflow {

using Channel = Wire::Channel;
using Bytes = std::vector<std::byte>;
using Milliseconds = std::chrono::milliseconds;

/// The wires of processes that are threads here, over one memory.
struct ShmWires {
  explicit ShmWires(int processes, size_t ring_bytes = 4096);

  ShmWire* operator[](size_t process) { return wires[process].get(); }

  SharedMemory memory;
  std::vector<std::unique_ptr<ShmWire>> wires;
};

Label LabelOf(int microbatch, size_t bytes);

/// Waits until a send or a receive is done; throws the error that it ends with.
Wire::Status Await(Wire& wire, int ticket);
/// Waits until a message has been sent and received, by turns of both sides.
Wire::Status AwaitBoth(Wire& sender, int send, Wire& receiver, int receive);

/// Bytes that tell which message they are of.
Bytes Pattern(size_t size, uint64_t seed);

}  // namespace contraflow
