#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <span>

#include "compiler/plan/error.h"
#include "runtime/launch/socket.h"

namespace contraflow {

/// Receives exactly this many bytes, at most until the deadline: the counterpart of SendAll, which
/// the runtime itself never waits in. Throws Error: "timed out", "the connection was closed", or
/// what the system says.
inline void ReceiveAll(const Socket& socket, std::span<std::byte> bytes,
                       Clock::time_point deadline) {
  while (!bytes.empty()) {
    const ssize_t got = recv(socket.fd(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got > 0) {
      bytes = bytes.subspan(static_cast<size_t>(got));
    } else if (got == 0 || errno == ECONNRESET) {
      throw Error("the connection was closed");
    } else if (errno == EAGAIN) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
      if (left.count() <= 0) throw Error("timed out");
      pollfd entry{socket.fd(), POLLIN, 0};
      poll(&entry, 1, static_cast<int>(std::min<int64_t>(left.count(), 60'000)));
    } else if (errno != EINTR) {
      throw Error(std::strerror(errno));
    }
  }
}

}  // namespace contraflow
