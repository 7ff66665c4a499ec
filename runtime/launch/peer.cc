#include "runtime/launch/peer.h"

#include <sys/socket.h>

#include "compiler/plan/error.h"
#include "runtime/launch/handshake.h"

namespace contraflow {
namespace {

constexpr std::chrono::milliseconds kFarewell{400};

}  // namespace

Party::Party(const MeetingPoint& the_point)
    : point(the_point), deadline(Clock::now() + the_point.timeout) {
  const auto size = static_cast<size_t>(point.size);
  members.rank = point.rank;
  members.size = point.size;
  members.roster.resize(size);
  members.watch.resize(size);
  if (point.mesh) members.mesh.resize(size);
}

void Party::TakeIn(Visitor* visitor) {
  const Claim& claim = visitor->claim;
  std::vector<Socket>* sockets = nullptr;
  if (claim.purpose == Purpose::kWatch && point.rank == 1) sockets = &members.watch;
  if (claim.purpose == Purpose::kMesh && point.mesh) sockets = &members.mesh;
  const auto from = static_cast<size_t>(claim.from);
  // Nobody of the job does otherwise.
  if (sockets == nullptr || claim.from <= point.rank || (*sockets)[from]) return;
  try {
    const std::string frame = WriteFrame(Word::kConnected);
    SendAll(visitor->socket, std::as_bytes(std::span(frame)), Clock::now());
    (*sockets)[from] = std::move(visitor->socket);
  } catch (const Error&) {
    // It has left; who watches over the meeting connection sees that too.
  }
}

bool Party::HasAll(const std::vector<Socket>& sockets, int first) const {
  for (size_t i = static_cast<size_t>(first); i < sockets.size(); ++i) {
    if (!sockets[i] && static_cast<int>(i) != point.rank) return false;
  }
  return true;
}

void Part(std::span<Socket* const> sockets, const std::string& frame) {
  const Clock::time_point deadline = Clock::now() + kFarewell;
  std::vector<const Socket*> open;
  for (Socket* socket : sockets) {
    if (!*socket) continue;
    try {
      SendAll(*socket, std::as_bytes(std::span(frame)), Clock::now());
      if (shutdown(socket->fd(), SHUT_WR) == 0) open.push_back(socket);
    } catch (const Error&) {
    }
  }
  Readiness readiness;
  while (!open.empty() && Clock::now() < deadline) {
    for (const Socket* socket : open) readiness.Add(*socket);
    readiness.Wait(deadline);
    std::erase_if(open, [&](const Socket* socket) {
      if (!readiness.Has(*socket)) return false;
      Inbox inbox(size_t{1} << 16);
      return !inbox.Fill(*socket) || inbox.full();
    });
  }
}

std::string Seconds(std::chrono::milliseconds time) {
  return time.count() % 1000 == 0 ? std::to_string(time.count() / 1000) + " s"
                                  : std::to_string(time.count()) + " ms";
}

std::string RankNames(const std::vector<int>& ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
    if (end - i > 1) text += (end - i > 2 ? "-" : ", ") + std::to_string(ranks[end - 1]);
    i = end;
  }
  return (ranks.size() == 1 ? "rank " : "ranks ") + text;
}

}  // namespace contraflow
