#include "runtime/launch/link.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <utility>

#include "compiler/plan/error.h"

namespace contraflow {
namespace {

/// Bytes of short messages that the other side has not taken; more than any job has under way.
constexpr size_t kMaxShort = size_t{16} << 20;
constexpr size_t kMaxLong = size_t{1} << 30;

void Append(const Frame& frame, std::string_view bytes, std::string* to) {
  to->append(reinterpret_cast<const char*>(&frame), sizeof frame);
  to->append(bytes);
}

}  // namespace

Link::Link(int process, Socket stream, Take take)
    : process_(process), stream_(std::move(stream)), take_(std::move(take)) {}

void Link::Put(uint8_t channel, std::string_view bytes) {
  CF_ASSERT(bytes.size() <= kMaxPiece);
  if (!open() || mute_) return;
  Append({channel, Frame::kWhole, 0, static_cast<uint32_t>(bytes.size())}, bytes, &short_);
  if (short_.size() > kMaxShort) {
    Close("it stopped reading (it is suspended, or its machine is gone)");
  }
}

void Link::PutLong(uint8_t channel, std::string bytes) {
  if (open()) long_.push_back({channel, std::move(bytes), 0});
}

bool Link::writes() const {
  return open() && !mute_ &&
         (written_ < writing_.size() || !short_.empty() || !long_.empty() || ending_);
}

/// The next bytes to be written: all short messages, and a piece of a long one.
void Link::Begin() {
  writing_.clear();
  written_ = 0;
  writing_.swap(short_);
  if (long_.empty()) return;
  Message& message = long_.front();
  const std::string_view piece = std::string_view(message.bytes).substr(message.sent, kMaxPiece);
  message.sent += piece.size();
  const bool last = message.sent == message.bytes.size();
  Append(
      {message.channel, last ? Frame::kLast : Frame::kMore, 0, static_cast<uint32_t>(piece.size())},
      piece, &writing_);
  if (last) long_.pop_front();
}

void Link::Write() {
  if (!writes()) return;
  try {
    if (written_ == writing_.size()) Begin();
    if (written_ < writing_.size()) {
      written_ += stream_.Write(
          std::as_bytes(std::span(writing_.data() + written_, writing_.size() - written_)));
      if (written_ < writing_.size()) return;
    }
    if (ending_ && short_.empty() && long_.empty()) {
      stream_.EndSending();
      mute_ = true;
    }
  } catch (const Socket::Closed&) {
    // Its last messages, perhaps its reason, are still to be read; the end comes after them. If it
    // still lives, it learns here that this side is mute.
    mute_ = true;
    stream_.EndSending();
  }
}

void Link::Read() {
  if (!open()) return;
  try {
    std::array<std::byte, 16384> room;
    const size_t count = stream_.Read(room);
    if (count == 0) return;
    heard_ = Clock::now();
    read_.append(reinterpret_cast<const char*>(room.data()), count);
    size_t begin = 0;
    while (open() && read_.size() - begin >= sizeof(Frame)) {
      Frame frame;
      std::memcpy(&frame, read_.data() + begin, sizeof frame);
      if (frame.part > Frame::kLast) throw Error("it sent a frame of an unknown kind");
      if (frame.bytes > kMaxPiece) throw Error("it sent a piece that is too long");
      if (read_.size() - begin - sizeof frame < frame.bytes) break;
      begin += sizeof frame;
      Deliver(frame, std::string_view(read_).substr(begin, frame.bytes));
      begin += frame.bytes;
    }
    read_.erase(0, begin);
  } catch (const Socket::Closed&) {
    Close("its connection closed (it was killed, or its machine is gone)");
  } catch (const Error& error) {
    Close(error.what());
  }
}

void Link::Deliver(const Frame& frame, std::string_view bytes) {
  if (frame.part == Frame::kWhole) return take_(process_, frame.channel, std::string(bytes));
  pieces_.append(bytes);
  if (pieces_.size() > kMaxLong) throw Error("it sent more than any process of this job does");
  if (frame.part == Frame::kLast) take_(process_, frame.channel, std::exchange(pieces_, {}));
}

void Link::Close(const std::string& reason) {
  if (!open()) return;
  reason_ = reason;
  // The other side may not know that the connection is lost.
  stream_.Shutdown();
  stream_ = Socket();
}

}  // namespace contraflow
