#include "runtime/launch/call.h"

#include <span>
#include <utility>

namespace contraflow {
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

}  // namespace contraflow
