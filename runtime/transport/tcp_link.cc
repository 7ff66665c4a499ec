#include "runtime/transport/tcp_link.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "compiler/plan/error.h"

namespace contraflow {
namespace {

/// Of a message, before another one has its turn: long enough that a system call does not count.
constexpr size_t kChunk = size_t{256} << 10;
/// Read at once where frames are expected: many of those, but little of a chunk, which is copied.
constexpr size_t kReadAhead = 50 * sizeof(Frame);

bool Later(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

/// How a connection ended. Whether bytes were left that nobody read is no matter.
TcpLink::Closed Broken(int error) {
  if (error == ECONNRESET || error == EPIPE) error = 0;
  return TcpLink::Closed(error == 0 ? "it was closed at the other end"
                                    : std::generic_category().message(error));
}

}  // namespace

TcpLink::TcpLink(Socket socket, User& user)
    : socket_(std::move(socket)), user_(user), read_(kReadAhead) {}

void TcpLink::Put(const Frame& frame) {
  const auto bytes = std::as_bytes(std::span(&frame, 1));
  frames_.insert(frames_.end(), bytes.begin(), bytes.end());
}

void TcpLink::PutBytes(int sender, int receiver, std::span<const std::byte> bytes) {
  messages_.push_back({sender, receiver, bytes});
}

bool TcpLink::writes() const {
  return written_ < writing_.size() || !chunk_.empty() || !frames_.empty() || !messages_.empty();
}

void TcpLink::Write() {
  if (written_ == writing_.size() && chunk_.empty()) {
    // Frames first: they are short, and others wait for them.
    writing_.clear();
    written_ = 0;
    writing_.swap(frames_);
    if (!messages_.empty()) {
      Message& message = messages_.front();
      chunk_ = message.rest.first(std::min(kChunk, message.rest.size()));
      message.rest = message.rest.subspan(chunk_.size());
      Frame frame;
      frame.kind = Frame::kBytes;
      frame.receiver = message.receiver;
      frame.bytes = chunk_.size();
      const auto bytes = std::as_bytes(std::span(&frame, 1));
      writing_.insert(writing_.end(), bytes.begin(), bytes.end());
    }
  }
  if (written_ == writing_.size() && chunk_.empty()) return;
  iovec parts[2] = {{writing_.data() + written_, writing_.size() - written_},
                    // Only read, whatever the type says.
                    {const_cast<std::byte*>(chunk_.data()), chunk_.size()}};
  msghdr header{};
  header.msg_iov = parts;
  header.msg_iovlen = 2;
  const ssize_t count = sendmsg(socket_.fd(), &header, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (count < 0) {
    if (Later(errno)) return;
    throw Broken(errno);
  }
  const size_t of_frames = std::min(static_cast<size_t>(count), writing_.size() - written_);
  const size_t of_chunk = static_cast<size_t>(count) - of_frames;
  written_ += of_frames;
  if (of_chunk == 0) return;
  chunk_ = chunk_.subspan(of_chunk);
  if (!chunk_.empty()) return;
  const Message message = messages_.front();
  messages_.pop_front();
  if (message.rest.empty()) {
    user_.OnSent(message.sender);
  } else {
    messages_.push_back(message);
  }
}

void TcpLink::Read() {
  const bool to_room = !room_.empty();
  std::byte* const to = to_room ? room_.data() : read_.data() + end_;
  const size_t most = to_room ? room_.size() : read_.size() - end_;
  const ssize_t count = recv(socket_.fd(), to, most, MSG_DONTWAIT);
  if (count == 0) throw Broken(0);
  if (count < 0) {
    if (Later(errno)) return;
    throw Broken(errno);
  }
  if (to_room) {
    room_ = room_.subspan(static_cast<size_t>(count));
    user_.OnBytes(receiver_, static_cast<size_t>(count));
  } else {
    end_ += static_cast<size_t>(count);
    Parse();
  }
}

/// Takes frames, and bytes between them, out of what was read ahead.
void TcpLink::Parse() {
  while (end_ - begin_ >= sizeof(Frame)) {
    Frame frame;
    std::memcpy(&frame, read_.data() + begin_, sizeof(Frame));
    begin_ += sizeof(Frame);
    if (frame.kind != Frame::kBytes) {
      user_.OnFrame(frame);
      continue;
    }
    room_ = user_.Room(frame);
    CF_ASSERT(room_.size() == frame.bytes);
    receiver_ = frame.receiver;
    const size_t count = std::min(room_.size(), end_ - begin_);
    if (count == 0) continue;
    std::memcpy(room_.data(), read_.data() + begin_, count);
    begin_ += count;
    room_ = room_.subspan(count);
    user_.OnBytes(receiver_, count);
  }
  // An incomplete frame stays, at the front.
  std::copy(read_.begin() + static_cast<std::ptrdiff_t>(begin_),
            read_.begin() + static_cast<std::ptrdiff_t>(end_), read_.begin());
  end_ -= begin_;
  begin_ = 0;
}

}  // namespace contraflow
