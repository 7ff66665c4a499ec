#include "runtime/launch/socket.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <set>
#include <string>

namespace contraflow {
namespace {

/// Connections of this process, which forked children close.
struct Connections {
  std::mutex mutex;
  std::set<int> open;

  static Connections& Here() {
    static Connections* const here = [] {
      auto* made = new Connections;  // outlives every socket
      pthread_atfork([] { Here().mutex.lock(); }, [] { Here().mutex.unlock(); },
                     [] {
                       for (const int fd : Here().open) close(fd);
                       Here().open.clear();
                       Here().mutex.unlock();
                     });
      return made;
    }();
    return *here;
  }
};

bool Later(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

Socket::Closed Ended(int error) {
  // Whether bytes were left that nobody read is no matter.
  if (error == ECONNRESET || error == EPIPE) error = 0;
  return Socket::Closed(error == 0 ? "it was closed at the other end" : std::strerror(error));
}

}  // namespace

Socket& Socket::operator=(Socket&& other) noexcept {
  const Socket closed(std::exchange(fd_, std::exchange(other.fd_, -1)));
  return *this;
}

Socket::~Socket() {
  if (fd_ < 0) return;
  const std::lock_guard lock(Connections::Here().mutex);
  Connections::Here().open.erase(fd_);
  close(fd_);
}

void Socket::HideFromChildren() const {
  const std::lock_guard lock(Connections::Here().mutex);
  Connections::Here().open.insert(fd_);
}

void Socket::Shutdown() const { (void)shutdown(fd_, SHUT_RDWR); }

void Socket::EndSending() const { (void)shutdown(fd_, SHUT_WR); }

size_t Socket::Read(std::span<std::byte> room) const {
  const ssize_t count = recv(fd_, room.data(), room.size(), MSG_DONTWAIT);
  if (count > 0) return static_cast<size_t>(count);
  if (count < 0 && Later(errno)) return 0;
  throw Ended(count == 0 ? 0 : errno);
}

size_t Socket::Write(std::span<const std::byte> bytes) const {
  const ssize_t count = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (count >= 0) return static_cast<size_t>(count);
  if (Later(errno)) return 0;
  throw Ended(errno);
}

void Socket::ReadAll(std::span<std::byte> room, Clock::time_point deadline) const {
  while (!room.empty()) {
    const size_t count = Read(room);
    room = room.subspan(count);
    if (count == 0 && !AwaitReady(*this, false, deadline)) throw Error("timed out");
  }
}

void Socket::WriteAll(std::span<const std::byte> bytes, Clock::time_point deadline) const {
  while (!bytes.empty()) {
    const size_t count = Write(bytes);
    bytes = bytes.subspan(count);
    if (count == 0 && !AwaitReady(*this, true, deadline)) throw Error("timed out");
  }
}

Socket NewWakeEvent() {
  Socket event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event) {
    throw Error(std::string("cannot wait for connections: ") + std::strerror(errno) +
                "; allow this process more open files (ulimit -n)");
  }
  return event;
}

void SetEvent(const Socket& event) { (void)eventfd_write(event.fd(), 1); }

void ClearEvent(const Socket& event) {
  eventfd_t rung = 0;
  (void)eventfd_read(event.fd(), &rung);
}

bool AwaitReady(const Socket& socket, bool to_write, Clock::time_point deadline) {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    pollfd entry{socket.fd(), static_cast<short>(to_write ? POLLOUT : POLLIN), 0};
    const int ready =
        poll(&entry, 1, static_cast<int>(std::clamp<int64_t>(left.count(), 0, 60'000)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) throw Error(std::string("poll: ") + std::strerror(errno));
    if (Clock::now() >= deadline) return false;
  }
}

}  // namespace contraflow
