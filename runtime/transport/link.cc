#include "runtime/transport/link.h"

#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "compiler/plan/error.h"

namespace contraflow {
namespace {

/// Short frames that the other side has not taken: more than any plan has under way.
constexpr size_t kMaxShort = size_t{16} << 20;
constexpr size_t kMaxTalk = size_t{1} << 30;
/// Read at once where frames are expected: many of those, but little of a piece, which is copied.
constexpr size_t kReadAhead = 50 * sizeof(Frame);

std::span<const std::byte> BytesOf(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace

Link::Link(int process, Stream stream, Talk talk)
    : process_(process), stream_(std::move(stream)), talk_(std::move(talk)), read_(kReadAhead) {}

void Link::PutShort(const Frame& frame, std::string_view bytes) {
  if (!open() || mute_) return;
  short_.append(reinterpret_cast<const char*>(&frame), sizeof frame);
  short_.append(bytes);
  if (short_.size() > kMaxShort) {
    Close("it stopped reading (it is suspended, or its machine is gone)");
  }
}

void Link::PutTensor(int sender, int receiver, std::span<const std::byte> bytes) {
  Frame head;
  head.kind = Frame::kBytes;
  head.sender = sender;
  head.receiver = receiver;
  if (open()) long_.push_back({head, bytes, nullptr});
}

void Link::PutTalk(uint8_t channel, std::string_view bytes) {
  CF_ASSERT(bytes.size() <= kMaxPiece);
  Frame head;
  head.kind = Frame::kTalk;
  head.channel = channel;
  head.bytes = bytes.size();
  PutShort(head, bytes);
}

void Link::PutLongTalk(uint8_t channel, std::string bytes) {
  // Behind a long one that is on its way a short one stays behind.
  const bool first = std::none_of(long_.begin(), long_.end(),
                                  [](const Message& other) { return other.owned != nullptr; });
  if (bytes.size() <= kMaxPiece && first) return PutTalk(channel, bytes);
  Frame head;
  head.kind = Frame::kTalk;
  head.channel = channel;
  head.part = 1;
  const auto owned = std::make_shared<const std::string>(std::move(bytes));
  if (open()) long_.push_back({head, BytesOf(*owned), owned});
}

bool Link::writes() const {
  return open() && !mute_ &&
         (written_ < writing_.size() || !piece_.empty() || !short_.empty() || !long_.empty() ||
          (ending_ && !ended_));
}

/// The next thing to be written: short frames first, others wait for them.
void Link::Begin() {
  writing_.clear();
  written_ = 0;
  writing_.swap(short_);
  if (long_.empty()) return;
  Message& message = long_.front();
  piece_ = message.rest.first(std::min(kMaxPiece, message.rest.size()));
  message.rest = message.rest.subspan(piece_.size());
  Frame head = message.head;
  head.bytes = piece_.size();
  head.more = message.rest.empty() ? 0 : 1;
  writing_.append(reinterpret_cast<const char*>(&head), sizeof head);
}

void Link::Write() {
  if (!writes()) return;
  try {
    if (written_ == writing_.size() && piece_.empty()) Begin();
    if (written_ < writing_.size()) {
      const auto rest = BytesOf(std::string_view(writing_).substr(written_));
      written_ += stream_.Write(rest, !piece_.empty());
      if (written_ < writing_.size()) return;
    }
    if (!piece_.empty()) {
      piece_ = piece_.subspan(stream_.Write(piece_));
      if (!piece_.empty()) return;
      kept_.clear();
      if (!long_.empty()) {
        Message message = std::move(long_.front());
        long_.pop_front();
        if (!message.rest.empty()) {
          // Tensors take turns; the parts of a message of the watch follow one another.
          const bool tensor = message.owned == nullptr;
          long_.insert(tensor ? long_.end() : long_.begin(), std::move(message));
        } else if (message.owned == nullptr) {
          tensors_->OnSent(message.head.sender);
        }
      }
    }
    if (ending_ && !ended_ && short_.empty() && long_.empty()) {
      stream_.EndSending();
      ended_ = true;
    }
  } catch (const Stream::Closed&) {
    // What it said before it went, perhaps why, is still to be read; the end comes behind that. If
    // it has not gone, it learns here that this one does not speak any more.
    mute_ = true;
    (void)shutdown(fd(), SHUT_WR);
  } catch (const Error& error) {
    Close(error.what());
  }
}

void Link::Read() {
  if (!open()) return;
  try {
    const bool to_room = behind_ > 0 && !room_.empty();
    const std::span<std::byte> to = to_room ? room_ : std::span(read_).subspan(end_);
    const size_t count = stream_.Read(to);
    if (count == 0) return;
    heard_ = Clock::now();
    if (to_room) {
      behind_ -= count;
      room_ = room_.subspan(count);
      tensors_->OnBytes(process_, frame_.receiver, count);
      return;
    }
    end_ += count;
    size_t begin = 0;
    while (open()) {
      if (behind_ > 0) {
        const size_t bytes = std::min(behind_, end_ - begin);
        if (bytes == 0) break;
        Fill(std::span(read_).subspan(begin, bytes));
        begin += bytes;
        continue;
      }
      if (end_ - begin < sizeof(Frame)) break;
      Frame frame;
      std::memcpy(&frame, read_.data() + begin, sizeof(Frame));
      begin += sizeof(Frame);
      Take(frame);
    }
    // An incomplete frame stays, at the front.
    std::copy(read_.begin() + static_cast<std::ptrdiff_t>(begin),
              read_.begin() + static_cast<std::ptrdiff_t>(end_), read_.begin());
    end_ -= begin;
  } catch (const Stream::Closed& error) {
    left_ = open();
    Close(error.what());
  } catch (const Error& error) {
    Close(error.what());
  }
}

void Link::Take(const Frame& frame) {
  if (frame.kind > Frame::kTalk) throw Error("it sent a frame of an unknown kind");
  if (frame.kind != Frame::kBytes && frame.kind != Frame::kTalk) {
    if (tensors_ != nullptr) tensors_->OnFrame(process_, frame);
    return;
  }
  if (frame.bytes > kMaxPiece) throw Error("it sent a piece that is too long");
  frame_ = frame;
  behind_ = static_cast<size_t>(frame.bytes);
  said_.clear();
  room_ = {};
  if (frame.kind == Frame::kTalk) {
    if (behind_ == 0) EndTalk();
  } else if (tensors_ != nullptr) {
    room_ = tensors_->Room(process_, frame);
    CF_ASSERT(room_.size() == behind_);
  }
}

/// Bytes behind the last frame that were read with it; a tensor's without room are nobody's.
void Link::Fill(std::span<const std::byte> bytes) {
  behind_ -= bytes.size();
  if (frame_.kind == Frame::kTalk) {
    said_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (behind_ == 0) EndTalk();
  } else if (!room_.empty()) {
    std::memcpy(room_.data(), bytes.data(), bytes.size());
    room_ = room_.subspan(bytes.size());
    tensors_->OnBytes(process_, frame_.receiver, bytes.size());
  }
}

void Link::EndTalk() {
  // Short messages overtake long ones, which grow with what has come, and no further.
  if (frame_.part == 0) return talk_(process_, frame_.channel, std::move(said_));
  parts_ += said_;
  if (parts_.size() > kMaxTalk) throw Error("it sent more than anybody of this job does");
  if (frame_.more == 0) talk_(process_, frame_.channel, std::exchange(parts_, {}));
}

void Link::SetTensors(Tensors* tensors) {
  DropTensors();
  tensors_ = tensors;
}

void Link::DropTensors() {
  room_ = {};
  if (!piece_.empty() && !long_.empty() && long_.front().owned == nullptr) {
    // The other side has been told how much comes.
    kept_.assign(reinterpret_cast<const char*>(piece_.data()), piece_.size());
    piece_ = BytesOf(kept_);
    long_.pop_front();
    // Behind the piece Write takes the front off, whatever it is.
    long_.push_front({Frame{}, {}, std::make_shared<const std::string>()});
  }
  std::erase_if(long_, [](const Message& message) { return message.owned == nullptr; });
}

void Link::Close(const std::string& reason) {
  if (!open()) return;
  reason_ = reason;
  // The other side may not know what this one saw.
  stream_.Shutdown();
  stream_ = Stream();
  DropTensors();
}

}  // namespace contraflow
