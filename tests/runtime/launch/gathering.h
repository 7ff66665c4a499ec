#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/launch/address.h"
#include "runtime/launch/meeting.h"
#include "tests/support/sanitized.h"

namespace contraflow {

/// How a process's Meet ended.
struct Attendance {
  std::optional<Membership> members;
  std::string error;  ///< "" if it has members
  double seconds = 0;
};

/// A timeout that is to run out, in milliseconds: long enough that all else is done before, however
/// busy the machine. A timeout that must not expire. A call that takes seconds less than half of it
/// did not wait for it.
constexpr int kBrief = kSanitized ? 6'000 : 3'000, kPlenty = 120'000;

/// The points of `size` processes with one secret; rank 0 takes any free port of the loopback
/// address.
std::vector<MeetingPoint> Points(int size, int timeout_ms = kPlenty);

/// Calls Meet for each point, in a thread for each. Points with port 0 get the port of rank 0; they
/// begin once that one listens, or has failed, and `listening`, in a thread of its own, has
/// returned.
std::vector<Attendance> Gather(const std::vector<MeetingPoint>& points,
                               const std::function<void(const Address&)>& listening = nullptr);

/// Checks that all of them have met: rank 0 has a connection to each other one, and no other
/// exists.
void CheckMet(std::vector<Attendance>& all);
inline void CheckMet(std::vector<Attendance>&& all) { CheckMet(all); }

/// A deadline for what should take no time, however busy the machine.
Clock::time_point Soon();
/// The two ends of a TCP connection.
struct SocketPair {
  SocketPair();

  Socket a, b;
};
void SendText(const Socket& socket, const std::string& text);
/// Exactly this many bytes.
std::string ReceiveText(const Socket& socket, size_t bytes);
/// Whatever comes until the other side closes the connection.
std::string ReceiveRest(const Socket& socket);

}  // namespace contraflow
