#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

namespace contraflow {

/// A TCP port of this machine that the system gives nobody else while this lives: who connects to
/// it is refused, until somebody listens there who allows the address to be reused (SO_REUSEADDR),
/// as the runtime does.
class HeldPort {
 public:
  /// Port 0: any. Throws std::runtime_error where somebody has it.
  explicit HeldPort(int port = 0) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    socklen_t size = sizeof address;
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    // Alone at first, so that nobody else has it; from then on with those who listen.
    const int reuse = 1;
    if (fd_ < 0 || bind(fd_, generic, size) != 0 || getsockname(fd_, generic, &size) != 0 ||
        setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof reuse) != 0) {
      const std::string reason = std::strerror(errno);
      if (fd_ >= 0) close(fd_);
      throw std::runtime_error("cannot hold port " + std::to_string(port) + ": " + reason);
    }
    port_ = ntohs(address.sin_port);
  }
  HeldPort(const HeldPort&) = delete;
  ~HeldPort() { close(fd_); }

  int port() const { return port_; }

 private:
  int fd_ = -1;
  int port_ = 0;
};

}  // namespace contraflow
