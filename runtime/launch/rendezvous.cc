// Rank 0 collects who has come, hands out the roster and, when every process has all of its
// connections, lets all go. One loop, which never waits for any one connection.

#include "runtime/launch/rendezvous.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "compiler/plan/error.h"
#include "runtime/launch/handshake.h"
#include "runtime/launch/peer.h"

namespace contraflow {
namespace {

struct Guest {
  Socket socket;
  FrameInbox frames;
  Address from;     // where its connection comes from
  Address listens;  // where others reach it
  bool ready = false;
};

/// What a guest does not take until then, it never will.
Clock::time_point InASecond() { return Clock::now() + std::chrono::seconds(1); }

class Host {
 public:
  explicit Host(const MeetingPoint& point)
      : side_(point), guests_(static_cast<size_t>(point.size)) {
    side_.acceptor.emplace(Listen(point.address), point.secret, 0, point.size, point.user);
    here_ = LocalAddress(side_.acceptor->listener());
    const bool every = here_.host == "::" || here_.host == "0.0.0.0";
    if (every) here_.host = point.address.host.empty() ? OwnName() : point.address.host;
    if (point.ready) point.ready(here_);
  }

  Membership Run() {
    try {
      while (!Step()) {
      }
      const std::string go = WriteFrame(Word::kGo);
      for (size_t rank = 1; rank < guests_.size(); ++rank) {
        SendAll(guests_[rank].socket, std::as_bytes(std::span(go)), InASecond());
      }
    } catch (const Error& error) {
      std::vector<Socket*> sockets;
      for (Guest& guest : guests_) sockets.push_back(&guest.socket);
      Part(sockets, WriteFrame(Word::kFailed, error.what()));
      throw;
    }
    for (size_t rank = 1; rank < guests_.size(); ++rank) {
      side_.members.watch[rank] = std::move(guests_[rank].socket);
    }
    return std::move(side_.members);
  }

 private:
  static std::string OwnName() {
    char name[256] = {};
    if (gethostname(name, sizeof(name) - 1) != 0) return "localhost";
    return name;
  }

  /// Whether all is done.
  bool Step() {
    side_.acceptor->Ask(&side_.readiness);
    for (const Guest& guest : guests_) {
      if (guest.socket) side_.readiness.Add(guest.socket);
    }
    side_.Wait();
    for (Peer& peer : side_.acceptor->Serve(side_.readiness)) Welcome(&peer);
    for (size_t rank = 1; rank < guests_.size(); ++rank) {
      if (side_.readiness.Has(guests_[rank].socket)) Hear(static_cast<int>(rank));
    }
    if (!gathered_ && Missing().empty()) HandOutRoster();
    if (gathered_ && side_.HasAll(side_.members.mesh, 1) && NotReady().empty()) return true;
    RequireTime();
    return false;
  }

  void Welcome(Peer* peer) {
    const Claim& claim = peer->claim;
    const std::string misfit = Misfit(claim);
    if (!misfit.empty()) {
      side_.acceptor->Refuse(peer->address, misfit);
      Part(&peer->socket, WriteFrame(Word::kFailed, misfit));
      return;
    }
    if (claim.purpose != Purpose::kMeet) return side_.TakeIn(peer);
    const Address listens{peer->address.host, claim.port};
    Guest& guest = guests_[static_cast<size_t>(claim.from)];
    if (guest.socket) {
      const std::string text = "two processes claim to be rank " + std::to_string(claim.from) +
                               ": one listens at " + guest.listens.Text() + ", the other at " +
                               listens.Text() +
                               "; give every process its own number (RANK, or what the "
                               "launcher sets)";
      Part(&peer->socket, WriteFrame(Word::kFailed, text));
      throw Error(text);
    }
    guest.socket = std::move(peer->socket);
    guest.from = peer->address;
    guest.listens = listens;
    // Where it cannot, Hear finds it closed.
    TrySend(guest.socket, WriteFrame(Word::kConnected), InASecond());
  }

  /// Why a process that knows the secret is not one of this meeting, or "".
  std::string Misfit(const Claim& claim) const {
    const std::string rank = "rank " + std::to_string(claim.from);
    if (claim.size != side_.point.size) {
      return rank + " was started as one of " + std::to_string(claim.size) +
             " processes, rank 0 as one of " + std::to_string(side_.point.size) +
             "; start all with the same number of processes";
    }
    if (claim.mesh != side_.point.mesh) {
      return rank +
             " and rank 0 were told different transports; give all processes the same "
             "`transport`";
    }
    if (claim.purpose == Purpose::kMeet && claim.from == 0) {
      return "rank 0 is here already, at " + here_.Text() +
             "; give every process its own number (RANK, or what the launcher sets)";
    }
    return "";
  }

  void Hear(int rank) {
    Guest& guest = guests_[static_cast<size_t>(rank)];
    const std::string name = "rank " + std::to_string(rank) + " (" + guest.from.Text() + ") ";
    try {
      if (!guest.frames.Fill(guest.socket)) return;
    } catch (const Error& error) {
      throw Error(name + error.what() + " before all processes of the job had met; see its output");
    }
    if (guest.frames.word() == Word::kFailed) throw Error(guest.frames.payload());
    if (guest.frames.word() != Word::kReady || !gathered_ || guest.ready) {
      throw Error(name + "sent something unexpected");
    }
    guest.ready = true;
  }

  template <typename IsSo>
  std::vector<int> GuestsThat(const IsSo& is_so) const {
    std::vector<int> ranks;
    for (size_t rank = 1; rank < guests_.size(); ++rank) {
      if (is_so(guests_[rank])) ranks.push_back(static_cast<int>(rank));
    }
    return ranks;
  }
  std::vector<int> Missing() const {
    return GuestsThat([](const Guest& guest) { return !guest.socket; });
  }
  std::vector<int> NotReady() const {
    return GuestsThat([](const Guest& guest) { return !guest.ready; });
  }

  void HandOutRoster() {
    gathered_ = true;
    // The host's address as those on other machines see it, if there are any. Those that came over
    // the loopback of this machine can be reached there too.
    std::string outside;
    for (size_t rank = 1; rank < guests_.size() && outside.empty(); ++rank) {
      const Guest& guest = guests_[rank];
      if (!IsLoopback(guest.from.host)) outside = LocalAddress(guest.socket).host;
    }
    std::vector<Address>& roster = side_.members.roster;
    roster[0] = {outside.empty() ? LocalAddress(guests_[1].socket).host : outside, here_.port};
    for (size_t rank = 1; rank < guests_.size(); ++rank) {
      roster[rank] = guests_[rank].listens;
      if (!outside.empty() && IsLoopback(roster[rank].host)) roster[rank].host = outside;
    }
    const std::string frame = WriteFrame(Word::kRoster, WriteRoster(roster));
    // Where it cannot, Hear finds it closed, or the deadline finds it silent.
    for (size_t rank = 1; rank < guests_.size(); ++rank) {
      TrySend(guests_[rank].socket, frame, InASecond());
    }
  }

  void RequireTime() const {
    const std::string within = " within " + Seconds(side_.point.timeout);
    if (gathered_ && Clock::now() >= side_.deadline + kHostGrace) {
      throw Error(RankNames(NotReady()) + " of " + std::to_string(side_.point.size) +
                  " did not connect to the others" + within +
                  "; can the machines reach each other at all ports?");
    }
    if (gathered_ || Clock::now() < side_.deadline) return;
    const std::string refused = side_.acceptor->Refused();
    throw Error(RankNames(Missing()) + " of " + std::to_string(side_.point.size) +
                " did not reach rank 0 at " + here_.Text() + within +
                (refused.empty() ? "" : "; refused meanwhile: " + refused) +
                "; were they started, with the same MASTER_ADDR, MASTER_PORT and secret?");
  }

  MeetingSide side_;
  Address here_;
  std::vector<Guest> guests_;  // by rank, without 0
  bool gathered_ = false;      // all have come and have the roster
};

}  // namespace

Membership Meet(const MeetingPoint& point) {
  CF_ASSERT(point.size >= 1 && point.rank >= 0 && point.rank < point.size);
  if (point.size == 1) {
    Membership members = MeetingSide(point).members;
    members.roster.front() = point.address;
    return members;
  }
  return point.rank == 0 ? Host(point).Run() : VisitMeeting(point);
}

}  // namespace contraflow
