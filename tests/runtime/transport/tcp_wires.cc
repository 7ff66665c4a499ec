#include "tests/runtime/transport/tcp_wires.h"

#include <sys/socket.h>

#include <utility>

#include "runtime/transport/tcp_traffic.h"
#include "tests/runtime/transport/tcp_network.h"

namespace contraflow {
namespace {

/// As SocketMesh, of TCP connections on this machine.
std::vector<std::vector<Socket>> LoopbackMesh(int processes) {
  auto mesh = SocketMesh(processes);
  const Clock::time_point deadline = Clock::now() + std::chrono::seconds(30);
  const Socket listener = Listen({"127.0.0.1", 0});
  for (size_t a = 0; a < mesh.size(); ++a) {
    for (size_t b = a + 1; b < mesh.size(); ++b) {
      mesh[a][b] = Connect(LocalAddress(listener), deadline);
      mesh[b][a] = Socket(accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC));
    }
  }
  return mesh;
}

}  // namespace

std::vector<std::unique_ptr<TcpWire>> Wires(int processes, bool loopback, Milliseconds grace) {
  std::vector<std::unique_ptr<TcpWire>> wires;
  auto mesh = loopback ? LoopbackMesh(processes) : SocketMesh(processes);
  for (int p = 0; p < processes; ++p) {
    wires.push_back(
        std::make_unique<TcpWire>(p, std::move(mesh[static_cast<size_t>(p)]), nullptr, grace));
  }
  return wires;
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

Bytes Pattern(size_t size, uint64_t seed) {
  Bytes bytes(size);
  for (size_t i = 0; i < size; ++i) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    bytes[i] = static_cast<std::byte>(seed >> 56);
  }
  return bytes;
}

}  // namespace contraflow
