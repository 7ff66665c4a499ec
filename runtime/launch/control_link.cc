#include "runtime/launch/control_link.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "compiler/plan/error.h"

namespace contraflow {
namespace {

using Kind = ControlMessage::Kind;

// Beats and faults of a job that does not read them; a gigabyte of a main thread's data may wait.
constexpr size_t kMaxUrgent = size_t{1} << 20;
constexpr size_t kMaxJoined = size_t{1} << 30;
constexpr size_t kReadAtOnce = size_t{1} << 20;

constexpr const char* kClosed = "its connection closed (it was killed, or its machine is gone)";

}  // namespace

void ControlLink::Send(const ControlMessage& message) {
  if (!open() || ending_) return;
  urgent_.push_back(Encode(message));
  urgent_bytes_ += urgent_.back().size();
  Flush();
  if (open() && urgent_bytes_ > kMaxUrgent) {
    Close("it does not read what it is sent (it is stopped, or its machine is gone)");
  }
}

void ControlLink::SendBytes(uint8_t operation, std::string_view bytes) {
  if (!open() || ending_) return;
  ControlMessage message;
  message.kind = Kind::kPart;
  for (; bytes.size() > kMaxPart; bytes.remove_prefix(kMaxPart)) {
    message.bytes = bytes.substr(0, kMaxPart);
    bulk_.push_back(Encode(message));
  }
  message.kind = Kind::kData;
  message.operation = operation;
  message.bytes = bytes;
  bulk_.push_back(Encode(message));
  Flush();
}

void ControlLink::Flush() {
  while (open()) {
    if (sent_ == sending_.size()) {
      sending_.clear();
      sent_ = 0;
      std::deque<std::string>& queue = urgent_.empty() ? bulk_ : urgent_;
      if (queue.empty()) {
        if (ending_) ::shutdown(fd(), SHUT_WR);
        return;
      }
      if (&queue == &urgent_) urgent_bytes_ -= queue.front().size();
      sending_ = std::move(queue.front());
      queue.pop_front();
    }
    const ssize_t count =
        ::send(fd(), sending_.data() + sent_, sending_.size() - sent_, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count < 0) {
      if (errno == EINTR) continue;
      // Whatever else went wrong is for Receive to find, behind what the other side still said.
      return;
    }
    sent_ += static_cast<size_t>(count);
  }
}

void ControlLink::Receive(std::vector<ControlMessage>* messages, uint64_t* pieces) {
  char buffer[size_t{1} << 16];
  for (size_t read = 0; open() && read < kReadAtOnce;) {
    const ssize_t count = ::recv(fd(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (count <= 0) return Close(kClosed);
    read += static_cast<size_t>(count);
    heard_ = Clock::now();
    reader_.Add(buffer, static_cast<size_t>(count));
    try {
      Take(messages, pieces);
    } catch (const Error& error) {
      return Close(error.what());
    }
  }
}

void ControlLink::Take(std::vector<ControlMessage>* messages, uint64_t* pieces) {
  ControlMessage message;
  while (reader_.Next(&message)) {
    if (message.kind == Kind::kPart || message.kind == Kind::kData) {
      ++*pieces;
      if (message.bytes.size() > kMaxJoined - joined_.size()) {
        throw Error("it sent more than 1 GiB at once");
      }
      joined_ += message.bytes;
      if (message.kind == Kind::kPart) continue;
      message.bytes = std::move(joined_);
      joined_.clear();
    }
    messages->push_back(std::move(message));
  }
}

void ControlLink::EndSending() {
  if (ending_) return;
  ending_ = true;
  Flush();
}

void ControlLink::Close(const std::string& reason) {
  if (!open()) return;
  socket_ = Socket();
  reason_ = reason;
}

}  // namespace contraflow
