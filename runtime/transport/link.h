#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/transport/stream.h"

namespace contraflow {

/// What goes over a connection of a job, with `bytes` bytes behind it where it is kBytes or kTalk.
/// Both ends are the same build on the same kind of machine: it goes as it lies in memory.
struct Frame {
  enum Kind : uint8_t {
    kLabel,   ///< a send of a tensor was begun
    kReady,   ///< its receive was, and takes it
    kRefuse,  ///< its receive expects another number of bytes
    kBytes,   ///< some of the bytes of a tensor
    kTalk,    ///< a message of the watch, or a part of one
  };
  uint8_t kind = kLabel;
  uint8_t channel = 0;  ///< of a wire, or which kind of talk
  uint8_t op = 0;
  uint8_t more = 0;      ///< kTalk in parts: another one follows
  int32_t sender = 0;    ///< ticket of the send, where it was begun
  int32_t receiver = 0;  ///< ticket of the receive, likewise
  int32_t stage = 0, microbatch = 0, layer = 0;
  int32_t part = 0;  ///< of a label; kTalk: 1 if it is one of several parts
  int32_t unused = 0;
  uint64_t bytes = 0;  ///< of the whole tensor (kLabel), or behind this frame
};
static_assert(sizeof(Frame) == 40);

/// Most bytes behind a frame: what is longer goes in pieces that take turns.
inline constexpr size_t kMaxPiece = size_t{256} << 10;

/// One connection of a job: tensors and what the watch says, side by side. Short frames overtake
/// long messages. Never waits. Nothing that the other side says sizes, indexes or frees memory
/// before it is checked. Used by one thread at a time.
class Link {
 public:
  /// Who is told of tensors. Throws Error where the other side does what none of a job does.
  class Tensors {
   public:
    virtual ~Tensors() = default;

    /// kLabel, kReady or kRefuse.
    virtual void OnFrame(int process, const Frame& frame) = 0;
    /// Where the bytes behind a frame of kBytes go: exactly so many as it says.
    virtual std::span<std::byte> Room(int process, const Frame& frame) = 0;
    /// So many bytes have been put there.
    virtual void OnBytes(int process, int receiver, size_t count) = 0;
    /// All bytes of a tensor are on their way.
    virtual void OnSent(int sender) = 0;
  };
  /// Is given the messages of the watch, whole; throws likewise.
  using Talk = std::function<void(int process, uint8_t channel, std::string bytes)>;

  /// To that process of the job.
  Link(int process, Stream stream, Talk talk);

  bool open() const { return static_cast<bool>(stream_); }
  /// Why it is closed, and whether the other side just went.
  const std::string& reason() const { return reason_; }
  bool left() const { return left_; }
  int fd() const { return stream_.fd(); }
  bool buffered() const { return stream_.buffered(); }
  /// When something came last.
  Clock::time_point heard() const { return heard_; }
  void Excuse(Clock::time_point now) { heard_ = now; }

  void Put(const Frame& frame) { PutShort(frame, {}); }
  /// The bytes of a tensor whose receive is ready; at least one. They stay until OnSent or
  /// SetTensors.
  void PutTensor(int sender, int receiver, std::span<const std::byte> bytes);
  /// A message of the watch, at most kMaxPiece bytes, ahead of all that is long.
  void PutTalk(uint8_t channel, std::string_view bytes);
  /// One of any length; they arrive in their order.
  void PutLongTalk(uint8_t channel, std::string bytes);

  /// Whether something is left to be written.
  bool writes() const;
  /// Writes what the connection takes, at most one piece, and reads what is there, likewise.
  /// Where it has been read to its end, or what comes is not from this job, it is closed.
  void Write();
  void Read();

  /// Those under way are forgotten: their memory is not touched any more. Null: what comes is
  /// nobody's.
  void SetTensors(Tensors* tensors);
  /// Once all is written, sends no more; the other side reads its end there.
  void EndSending() { ending_ = true; }
  void Close(const std::string& reason);

 private:
  /// A long message on its way.
  struct Message {
    Frame head;
    std::span<const std::byte> rest;
    std::shared_ptr<const std::string> owned;  // null: a tensor's
  };

  void PutShort(const Frame& frame, std::string_view bytes);
  void Begin();
  void Take(const Frame& frame);
  void Fill(std::span<const std::byte> bytes);
  void EndTalk();
  void DropTensors();

  const int process_;
  Stream stream_;
  const Talk talk_;
  Tensors* tensors_ = nullptr;
  std::string reason_;
  bool left_ = false;
  Clock::time_point heard_ = Clock::now();
  // What is being written: writing_ from written_ on, and behind it a piece of a long message.
  std::string short_, writing_;
  size_t written_ = 0;
  std::deque<Message> long_;
  std::span<const std::byte> piece_;
  std::string kept_;  // what is left of a piece whose owner is gone
  bool ending_ = false, ended_ = false;
  bool mute_ = false;  // nothing can be written any more
  // What was read and not looked at, and what is behind the last frame.
  std::vector<std::byte> read_;
  size_t end_ = 0;
  Frame frame_;
  size_t behind_ = 0;          // bytes of it that have not come
  std::span<std::byte> room_;  // for those of a tensor
  std::string said_, parts_;   // of a message of the watch: what came of this part; those before
};

}  // namespace contraflow
