#include "tests/runtime/transport/tcp_wires.h"

#include <sys/socket.h>

#include <csignal>
#include <future>
#include <tuple>

#include "compiler/plan/error.h"

namespace contraflow {

std::pair<Socket, Socket> Joined(bool loopback) {
  if (loopback) {
    const Socket listener = Listen({"127.0.0.1", 0});
    Socket here = Connect(LocalAddress(listener), Soon());
    CF_ASSERT(AwaitReady(listener, false, Soon()));
    return {std::move(here), Accept(listener)};
  }
  int fds[2];
  CF_ASSERT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) == 0);
  return {Socket(fds[0]), Socket(fds[1])};
}

std::pair<Stream, Stream> JoinedStreams(const std::string& secret, bool loopback) {
  auto [a, b] = Joined(loopback);
  if (secret.empty()) return {Stream(std::move(a)), Stream(std::move(b))};
  // As the tools do: one with a secret may end while it is written to.
  std::signal(SIGPIPE, SIG_IGN);
  auto accepted = std::async(
      std::launch::async, [&, &end = b] { return Stream::Accept(std::move(end), secret, Soon()); });
  Stream connected = Stream::Connect(std::move(a), secret, Soon());
  return {std::move(connected), accepted.get()};
}

std::vector<std::vector<Stream>> StreamMesh(int processes, const std::string& secret,
                                            bool loopback) {
  const auto count = static_cast<size_t>(processes);
  std::vector<std::vector<Stream>> mesh(count);
  for (auto& ends : mesh) ends.resize(count);
  for (size_t a = 0; a < count; ++a) {
    for (size_t b = a + 1; b < count; ++b) {
      std::tie(mesh[a][b], mesh[b][a]) = JoinedStreams(secret, loopback);
    }
  }
  return mesh;
}

LinkedWire::LinkedWire(int self, std::vector<Stream> streams, Milliseconds grace)
    : OwnLinks{LinkSet(self, std::move(streams))},
      TcpWire(
          links, [](int p) { return "process " + std::to_string(p); }, grace) {
  links.Start(nullptr);
}

std::vector<std::unique_ptr<LinkedWire>> Wires(int processes, const std::string& secret,
                                               bool loopback, Milliseconds grace) {
  std::vector<std::unique_ptr<LinkedWire>> wires;
  auto mesh = StreamMesh(processes, secret, loopback);
  for (int p = 0; p < processes; ++p) {
    wires.push_back(
        std::make_unique<LinkedWire>(p, std::move(mesh[static_cast<size_t>(p)]), grace));
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
