#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "runtime/launch/fault_report.h"

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

}  // namespace contraflow
