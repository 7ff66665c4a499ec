#include "tests/runtime/transport/shm_wires.h"

#include <string>

namespace contraflow {

ShmWires::ShmWires(int processes, size_t ring_bytes) : memory(processes, ring_bytes) {
  for (int p = 0; p < processes; ++p) {
    wires.push_back(std::make_unique<ShmWire>(
        memory, p, [](int other) { return "process " + std::to_string(other); }));
  }
}

Label LabelOf(int microbatch, size_t bytes) {
  return {CellOp(Op::SEND_F, 0, microbatch), 0, bytes};
}

Wire::Status Await(Wire& wire, int ticket) {
  for (;;) {
    const Wire::Status status = wire.Test(ticket);
    if (status.done) return status;
    wire.Pause();
  }
}

Wire::Status AwaitBoth(Wire& sender, int send, Wire& receiver, int receive) {
  Wire::Status sent, received;
  while (!sent.done || !received.done) {
    if (!sent.done) sent = sender.Test(send);
    if (!received.done) received = receiver.Test(receive);
  }
  return received;
}

Bytes Pattern(size_t size, uint64_t seed) {
  Bytes bytes(size);
  for (size_t i = 0; i < size; ++i) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    bytes[i] = static_cast<std::byte>(seed >> 56);
  }
  return bytes;
}

}  // namespace contraflow
