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

Door::Door(Socket listener, std::string secret, int rank, int size)
    : listener_(std::move(listener)),
      secret_(std::move(secret)),
      rank_(rank),
      size_(size),
      most_(2 * static_cast<size_t>(size) + 64) {}

void Door::Ask(Readiness* readiness) const {
  if (HasRoom()) readiness->Add(listener_);
  for (const Stranger& stranger : strangers_) readiness->Add(stranger.socket);
}

std::vector<Visitor> Door::Serve(const Readiness& readiness) {
  std::vector<Visitor> visitors;
  std::vector<Stranger> left;
  for (Stranger& stranger : strangers_) {
    std::string reason;
    if (readiness.Has(stranger.socket)) reason = Advance(&stranger);
    const bool proven = reason.empty() && !stranger.challenge.empty() && stranger.inbox.full();
    if (proven) {
      visitors.push_back({std::move(stranger.socket), stranger.claim, stranger.address});
      continue;
    }
    if (reason.empty() && Clock::now() >= stranger.deadline) {
      reason = stranger.challenge.empty() ? "says nothing"
                                          : RankText(stranger.claim) + ", but does not prove it";
    }
    if (reason.empty()) {
      left.push_back(std::move(stranger));
    } else {
      Refuse(stranger.address, reason);
    }
  }
  strangers_ = std::move(left);
  if (readiness.Has(listener_)) LetIn();
  return visitors;
}

bool Door::HasRoom() const {
  return strangers_.size() < most_ ||
         Clock::now() >= strangers_.front().deadline - kPatience + kLeastPatience;
}

void Door::LetIn() {
  // Others wait outside, in the system's queue.
  while (HasRoom()) {
    if (strangers_.size() >= most_) {
      Refuse(strangers_.front().address, "is one of too many at a time");
      strangers_.erase(strangers_.begin());
    }
    Stranger stranger;
    try {
      stranger.socket = Accept(listener_);
      if (!stranger.socket) return;
    } catch (const Error&) {
      if (strangers_.empty()) throw;
      most_ = strangers_.size();  // the system has no more
      continue;
    }
    try {
      stranger.address = PeerAddress(stranger.socket);
    } catch (const Error&) {
      continue;  // it has left already
    }
    stranger.deadline = Clock::now() + kPatience;
    strangers_.push_back(std::move(stranger));
  }
}

std::string Door::Advance(Stranger* stranger) {
  const bool open = stranger->inbox.Fill(stranger->socket);
  if (stranger->challenge.empty()) {
    const std::string reason = ReadHello(stranger->inbox.bytes(), &stranger->claim);
    if (!reason.empty()) {
      if (IsOtherVersion(stranger->inbox.bytes())) {
        const std::string version = WriteVersion();
        try {
          SendAll(stranger->socket, std::as_bytes(std::span(version)), Clock::now());
        } catch (const Error&) {
          // It is sent away anyway.
        }
      }
      return reason;
    }
    if (stranger->inbox.full()) return Answer(stranger);
    return open ? "" : "left without a word";
  }
  if (!stranger->inbox.full()) {
    if (open) return "";
    const int size = stranger->claim.size;
    const std::string why = size == size_ ? "has another secret?"
                                          : "its job has " + std::to_string(size) +
                                                " processes, this one " + std::to_string(size_);
    return RankText(stranger->claim) + ", but left at our proof: " + why;
  }
  if (!ProofHolds(secret_, stranger->hello, stranger->challenge, stranger->inbox.bytes())) {
    return RankText(stranger->claim) + ", but does not know the secret";
  }
  if (stranger->claim.to == rank_) return "";
  return RankText(stranger->claim) + ", but looks for rank " + std::to_string(stranger->claim.to);
}

std::string Door::Answer(Stranger* stranger) {
  stranger->hello = stranger->inbox.bytes();
  stranger->challenge = WriteChallenge(secret_, stranger->hello, rank_, size_);
  stranger->inbox = Inbox(kProofBytes);
  try {
    SendAll(stranger->socket, std::as_bytes(std::span(stranger->challenge)), Clock::now());
  } catch (const Error& error) {
    return RankText(stranger->claim) + ", but does not listen: " + error.what();
  }
  return "";
}

void Door::Refuse(const Address& address, const std::string& reason) {
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

std::string Door::Refused() const {
  std::string text;
  for (const auto& [reason, times] : refused_) {
    text += (text.empty() ? "" : ", ") + reason +
            (times == 1 ? ")" : "; " + std::to_string(times) + " times)");
  }
  return more_refused_ == 0 ? text : text + " and " + std::to_string(more_refused_) + " more";
}

namespace {

/// What is sent here is small and fits into the buffers of a new connection.
bool Send(const Socket& socket, const std::string& bytes) {
  try {
    SendAll(socket, std::as_bytes(std::span(bytes)), Clock::now());
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

Call::Call(Socket socket, const Claim& claim, std::string secret, std::string whom)
    : socket_(std::move(socket)),
      secret_(std::move(secret)),
      whom_(std::move(whom)),
      hello_(WriteHello(claim)) {}

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
    return Send(socket_, hello_) ? State::kGoing : State::kClosed;
  }
  if (!proven_) return Answer();
  try {
    if (!frames_.Fill(socket_)) return State::kGoing;
  } catch (const Error&) {
    return State::kClosed;
  }
  if (frames_.word() == Word::kFailed) throw ToldError(frames_.payload());
  if (frames_.word() == Word::kConnected) return State::kStands;
  throw Error(whom_ + " says what makes no sense here");
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
  } catch (const Error& error) {
    throw Error("what answers as " + whom_ + " " + error.what());
  }
  proven_ = true;
  return Send(socket_, WriteProof(secret_, hello_, inbox_.bytes())) ? State::kGoing
                                                                    : State::kClosed;
}

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
