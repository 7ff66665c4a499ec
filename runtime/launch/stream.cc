#include "runtime/launch/stream.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace contraflow {
namespace {

bool Later(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

Stream::Closed Ended(int error) {
  // Whether bytes were left that nobody read is no matter.
  if (error == ECONNRESET || error == EPIPE) error = 0;
  return Stream::Closed(error == 0 ? "it was closed at the other end" : std::strerror(error));
}

}  // namespace

void Stream::EndSending() { (void)shutdown(fd(), SHUT_WR); }

size_t Stream::Read(std::span<std::byte> room) {
  const ssize_t count = recv(fd(), room.data(), room.size(), MSG_DONTWAIT);
  if (count > 0) return static_cast<size_t>(count);
  if (count < 0 && Later(errno)) return 0;
  throw Ended(count == 0 ? 0 : errno);
}

size_t Stream::Write(std::span<const std::byte> bytes) {
  const ssize_t count = send(fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (count >= 0) return static_cast<size_t>(count);
  if (Later(errno)) return 0;
  throw Ended(errno);
}

void Stream::ReadAll(std::span<std::byte> room, Clock::time_point deadline) {
  while (!room.empty()) {
    const size_t count = Read(room);
    room = room.subspan(count);
    if (count == 0 && !AwaitReady(socket_, false, deadline)) throw Error("timed out");
  }
}

void Stream::WriteAll(std::span<const std::byte> bytes, Clock::time_point deadline) {
  while (!bytes.empty()) {
    const size_t count = Write(bytes);
    bytes = bytes.subspan(count);
    if (count == 0 && !AwaitReady(socket_, true, deadline)) throw Error("timed out");
  }
}

}  // namespace contraflow
