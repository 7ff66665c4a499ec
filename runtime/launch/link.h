#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>

#include "runtime/launch/socket.h"

namespace contraflow {

/// Bytes of the longest message that goes in one piece, and of each piece of a longer one.
inline constexpr size_t kMaxPiece = size_t{256} << 10;

/// Goes ahead of each piece of a message. Both ends are the same build on the same kind of machine:
/// it goes as it lies in memory.
struct Frame {
  enum Part : uint8_t { kWhole, kMore, kLast };
  uint8_t channel = 0;
  uint8_t part = kWhole;
  uint16_t unused = 0;
  uint32_t bytes = 0;  ///< of the piece
};
static_assert(sizeof(Frame) == 8);

/// One connection of the watch. Short messages overtake long ones. Never waits. All that the other
/// side says is checked before it sizes, indexes or frees memory. Used by one thread at a time.
class Link {
 public:
  /// Takes a whole message. Throws Error if no process of a job sends it.
  using Take = std::function<void(int process, uint8_t channel, std::string bytes)>;

  /// `process` is at the other end.
  Link(int process, Socket stream, Take take);

  int process() const { return process_; }
  bool open() const { return static_cast<bool>(stream_); }
  /// Why it is closed.
  const std::string& reason() const { return reason_; }
  int fd() const { return stream_.fd(); }
  /// Time at which the last bytes came.
  Clock::time_point heard() const { return heard_; }
  void Excuse(Clock::time_point now) { heard_ = now; }

  /// Sends a message of at most kMaxPiece bytes, ahead of all long ones.
  void Put(uint8_t channel, std::string_view bytes);
  /// Sends a message of any length, after the long ones before it.
  void PutLong(uint8_t channel, std::string bytes);

  /// Whether bytes are left to be written.
  bool writes() const;
  /// Write as much as the connection takes, and read all that is there. A connection is closed at
  /// its end, and when it brings a message that is not of this job.
  void Write();
  void Read();

  /// Once all is written, sends no more; the other side reads its end there.
  void EndSending() { ending_ = true; }
  void Close(const std::string& reason);

 private:
  struct Message {
    uint8_t channel = 0;
    std::string bytes;
    size_t sent = 0;
  };

  void Begin();
  void Deliver(const Frame& frame, std::string_view bytes);

  const int process_;
  Socket stream_;
  const Take take_;
  std::string reason_;
  Clock::time_point heard_ = Clock::now();
  std::string short_, writing_;  // frames; those under way
  size_t written_ = 0;
  std::deque<Message> long_;
  bool ending_ = false;
  bool mute_ = false;   // nothing is written any more
  std::string read_;    // bytes of a frame that has not come whole
  std::string pieces_;  // of a long message
};

}  // namespace contraflow
