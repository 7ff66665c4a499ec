#pragma once

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "runtime/launch/control_message.h"
#include "runtime/transport/socket.h"

namespace contraflow {

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
