#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "runtime/launch/fault_report.h"
#include "runtime/transport/socket.h"

namespace contraflow {

/// What one process is doing.
struct Beat {
  uint64_t moves = 0;
  int32_t waits_for = -1;
  uint32_t age_ms = 0;   ///< how long it has been there
  std::string position;  ///< described
};

/// What watching processes say to each other.
struct ControlMessage {
  enum class Kind : uint8_t {
    kBeat,      ///< I live, and do this
    kFault,     ///< I must stop
    kStop,      ///< all must; says why
    kWords,     ///< what I was doing when I heard of it, and my own error, if any
    kEnd,       ///< the report is out
    kPart,      ///< a piece of a main thread's bytes
    kData,      ///< the last piece of them
    kFinish,    ///< my work is done
    kFinished,  ///< everybody's is
  };
  static constexpr uint8_t kKinds = 9;

  ControlMessage() = default;
  explicit ControlMessage(Kind what) : kind(what) {}
  ControlMessage(Kind what, Fault why) : kind(what), fault(std::move(why)) {}

  Kind kind = Kind::kBeat;
  Beat beat;               ///< kBeat, kWords
  bool has_fault = false;  ///< kWords
  Fault fault;             ///< kFault, kStop, kWords with one
  uint8_t operation = 0;   ///< kData: what the main thread is at
  std::string bytes;       ///< kPart, kData
};

/// Longest piece of bytes in one message, and longest text; longer texts are cut.
inline constexpr size_t kMaxPart = size_t{1} << 18;
inline constexpr size_t kMaxFaultText = size_t{1} << 14;

/// The message as it travels: kind, length, body; little-endian.
std::string Encode(const ControlMessage& message);

/// Takes messages out of a stream of bytes that may be hostile.
class ControlReader {
 public:
  void Add(const char* bytes, size_t count) { buffer_.append(bytes, count); }
  /// Whether a message was complete, and is now in `message`. Throws Error if what comes is none.
  bool Next(ControlMessage* message);

 private:
  std::string buffer_;
  size_t at_ = 0;
};

/// One watch connection. Nothing here waits: what the other side does not take yet is queued, and
/// a main thread's bytes stand behind everything else.
class ControlLink {
 public:
  explicit ControlLink(Socket socket) : socket_(std::move(socket)) {}

  bool open() const { return static_cast<bool>(socket_); }
  int fd() const { return socket_.fd(); }
  bool Unsent() const { return !sending_.empty() || !urgent_.empty() || !bulk_.empty(); }
  /// Why it is closed, as the report says it.
  const std::string& reason() const { return reason_; }
  Clock::time_point heard() const { return heard_; }
  void Excuse(Clock::time_point now) { heard_ = now; }

  void Send(const ControlMessage& message);
  /// As one message of a main thread.
  void SendBytes(uint8_t operation, std::string_view bytes);
  /// Sends what can be sent now.
  void Flush();
  /// Adds what has arrived; a link that has ended is closed behind its last message. Pieces of
  /// bytes are joined; `pieces` counts them.
  void Receive(std::vector<ControlMessage>* messages, uint64_t* pieces);
  /// Sends no more once all is sent; the other side reads its end there.
  void EndSending();
  void Close(const std::string& reason);

 private:
  void Take(std::vector<ControlMessage>* messages, uint64_t* pieces);

  Socket socket_;
  std::string reason_;
  Clock::time_point heard_ = Clock::now();
  std::string sending_;  // the message under way, from sent_ on
  size_t sent_ = 0, urgent_bytes_ = 0;
  bool ending_ = false;
  std::deque<std::string> urgent_, bulk_;
  ControlReader reader_;
  std::string joined_;
};

}  // namespace contraflow
