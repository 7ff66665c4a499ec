#include "runtime/launch/listener.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <utility>

#include "compiler/plan/error.h"
#include "runtime/core/quiet_thread.h"

namespace contraflow {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPatience{10'000}, kYoung{500};
constexpr size_t kReasons = 8;  // that are told apart

}  // namespace

Listener::Listener(const MeetingPoint& point)
    : point_(point),
      listener_(Listen(point.address)),
      most_(2 * static_cast<size_t>(point.size) + 64),
      thread_(StartQuietly("those who connect", [this] { Run(); })) {}

Listener::~Listener() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  listener_.Shutdown();  // wakes the thread
  thread_.join();        // nobody is let in any more
  std::unique_lock lock(mutex_);
  for (const Caller& caller : callers_) (void)shutdown(caller.fd, SHUT_RDWR);
  changed_.wait(lock, [&] { return callers_.empty(); });
}

std::optional<Listener::Peer> Listener::Next(Clock::time_point until) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_until(lock, until, [&] { return !peers_.empty(); })) return std::nullopt;
  Peer peer = std::move(peers_.front());
  peers_.pop_front();
  return peer;
}

std::string Listener::Refused() {
  const std::lock_guard lock(mutex_);
  std::string text;
  for (const auto& [reason, times] : refused_) {
    text += (text.empty() ? "" : ", ") + reason +
            (times == 1 ? ")" : "; " + std::to_string(times) + " times)");
  }
  return more_refused_ == 0 ? text : text + " and " + std::to_string(more_refused_) + " more";
}

void Listener::Serve(std::function<std::string()> answer) {
  const std::lock_guard lock(mutex_);
  answer_ = std::move(answer);
  peers_.clear();
}

void Listener::Run() {
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (over_) return;
    }
    // Others wait in the system's queue.
    if (!MakeRoom()) std::this_thread::sleep_for(milliseconds(20));
    try {
      if (!AwaitReady(listener_, false, Clock::now() + milliseconds(200))) continue;
      while (MakeRoom()) {
        Socket socket = Accept(listener_);
        if (!socket) break;
        LetIn(std::move(socket));
      }
    } catch (const Error&) {
      // The system has no room: callers that are here must go first.
      const std::lock_guard lock(mutex_);
      most_ = std::max<size_t>(1, callers_.size());
    }
  }
}

/// Returns whether another may come in. The oldest of too many goes, unless it has just come.
bool Listener::MakeRoom() {
  const std::lock_guard lock(mutex_);
  if (callers_.size() < most_) return true;
  const Caller& oldest = callers_.front();
  if (Clock::now() > oldest.since + kYoung) (void)shutdown(oldest.fd, SHUT_RDWR);
  return false;
}

void Listener::LetIn(Socket socket) {
  Callers::iterator caller;
  try {
    const Address from = PeerAddress(socket);
    const std::lock_guard lock(mutex_);
    caller = callers_.insert(callers_.end(), {socket.fd(), Clock::now(), from});
  } catch (const Error&) {
    return;  // it has left already
  }
  try {
    const auto shared = std::make_shared<Socket>(std::move(socket));
    StartQuietly("one who connects", [this, caller, shared] {
      Answer(caller, std::move(*shared));
    }).detach();
  } catch (const Error&) {
    const std::lock_guard lock(mutex_);
    callers_.erase(caller);
    throw;
  }
}

/// On a thread of its own.
void Listener::Answer(Callers::iterator caller, Socket socket) {
  Peer peer{std::move(socket), {}, caller->from};
  std::string reason;
  try {
    Admit(&peer);
  } catch (const Socket::Closed&) {
    reason = "left before it had proven anything";
  } catch (const RefusedError& error) {
    reason = error.what();
    SendAndClose({&peer.stream, 1}, Word::kFailed, reason);
  } catch (const Error& error) {
    reason = error.what();
    if (reason == "timed out") reason = "said nothing for 10 s";
  } catch (const std::bad_alloc&) {
    reason = "came when memory was short";
  }
  // The descriptor must not be shut down once it can be another's. This thread's last call on the
  // listener is under the lock.
  const std::lock_guard lock(mutex_);
  callers_.erase(caller);
  if (!reason.empty()) {
    const std::string text = peer.from.host + " (" + reason;
    const bool room = refused_.size() < kReasons || refused_.contains(text);
    ++(room ? refused_[text] : more_refused_);
  } else if (peer.claim.purpose != Purpose::kAsk && !answer_) {
    try {
      // So few bytes never wait. The welcome and the place in the queue are one: a peer that was
      // welcome is never forgotten.
      SendWord(&peer.stream, Word::kWelcome, "", Clock::now());
      peers_.push_back(std::move(peer));
    } catch (const std::exception&) {
      // It has left; or memory is short, and it comes again.
    }
  }
  changed_.notify_all();
}

/// Hears a caller, and answers where it only asks. Throws the reason to send it away.
void Listener::Admit(Peer* peer) {
  Socket* const stream = &peer->stream;
  const Clock::time_point deadline = Clock::now() + kPatience;
  if (point_.user) {
    const auto user = PeerUser(*stream);
    if (user != point_.user) throw Error(ForeignUser(user));
  }
  peer->claim = Authenticate(stream, point_, deadline);
  const bool asks = peer->claim.purpose == Purpose::kAsk;
  std::function<std::string()> answer;
  {
    const std::lock_guard lock(mutex_);
    answer = answer_;
  }
  if (asks != static_cast<bool>(answer)) {
    throw RefusedError(asks ? "the job has not begun"
                            : "the job has begun without rank " + std::to_string(peer->claim.from));
  }
  if (!asks) return RequireFit(peer->claim);
  SendWord(stream, Word::kWelcome, "", deadline);
  SendWord(stream, Word::kStatus, answer(), deadline);
  // A connection that is closed here first does not show its user any more.
  std::array<std::byte, 1> nothing;
  try {
    stream->ReadAll(nothing, Clock::now() + std::chrono::seconds(1));
  } catch (const Error&) {
    return;
  }
}

/// Throws if a process of the job does not belong to this meeting.
void Listener::RequireFit(const Claim& claim) {
  if (claim.size != point_.size) {
    throw RefusedError("rank " + std::to_string(claim.from) + " was started as one of " +
                       std::to_string(claim.size) + " processes, rank 0 as one of " +
                       std::to_string(point_.size) +
                       "; start all with the same number of processes");
  }
  if (claim.from == 0) {
    throw RefusedError("rank 0 is here already, at " + address().Text() +
                       "; give every process its own number (RANK, or what the launcher sets)");
  }
}

}  // namespace contraflow
