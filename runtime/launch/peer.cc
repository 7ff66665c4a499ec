#include "runtime/launch/peer.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include "compiler/plan/error.h"
#include "runtime/launch/handshake.h"

namespace contraflow {
namespace {

using std::chrono::milliseconds;

// An honest process answers at once; one on a machine that is overloaded may take a little.
constexpr milliseconds kPatience{10'000};
// Where there is no room for all, whoever has had this long makes room for the next; an honest
// process comes again.
constexpr milliseconds kLeastPatience{500};
constexpr size_t kReasons = 8;

std::string RankText(const Claim& claim) {
  return "says that it is rank " + std::to_string(claim.from) + " of " + std::to_string(claim.size);
}

}  // namespace

void Readiness::Add(const Socket& socket, bool write) {
  asked_.push_back({socket.fd(), static_cast<short>(write ? POLLOUT : POLLIN), 0});
}

void Readiness::Wait(Clock::time_point until) {
  ready_.clear();
  const auto left = std::chrono::ceil<milliseconds>(until - Clock::now());
  const int wait = static_cast<int>(std::clamp<int64_t>(left.count(), 0, 60'000));
  if (poll(asked_.data(), asked_.size(), wait) < 0 && errno != EINTR) {
    throw Error(std::string("poll: ") + std::strerror(errno));
  }
  for (const pollfd& entry : asked_) {
    if (entry.revents == 0) continue;
    const auto fd = static_cast<size_t>(entry.fd);
    if (ready_.size() <= fd) ready_.resize(fd + 1);
    ready_[fd] = true;
  }
  asked_.clear();
}

bool Readiness::Has(const Socket& socket) const {
  const auto fd = static_cast<size_t>(socket.fd());
  return socket && fd < ready_.size() && ready_[fd];
}

Acceptor::Acceptor(Socket listener, std::string secret, int rank, int size,
                   std::optional<uint32_t> user)
    : listener_(std::move(listener)),
      secret_(std::move(secret)),
      rank_(rank),
      size_(size),
      user_(user),
      most_(2 * static_cast<size_t>(size) + 64) {}

void Acceptor::Ask(Readiness* readiness) const {
  if (HasRoom()) readiness->Add(listener_);
  for (const PendingPeer& pending : pending_) readiness->Add(pending.socket);
}

std::vector<Peer> Acceptor::Serve(const Readiness& readiness) {
  std::vector<Peer> peers;
  std::vector<PendingPeer> left;
  for (PendingPeer& pending : pending_) {
    std::string reason;
    if (readiness.Has(pending.socket)) reason = Advance(&pending);
    const bool proven = reason.empty() && !pending.challenge.empty() && pending.inbox.full();
    if (proven) {
      peers.push_back({std::move(pending.socket), pending.claim, pending.address});
      continue;
    }
    if (reason.empty() && Clock::now() >= pending.deadline) {
      reason = pending.challenge.empty() ? "says nothing"
                                         : RankText(pending.claim) + ", but does not prove it";
    }
    if (reason.empty()) {
      left.push_back(std::move(pending));
    } else {
      Refuse(pending.address, reason);
    }
  }
  pending_ = std::move(left);
  if (readiness.Has(listener_)) LetIn();
  return peers;
}

bool Acceptor::HasRoom() const {
  return pending_.size() < most_ ||
         Clock::now() >= pending_.front().deadline - kPatience + kLeastPatience;
}

void Acceptor::LetIn() {
  // Others wait outside, in the system's queue.
  while (HasRoom()) {
    if (pending_.size() >= most_) {
      Refuse(pending_.front().address, "is one too many at a time");
      pending_.erase(pending_.begin());
    }
    PendingPeer pending;
    try {
      pending.socket = Accept(listener_);
      if (!pending.socket) return;
    } catch (const Error&) {
      if (pending_.empty()) throw;
      most_ = pending_.size();  // the system has no more
      continue;
    }
    try {
      pending.address = PeerAddress(pending.socket);
    } catch (const Error&) {
      continue;  // it has left already
    }
    if (const auto user = user_ ? PeerUser(pending.socket) : user_; user != user_) {
      Refuse(pending.address, std::string(user ? "of another user" : "does not show its user") +
                                  ", and this job has no secret");
      continue;
    }
    pending.deadline = Clock::now() + kPatience;
    pending_.push_back(std::move(pending));
  }
}

std::string Acceptor::Advance(PendingPeer* pending) {
  const bool open = pending->inbox.Fill(pending->socket);
  if (pending->challenge.empty()) {
    const std::string reason = ReadHello(pending->inbox.bytes(), &pending->claim);
    if (!reason.empty()) {
      // It is sent away anyway.
      if (IsOtherVersion(pending->inbox.bytes())) TrySend(pending->socket, WriteVersion());
      return reason;
    }
    if (pending->inbox.full()) return Answer(pending);
    return open ? "" : "left silently";
  }
  if (!pending->inbox.full()) {
    if (open) return "";
    const int size = pending->claim.size;
    const std::string why = size == size_ ? "has a different secret?"
                                          : "its job has " + std::to_string(size) +
                                                " processes, this one " + std::to_string(size_);
    return RankText(pending->claim) + ", but left after our proof: " + why;
  }
  if (!ProofHolds(secret_, pending->hello, pending->challenge, pending->inbox.bytes())) {
    return RankText(pending->claim) + ", but does not know the secret";
  }
  if (pending->claim.to == rank_) return "";
  return RankText(pending->claim) + ", but looks for rank " + std::to_string(pending->claim.to);
}

std::string Acceptor::Answer(PendingPeer* pending) {
  pending->hello = pending->inbox.bytes();
  pending->challenge = WriteChallenge(secret_, pending->hello, rank_, size_);
  pending->inbox = Inbox(kProofBytes);
  try {
    SendAll(pending->socket, std::as_bytes(std::span(pending->challenge)), Clock::now());
  } catch (const Error& error) {
    return RankText(pending->claim) + ", but does not listen: " + error.what();
  }
  return "";
}

void Acceptor::Refuse(const Address& address, const std::string& reason) {
  const std::string text = address.host + " (" + reason;
  const auto found = refused_.find(text);
  if (found != refused_.end()) {
    ++found->second;
  } else if (refused_.size() < kReasons) {
    refused_[text] = 1;
  } else {
    ++more_refused_;
  }
}

std::string Acceptor::Refused() const {
  std::string text;
  for (const auto& [reason, times] : refused_) {
    text += (text.empty() ? "" : ", ") + reason +
            (times == 1 ? ")" : "; " + std::to_string(times) + " times)");
  }
  return more_refused_ == 0 ? text : text + " and " + std::to_string(more_refused_) + " more";
}

bool TrySend(const Socket& socket, const std::string& bytes, Clock::time_point deadline) {
  try {
    SendAll(socket, std::as_bytes(std::span(bytes)), deadline);
    return true;
  } catch (const Error&) {
    return false;
  }
}

Call::Call(Socket socket, const Claim& claim, std::string secret, std::string whom,
           std::optional<uint32_t> user)
    : socket_(std::move(socket)),
      secret_(std::move(secret)),
      whom_(std::move(whom)),
      hello_(WriteHello(claim)),
      user_(user) {}

void Call::Ask(Readiness* readiness) const { readiness->Add(socket_, !connected_); }

Call::State Call::Serve(const Readiness& readiness) {
  if (!readiness.Has(socket_)) return State::kGoing;
  if (!connected_) {
    try {
      EndConnect(socket_);
    } catch (const Error& error) {
      throw Error("cannot connect to " + whom_ + ": " + error.what());
    }
    connected_ = true;
    return TrySend(socket_, hello_) ? State::kGoing : State::kClosed;
  }
  if (!proven_) return Answer();
  try {
    if (!frames_.Fill(socket_)) return State::kGoing;
  } catch (const Error&) {
    return State::kClosed;
  }
  if (frames_.word() == Word::kFailed) throw ToldError(PlainText(frames_.payload()));
  if (frames_.word() == Word::kConnected) return State::kStands;
  throw Error(whom_ + " sent something unexpected");
}

Call::State Call::Answer() {
  bool open = inbox_.Fill(socket_);
  if (!inbox_.full()) return open ? State::kGoing : State::kClosed;
  try {
    if (inbox_.bytes().size() == kMagicBytes) {
      ReadChallenge(secret_, hello_, inbox_.bytes());
      inbox_.Want(kChallengeBytes);
      open = inbox_.Fill(socket_);
      if (!inbox_.full()) return open ? State::kGoing : State::kClosed;
    }
    ReadChallenge(secret_, hello_, inbox_.bytes());
    if (const auto user = user_ ? PeerUser(socket_) : user_; user != user_) {
      throw Error(
          std::string(user ? "belongs to another user" : "does not show its user") +
          ", and this job has no secret; set another MASTER_PORT, or give all processes the "
          "same CONTRAFLOW_SECRET");
    }
  } catch (const Error& error) {
    throw Error("what answers as " + whom_ + " " + error.what());
  }
  proven_ = true;
  return TrySend(socket_, WriteProof(secret_, hello_, inbox_.bytes())) ? State::kGoing
                                                                       : State::kClosed;
}

namespace {

constexpr std::chrono::milliseconds kFarewell{400};

}  // namespace

MeetingSide::MeetingSide(const MeetingPoint& the_point)
    : point(the_point), deadline(Clock::now() + the_point.timeout) {
  const auto size = static_cast<size_t>(point.size);
  members.rank = point.rank;
  members.size = point.size;
  members.roster.resize(size);
  members.watch.resize(size);
  if (point.mesh) members.mesh.resize(size);
}

void MeetingSide::TakeIn(Peer* peer) {
  const Claim& claim = peer->claim;
  std::vector<Socket>* sockets = nullptr;
  if (claim.purpose == Purpose::kWatch && point.rank == 1) sockets = &members.watch;
  if (claim.purpose == Purpose::kMesh && point.mesh) sockets = &members.mesh;
  const auto from = static_cast<size_t>(claim.from);
  // Nobody of the job does otherwise.
  if (sockets == nullptr || claim.from <= point.rank || (*sockets)[from]) return;
  // Where it has left, who watches over the meeting connection sees that too.
  if (!TrySend(peer->socket, WriteFrame(Word::kConnected))) return;
  (*sockets)[from] = std::move(peer->socket);
}

bool MeetingSide::HasAll(const std::vector<Socket>& sockets, int first) const {
  for (size_t i = static_cast<size_t>(first); i < sockets.size(); ++i) {
    if (!sockets[i] && static_cast<int>(i) != point.rank) return false;
  }
  return true;
}

void Part(std::span<Socket* const> sockets, const std::string& frame) {
  const Clock::time_point deadline = Clock::now() + kFarewell;
  std::vector<const Socket*> open;
  for (Socket* socket : sockets) {
    if (!*socket || !TrySend(*socket, frame)) continue;
    if (shutdown(socket->fd(), SHUT_WR) == 0) open.push_back(socket);
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
