#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/launch/acceptor.h"
#include "runtime/launch/rendezvous.h"

namespace contraflow {

/// What both sides of a meeting have: rank 0, the host, and the others, its guests.
struct Party {
  explicit Party(const MeetingPoint& point);

  /// Takes in a connection of a process with a higher rank, for the watch of rank 1 or for
  /// messages.
  void TakeIn(Visitor* visitor);
  /// Whether there is a connection to every rank from `first` on.
  bool HasAll(const std::vector<Socket>& sockets, int first) const;
  /// Waits until one of those asked for is ready, or timeouts are to be looked at.
  void Wait() { readiness.Wait(Clock::now() + std::chrono::milliseconds(200)); }

  const MeetingPoint& point;
  const Clock::time_point deadline;
  Membership members;
  std::optional<Door> door;
  Readiness readiness;
};

/// The whole meeting, as rank 0 or as another.
Membership HostMeeting(const MeetingPoint& point);
Membership VisitMeeting(const MeetingPoint& point);

/// How long guests leave the last word to the host, whose clock may have been started a little
/// later; and the host to a guest that knows which of its connections is missing.
constexpr std::chrono::milliseconds kGuestGrace{1'000}, kHostGrace{500};

/// Sends a frame over all of them as far as that goes, and lets the other sides close them (for a
/// moment at most): closing first could destroy what they have not read yet.
void Part(std::span<Socket* const> sockets, const std::string& frame);

/// `60 s` or `250 ms`.
std::string Seconds(std::chrono::milliseconds time);
/// `rank 3`, `ranks 1, 4-7`; ascending.
std::string RankNames(const std::vector<int>& ranks);

}  // namespace contraflow
