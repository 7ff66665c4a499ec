#include "runtime/launch/control_link.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "compiler/plan/error.h"
#include "runtime/launch/handshake.h"

namespace contraflow {
namespace {

using Kind = ControlMessage::Kind;

constexpr size_t kHeader = 5;
constexpr size_t kMaxPosition = 1024;
constexpr size_t kMaxBody = kMaxPart + 64;
static_assert(kMaxBody > kMaxPosition + kMaxFaultText + 64);

void Put(std::string& out, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i) & 0xff);
}

void PutText(std::string& out, std::string_view text, size_t limit) {
  text = text.substr(0, limit);
  Put(out, text.size(), 4);
  out += text;
}

void PutBeat(std::string& out, const Beat& beat) {
  Put(out, beat.moves, 8);
  Put(out, static_cast<uint32_t>(beat.waits_for), 4);
  Put(out, beat.age_ms, 4);
  PutText(out, beat.position, kMaxPosition);
}

void PutFault(std::string& out, const Fault& fault) {
  Put(out, static_cast<uint64_t>(fault.kind), 1);
  Put(out, static_cast<uint32_t>(fault.process), 4);
  Put(out, static_cast<uint32_t>(fault.about), 4);
  Put(out, fault.seen, 1);
  PutText(out, fault.text, kMaxFaultText);
}

std::string Body(const ControlMessage& message) {
  std::string body;
  switch (message.kind) {
    case Kind::kBeat:
      PutBeat(body, message.beat);
      break;
    case Kind::kFault:
    case Kind::kStop:
      PutFault(body, message.fault);
      break;
    case Kind::kWords:
      PutBeat(body, message.beat);
      Put(body, message.has_fault, 1);
      if (message.has_fault) PutFault(body, message.fault);
      break;
    case Kind::kData:
      Put(body, message.operation, 1);
      body += message.bytes;
      break;
    case Kind::kPart:
      body = message.bytes;
      break;
    case Kind::kEnd:
    case Kind::kFinish:
    case Kind::kFinished:
      break;
  }
  return body;
}

[[noreturn]] void Refuse() { throw Error("it sent something that is not a message of this job"); }

/// Reads a body from its beginning to its end; nothing in it is believed.
class BodyReader {
 public:
  explicit BodyReader(std::string_view body) : body_(body) {}

  uint64_t Number(size_t bytes) {
    if (body_.size() < bytes) Refuse();
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; ++i) {
      value |= static_cast<uint64_t>(static_cast<unsigned char>(body_[i])) << (8 * i);
    }
    body_.remove_prefix(bytes);
    return value;
  }
  int Signed() { return static_cast<int>(static_cast<uint32_t>(Number(4))); }
  bool Flag() {
    const uint64_t value = Number(1);
    if (value > 1) Refuse();
    return value == 1;
  }
  std::string Text(size_t limit) {
    const size_t size = Number(4);
    if (size > limit || size > body_.size()) Refuse();
    const std::string text = PlainText(body_.substr(0, size));
    body_.remove_prefix(size);
    return text;
  }
  Beat ReadBeat() {
    Beat beat;
    beat.moves = Number(8);
    beat.waits_for = Signed();
    beat.age_ms = static_cast<uint32_t>(Number(4));
    beat.position = Text(kMaxPosition);
    return beat;
  }
  Fault ReadFault() {
    Fault fault;
    const uint64_t kind = Number(1);
    if (kind > static_cast<uint64_t>(FaultKind::kJob)) Refuse();
    fault.kind = static_cast<FaultKind>(kind);
    fault.process = Signed();
    fault.about = Signed();
    fault.seen = Flag();
    fault.text = Text(kMaxFaultText);
    return fault;
  }
  std::string Rest() {
    std::string rest(body_);
    body_ = {};
    return rest;
  }
  void End() const {
    if (!body_.empty()) Refuse();
  }

 private:
  std::string_view body_;
};

ControlMessage Decode(Kind kind, std::string_view body) {
  ControlMessage message;
  message.kind = kind;
  BodyReader reader(body);
  switch (kind) {
    case Kind::kBeat:
      message.beat = reader.ReadBeat();
      break;
    case Kind::kFault:
    case Kind::kStop:
      message.fault = reader.ReadFault();
      break;
    case Kind::kWords:
      message.beat = reader.ReadBeat();
      message.has_fault = reader.Flag();
      if (message.has_fault) message.fault = reader.ReadFault();
      break;
    case Kind::kData:
      message.operation = static_cast<uint8_t>(reader.Number(1));
      message.bytes = reader.Rest();
      break;
    case Kind::kPart:
      message.bytes = reader.Rest();
      break;
    case Kind::kEnd:
    case Kind::kFinish:
    case Kind::kFinished:
      break;
  }
  reader.End();
  return message;
}

}  // namespace

std::string Encode(const ControlMessage& message) {
  const std::string body = Body(message);
  CF_ASSERT(body.size() <= kMaxBody);
  std::string bytes;
  bytes.reserve(kHeader + body.size());
  Put(bytes, static_cast<uint64_t>(message.kind), 1);
  Put(bytes, body.size(), 4);
  return bytes += body;
}

bool ControlReader::Next(ControlMessage* message) {
  const std::string_view rest = std::string_view(buffer_).substr(at_);
  if (rest.size() >= kHeader) {
    BodyReader header(rest);
    const uint64_t kind = header.Number(1);
    const uint64_t size = header.Number(4);
    if (kind >= ControlMessage::kKinds || size > kMaxBody) Refuse();
    if (rest.size() - kHeader >= size) {
      *message = Decode(static_cast<Kind>(kind), rest.substr(kHeader, size));
      at_ += kHeader + size;
      return true;
    }
  }
  buffer_.erase(0, at_);
  at_ = 0;
  return false;
}

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
    Close("it stopped reading (it is suspended, or its machine is gone)");
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
