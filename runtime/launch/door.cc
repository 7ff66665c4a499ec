#include "runtime/launch/door.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "compiler/plan/error.h"
#include "compiler/plan/text.h"
#include "runtime/core/bytes.h"
#include "runtime/core/digest.h"
#include "runtime/core/seconds.h"
#include "runtime/transport/link_set.h"

namespace contraflow {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPatience{10'000}, kYoung{500}, kFarewell{400};
constexpr size_t kReasons = 8;         // that are told apart
constexpr size_t kMostSaid = 1 << 20;  // bytes of a frame; a roster of many thousands fits
constexpr std::array<char, 8> kMagic = {'C', 'F', 'M', 'E', 'E', 'T', '\r', '\n'};
constexpr uint32_t kVersion = 3;

/// The first words of the side that connects. Version and all before it never change.
struct Hello {
  std::array<char, 8> magic = kMagic;
  uint32_t version = kVersion;
  Claim claim;
  Digest job{};
};
static_assert(sizeof(Hello) == 8 + 7 * 4 + 32);

std::span<std::byte> BytesOf(auto& value) { return std::as_writable_bytes(std::span(&value, 1)); }

std::string RankText(const Claim& claim) { return "says it is rank " + std::to_string(claim.from); }

std::string Foreign(const std::optional<uint32_t>& user) {
  return std::string(user ? "belongs to another user" : "does not show its user") +
         ", and this job has no secret";
}

}  // namespace

void Say(Stream* stream, Word word, std::string_view text, Clock::time_point deadline) {
  const std::string bytes =
      ByteWriter().Put(word).Put(static_cast<uint32_t>(text.size())).Take() + std::string(text);
  stream->WriteAll(std::as_bytes(std::span(bytes)), deadline);
}

Said Hear(Stream* stream, Clock::time_point deadline) {
  std::array<uint32_t, 2> head{};
  stream->ReadAll(BytesOf(head), deadline);
  if (head[0] > static_cast<uint32_t>(Word::kStatus) || head[1] > kMostSaid) {
    throw Error("sent something unexpected");
  }
  Said said{static_cast<Word>(head[0]), ""};
  // Grows with what comes, and no further.
  while (said.text.size() < head[1]) {
    std::array<std::byte, 4096> piece;
    const size_t count = std::min(piece.size(), head[1] - said.text.size());
    stream->ReadAll(std::span(piece).first(count), deadline);
    said.text.append(reinterpret_cast<const char*>(piece.data()), count);
  }
  const bool ends = said.word == Word::kFailed || said.word == Word::kLost;
  if (ends && said.text.empty()) throw Error("sent something unexpected");
  return said;
}

void Part(std::deque<Stream> streams, Word word, std::string_view text) {
  const Clock::time_point deadline = Clock::now() + kFarewell;
  for (Stream& stream : streams) {
    try {
      Say(&stream, word, text, Clock::now());
      stream.EndSending();
    } catch (const Error&) {
      stream = Stream();
    }
  }
  for (Stream& stream : streams) {
    try {
      std::array<std::byte, 4096> piece;
      while (stream && Clock::now() < deadline && AwaitReady(stream.socket(), false, deadline)) {
        stream.Read(piece);
      }
    } catch (const Error&) {
      continue;  // it has closed
    }
  }
}

Stream Greet(Socket socket, const Claim& claim, const MeetingPoint& point, const std::string& whom,
             Clock::time_point deadline) {
  Said said;
  Stream stream;
  try {
    stream = Stream::Connect(std::move(socket), point.secret, deadline);
    Hello hello;
    hello.claim = claim;
    hello.job = Sha256(point.job);
    stream.WriteAll(BytesOf(hello), deadline);
    said = Hear(&stream, deadline);
  } catch (const Stream::Closed&) {
    return {};
  } catch (const Error& error) {
    const std::string what = error.what();
    if (what == "timed out") {
      throw Error("what answers as " + whom + " did not answer within " +
                  SecondsText(point.timeout) +
                  ": it is stopped, or another program uses the port; end it, or set another "
                  "MASTER_PORT");
    }
    throw Error("what answers as " + whom +
                " does not know the secret of this job, or is another program; give all processes "
                "the same secret, or set another MASTER_PORT");
  }
  if (said.word == Word::kFailed) throw ToldError(PlainText(said.text));
  const auto user = point.user ? PeerUser(stream.socket()) : point.user;
  if (user != point.user) {
    throw Error("what answers as " + whom + " " + Foreign(user) +
                "; set another MASTER_PORT, or give all processes the same CONTRAFLOW_SECRET");
  }
  const std::string self = std::to_string(claim.to);
  if (said.word != Word::kWelcome || said.text != self) {
    throw Error("what answers as " + whom + " is not rank " + self + " of this job");
  }
  return stream;
}

Door::Door(const Address& at, const MeetingPoint& point)
    : point_(point),
      listener_(Listen(at)),
      bell_(NewBell()),
      most_(2 * static_cast<size_t>(point.size) + 64),
      thread_(StartQuietly("those who connect", [this] { Run(); })) {}

Door::~Door() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  Ring(bell_);
  thread_.join();  // from here on nobody is let in
  std::unique_lock lock(mutex_);
  for (const Caller& caller : callers_) (void)shutdown(caller.fd, SHUT_RDWR);
  changed_.wait(lock, [&] { return callers_.empty(); });
}

std::optional<Door::Visitor> Door::Next(Clock::time_point until) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_until(lock, until, [&] { return !visitors_.empty(); })) return std::nullopt;
  Visitor visitor = std::move(visitors_.front());
  visitors_.pop_front();
  return visitor;
}

void Door::Refuse(const Address& from, const std::string& reason) {
  const std::string text = from.host + " (" + reason;
  const std::lock_guard lock(mutex_);
  const auto found = refused_.find(text);
  if (found != refused_.end()) {
    ++found->second;
  } else if (refused_.size() < kReasons) {
    refused_[text] = 1;
  } else {
    ++more_refused_;
  }
}

std::string Door::Refused() {
  const std::lock_guard lock(mutex_);
  std::string text;
  for (const auto& [reason, times] : refused_) {
    text += (text.empty() ? "" : ", ") + reason +
            (times == 1 ? ")" : "; " + std::to_string(times) + " times)");
  }
  return more_refused_ == 0 ? text : text + " and " + std::to_string(more_refused_) + " more";
}

void Door::Serve(std::function<std::string()> answer) {
  const std::lock_guard lock(mutex_);
  answer_ = std::move(answer);
  visitors_.clear();
}

void Door::Run() {
  for (;;) {
    pollfd polled[2] = {{bell_.fd(), POLLIN, 0}, {listener_.fd(), POLLIN, 0}};
    const bool room = MakeRoom();
    // Others wait outside, in the system's queue.
    poll(polled, room ? 2 : 1, room ? 200 : 20);
    {
      const std::lock_guard lock(mutex_);
      if (over_) return;
    }
    if (!room || polled[1].revents == 0) continue;
    try {
      while (Socket socket = Accept(listener_)) LetIn(std::move(socket));
    } catch (const Error&) {
      // The system has no more: those who are here must go first.
      const std::lock_guard lock(mutex_);
      most_ = std::max<size_t>(1, callers_.size());
    }
  }
}

/// Whether another may come in. Where there are too many the oldest goes, unless it has just come.
bool Door::MakeRoom() {
  const std::lock_guard lock(mutex_);
  if (callers_.size() < most_) return true;
  const Caller& oldest = callers_.front();
  if (Clock::now() > oldest.since + kYoung) (void)shutdown(oldest.fd, SHUT_RDWR);
  return false;
}

void Door::LetIn(Socket socket) {
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
void Door::Answer(Callers::iterator caller, Socket socket) {
  Visitor visitor{{}, {}, caller->from};
  std::string reason;
  try {
    reason = Admit(&visitor.stream, std::move(socket), &visitor.claim);
  } catch (const Stream::Closed&) {
    reason = "left before it had proven anything";
  } catch (const Error& error) {
    reason = error.what();
    if (reason == "timed out") reason = "said nothing for 10 s";
  } catch (const std::bad_alloc&) {
    reason = "came when memory was short";
  }
  if (!reason.empty()) Refuse(visitor.from, reason);
  // Before the descriptor can belong to another, nobody may shut it down any more; and the last of
  // this thread's calls on the door is under the lock.
  const std::lock_guard lock(mutex_);
  callers_.erase(caller);
  if (reason.empty() && visitor.claim.purpose != Purpose::kAsk && !answer_) {
    try {
      // So few bytes never wait. Who has heard them is here for Next: nobody is welcome and then
      // forgotten.
      Say(&visitor.stream, Word::kWelcome, std::to_string(point_.rank), Clock::now());
      visitors_.push_back(std::move(visitor));
    } catch (const std::exception&) {
      // It has left; or memory is short, and it comes again.
    }
  }
  changed_.notify_all();
}

/// What it is to be sent away for, or "".
std::string Door::Admit(Stream* stream, Socket socket, Claim* claim) {
  const Clock::time_point deadline = Clock::now() + kPatience;
  if (const auto user = point_.user ? PeerUser(socket) : point_.user; user != point_.user) {
    return Foreign(user);
  }
  *stream = Stream::Accept(std::move(socket), point_.secret, deadline);
  Hello hello;
  const std::span<std::byte> bytes = BytesOf(hello);
  stream->ReadAll(bytes.first(kMagic.size()), deadline);
  if (hello.magic != kMagic) return "does not speak this protocol";
  stream->ReadAll(bytes.subspan(kMagic.size()), deadline);
  const auto sorry = [&](const std::string& text) {
    std::deque<Stream> streams;
    streams.push_back(std::move(*stream));
    Part(std::move(streams), Word::kFailed, text);
    return text;
  };
  if (hello.version != kVersion) {
    return sorry("one side speaks version " + std::to_string(hello.version) +
                 " of the protocol, the other version " + std::to_string(kVersion) +
                 "; start the same program everywhere");
  }
  *claim = hello.claim;
  const bool asks = claim->purpose == Purpose::kAsk;
  const bool sane =
      claim->purpose <= Purpose::kAsk && claim->from >= 0 && claim->size > 0 && claim->mesh <= 1 &&
      (asks || (claim->from < claim->size && claim->port > 0 && claim->port <= 65535));
  if (!sane) return "sent something unexpected";
  if (!point_.job.empty() && !asks && hello.job != Sha256(point_.job)) {
    return sorry(RankText(*claim) + ", but belongs to another job; set another MASTER_PORT");
  }
  std::function<std::string()> answer;
  {
    const std::lock_guard lock(mutex_);
    answer = answer_;
  }
  if (asks != static_cast<bool>(answer)) {
    return sorry(asks ? "the job has not begun"
                      : "the job has begun without rank " + std::to_string(claim->from));
  }
  if (const std::string misfit = asks ? "" : Misfit(*claim); !misfit.empty()) return sorry(misfit);
  if (asks) {
    Say(stream, Word::kWelcome, std::to_string(point_.rank), deadline);
    Say(stream, Word::kStatus, answer(), deadline);
    // Once closed here, the connection would show its user to nobody any more.
    std::array<std::byte, 1> nothing;
    try {
      stream->ReadAll(nothing, Clock::now() + std::chrono::seconds(1));
    } catch (const Error&) {
      return "";
    }
  }
  return "";
}

/// Why a process that belongs to the job is not one of this meeting, or "".
std::string Door::Misfit(const Claim& claim) {
  const std::string rank = "rank " + std::to_string(claim.from);
  const std::string self = "rank " + std::to_string(point_.rank);
  if (claim.to != point_.rank) {
    return rank + " looks for rank " + std::to_string(claim.to) + " and found " + self;
  }
  if (claim.size != point_.size) {
    return rank + " was started as one of " + std::to_string(claim.size) + " processes, " + self +
           " as one of " + std::to_string(point_.size) +
           "; start all with the same number of processes";
  }
  if ((claim.mesh != 0) != point_.mesh) {
    return rank + " and " + self + " were told different transports; give all processes the same " +
           "`transport`";
  }
  if (claim.from == point_.rank) {
    return self + " is here already, at " + address().Text() +
           "; give every process its own number (RANK, or what the launcher sets)";
  }
  if (claim.purpose == Purpose::kLink ? claim.from < point_.rank : point_.rank != 0) {
    return rank + " has no reason to connect to " + self;
  }
  return "";
}

}  // namespace contraflow
