#include "runtime/launch/acceptor.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "compiler/plan/error.h"

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

}  // namespace contraflow
