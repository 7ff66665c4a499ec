#include "runtime/launch/control_thread.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "compiler/plan/error.h"

namespace contraflow {
namespace {

double InSeconds(Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

bool Same(const Fault& a, const Fault& b) {
  return a.kind == b.kind && a.process == b.process && a.about == b.about && a.text == b.text;
}

}  // namespace

void ControlRoll::Watch(int process, Clock::time_point now) {
  Entry& entry = At(process);
  entry.watched = true;
  entry.told = entry.moved = now;
}

void ControlRoll::Hear(int process, const Beat& beat, Clock::time_point now) {
  Entry& entry = At(process);
  if (!entry.heard || entry.beat.moves != beat.moves) entry.moved = now;
  entry.heard = true;
  entry.beat = beat;
  entry.told = now;
}

void ControlRoll::Answer(int process, const Beat& beat, Clock::time_point now) {
  Hear(process, beat, now);
  At(process).answered = true;
}

void ControlRoll::Lose(int process, Clock::time_point now) {
  Entry& entry = At(process);
  if (entry.lost) return;
  entry.lost = true;
  entry.gone = now;
}

bool ControlRoll::AllFinished() const {
  return std::all_of(entries_.begin(), entries_.end(),
                     [](const Entry& entry) { return !entry.watched || entry.finished; });
}

bool ControlRoll::AllAnswered() const {
  return std::all_of(entries_.begin(), entries_.end(), [](const Entry& entry) {
    return !entry.watched || entry.answered || entry.lost;
  });
}

Clock::time_point ControlRoll::LastMove() const {
  Clock::time_point last{};
  for (const Entry& entry : entries_) {
    if (entry.watched) last = std::max(last, entry.moved);
  }
  return last;
}

void ControlRoll::Excuse(Clock::time_point now) {
  for (Entry& entry : entries_) entry.moved = now;
}

void ControlRoll::Add(const Fault& fault) {
  for (const Fault& other : faults_) {
    if (Same(other, fault)) return;
  }
  faults_.push_back(fault);
}

Findings ControlRoll::Find(const Fault& cause, Clock::time_point now) const {
  Findings findings;
  findings.cause = cause;
  for (const Fault& fault : faults_) {
    if (!Same(fault, cause)) findings.later.push_back(fault);
  }
  for (const Entry& entry : entries_) {
    Standing standing;
    if (entry.watched) {
      standing.kind = entry.answered ? Standing::Kind::kAnswered
                      : entry.lost   ? Standing::Kind::kLost
                                     : Standing::Kind::kUnheard;
      const double age = entry.beat.age_ms / 1000.0;
      standing.position = entry.beat.position;
      standing.waits_for = entry.beat.waits_for;
      // A position that was told in time is still held; an older one is as old as it was told.
      standing.since = entry.answered ? age + InSeconds(now - entry.told) : age;
      standing.heard = InSeconds((entry.lost ? entry.gone : now) - entry.told);
    }
    findings.standings.push_back(standing);
  }
  return findings;
}

namespace {

using Kind = ControlMessage::Kind;
using std::chrono::milliseconds;

constexpr milliseconds kTick{10};

std::string Whole(milliseconds duration) {
  if (duration.count() % 1000 == 0) return std::to_string(duration.count() / 1000) + " s";
  return SecondsText(std::chrono::duration<double>(duration).count());
}

}  // namespace

void ControlDesk::Ring() const {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t count = ::write(bell.fd(), &one, sizeof one);
}

ControlThread::ControlThread(Membership membership, const Progress& progress,
                             Control::Options options, ControlDesk& desk)
    : rank_(membership.rank),
      size_(membership.size),
      progress_(progress),
      options_(std::move(options)),
      desk_(desk),
      links_(static_cast<size_t>(membership.size)),
      roll_(membership.size) {
  roll_.Watch(rank_, now_);
  for (int p = 0; p < size_; ++p) {
    Socket& socket = membership.watch[static_cast<size_t>(p)];
    if (p == rank_ || !socket) continue;
    links_[static_cast<size_t>(p)] = std::make_unique<ControlLink>(std::move(socket));
    roll_.Watch(p, now_);
  }
  if (options_.catch_signals) catcher_.emplace();
}

void ControlThread::Run() {
  while (phase_ != Phase::kOver) {
    Wait();
    const Clock::time_point before = std::exchange(now_, Clock::now());
    // If this process itself was stopped for a while, silence is nobody's fault.
    if (now_ - before > std::max<Clock::duration>(std::chrono::seconds(1), options_.silence / 4)) {
      away_ = now_ - before;
      for (const auto& link : links_) {
        if (link != nullptr) link->Excuse(now_);
      }
      roll_.Excuse(now_);
    }
    ReadSignals();
    ReadLinks();
    ReadDesk();
    if (phase_ == Phase::kWatching) Keep();
    if (phase_ == Phase::kWatching) Decide();
    if (phase_ == Phase::kStopped) GoOn();
    if (phase_ == Phase::kEnding && (!AnyLink() || now_ >= end_at_)) End();
    if (phase_ == Phase::kFinishing && (!AnyLink() || now_ >= end_at_)) phase_ = Phase::kOver;
    if (phase_ != Phase::kOver && known_) Enforce();
    for (const auto& link : links_) {
      if (link != nullptr) link->Flush();
    }
  }
  links_.clear();
  catcher_.reset();
}

void ControlThread::Wait() {
  std::vector<pollfd> polled = {{desk_.bell.fd(), POLLIN, 0}};
  if (catcher_) polled.push_back({catcher_->fd(), POLLIN, 0});
  for (const auto& link : links_) {
    if (link == nullptr || !link->open()) continue;
    const int events = POLLIN | (link->Unsent() ? POLLOUT : 0);
    polled.push_back({link->fd(), static_cast<short>(events), 0});
  }
  const bool calm = phase_ == Phase::kWatching && !known_;
  const Clock::duration pause = calm ? next_beat_ - Clock::now() : kTick;
  const auto ms = std::chrono::ceil<milliseconds>(pause).count();
  ::poll(polled.data(), polled.size(), static_cast<int>(std::clamp<int64_t>(ms, 0, 500)));
}

void ControlThread::ReadSignals() {
  if (!catcher_) return;
  while (const int signal = catcher_->Take()) {
    {
      const std::lock_guard lock(desk_.mutex);
      // The first one counts, and only if nothing else ends this process.
      if (signal_ != 0 || desk_.failed || phase_ == Phase::kFinishing) continue;
    }
    signal_ = signal;
    Tell(Own(FaultKind::kSignal, SignalName(signal)));
  }
}

void ControlThread::ReadDesk() {
  uint64_t rung = 0;
  [[maybe_unused]] const ssize_t count = ::read(desk_.bell.fd(), &rung, sizeof rung);
  std::vector<ControlDesk::Parcel> outgoing;
  bool finish = false, leave = false;
  std::optional<Fault> failed;
  {
    const std::lock_guard lock(desk_.mutex);
    outgoing.swap(desk_.outgoing);
    finish = desk_.finish;
    leave = desk_.leave;
    failed = desk_.failed;
  }
  for (const ControlDesk::Parcel& parcel : outgoing) {
    if (ControlLink* link = Link(parcel.process)) link->SendBytes(parcel.operation, parcel.bytes);
  }
  if (finish && !finish_told_) {
    finish_told_ = true;
    roll_.Finish(rank_);
    SendTo(0, ControlMessage(Kind::kFinish));
  }
  if (failed && phase_ == Phase::kWatching && !fault_told_) {
    fault_told_ = true;
    Tell(*failed);
  }
  // Who leaves while all is well is lost to the others; otherwise what was begun goes its way.
  if (leave && phase_ == Phase::kWatching && !known_) phase_ = Phase::kOver;
}

void ControlThread::ReadLinks() {
  std::vector<ControlMessage> messages;
  for (int p = 0; p < size_ && phase_ != Phase::kOver; ++p) {
    ControlLink* const link = Link(p);
    if (link == nullptr || !link->open()) continue;
    messages.clear();
    link->Receive(&messages, &pieces_);
    for (ControlMessage& message : messages) {
      if (phase_ == Phase::kOver) return;
      if (phase_ != Phase::kFinishing) Take(p, message);
    }
    NoticeLoss(p);
  }
}

void ControlThread::NoticeLoss(int process) {
  if (Link(process) == nullptr || Link(process)->open() || roll_.IsLost(process)) return;
  roll_.Lose(process, now_);
  if (phase_ != Phase::kWatching) return;
  Fault fault{FaultKind::kLost, process, -1, true, Link(process)->reason()};
  roll_.Add(fault);
  Suspect();
  // The other hub sees it itself, unless it is only this connection that broke.
  fault.about = std::exchange(fault.process, rank_);
  fault.seen = false;
  SendToHubs(ControlMessage(Kind::kFault, fault));
}

bool ControlThread::Plausible(const ControlMessage& message) const {
  const auto known = [&](int process) { return process >= -1 && process < size_; };
  return known(message.beat.waits_for) && known(message.fault.about) &&
         known(message.fault.process) && message.fault.process >= 0;
}

void ControlThread::Take(int from, ControlMessage& message) {
  if (!Plausible(message)) {
    Link(from)->Close("it sent something that is not a message of this job");
    return;
  }
  if (message.kind == Kind::kFault || message.kind == Kind::kWords) {
    message.fault.process = from;
    message.fault.seen = false;
  }
  switch (message.kind) {
    case Kind::kBeat:
      roll_.Hear(from, message.beat, now_);
      break;
    case Kind::kFault:
      roll_.Add(message.fault);
      Suspect();
      break;
    case Kind::kStop:
      if (from >= kHubs) break;
      stop_heard_ = true;
      if (from < rank_) took_over_ = false;
      if (phase_ == Phase::kWatching) Stop(message.fault);
      break;
    case Kind::kWords:
      roll_.Answer(from, message.beat, now_);
      if (message.has_fault) roll_.Add(message.fault);
      break;
    case Kind::kEnd:
      if (from >= kHubs || reported_) break;
      end_heard_ = true;
      End();
      break;
    case Kind::kPart:  // Links join them.
    case Kind::kData:
      TakeData(from, message);
      break;
    case Kind::kFinish:
      roll_.Finish(from);
      break;
    case Kind::kFinished:
      if (from == 0 && finish_told_ && phase_ == Phase::kWatching) BeginFinishing();
      break;
  }
}

void ControlThread::TakeData(int from, ControlMessage& message) {
  const std::lock_guard lock(desk_.mutex);
  std::optional<ControlDesk::Parcel>& place = desk_.incoming[static_cast<size_t>(from)];
  if (place || (rank_ != 0 && from != 0)) {
    Link(from)->Close("it sent data that nobody asked for");
    return;
  }
  place = ControlDesk::Parcel{from, message.operation, std::move(message.bytes)};
  desk_.changed.notify_all();
}

void ControlThread::Keep() {
  for (int p = 0; p < size_; ++p) {
    ControlLink* const link = Link(p);
    if (link == nullptr) continue;
    if (link->open() && now_ - link->heard() > options_.silence) {
      link->Close("it was silent for " + Whole(options_.silence) +
                  " (it is suspended, or its machine or network is gone)");
    }
    NoticeLoss(p);
  }
  if (now_ < next_beat_) return;
  next_beat_ =
      now_ + std::max(milliseconds(1),
                      std::min({milliseconds(500), options_.timeout / 4, options_.silence / 4}));
  ControlMessage message(Kind::kBeat);
  message.beat = Look();
  roll_.Hear(rank_, message.beat, now_);
  SendToAll(message);
  if (!known_ && now_ - roll_.LastMove() > options_.timeout && Leads()) {
    const std::string nobody = size_ > 1 ? "no rank has made progress for " : "no progress for ";
    Tell(Own(FaultKind::kTimeout, nobody + Whole(options_.timeout)));
  }
}

bool ControlThread::AnyLink() const {
  return std::any_of(links_.begin(), links_.end(),
                     [](const auto& link) { return link != nullptr && link->open(); });
}

void ControlThread::SendTo(int process, const ControlMessage& message) {
  if (ControlLink* const link = Link(process)) link->Send(message);
}

void ControlThread::SendToHubs(const ControlMessage& message) {
  for (int hub = 0; hub < std::min(kHubs, size_); ++hub) SendTo(hub, message);
}

void ControlThread::SendToAll(const ControlMessage& message) {
  for (const auto& link : links_) {
    if (link != nullptr) link->Send(message);
  }
}

Beat ControlThread::Look() const {
  const Progress::Snapshot at = progress_.Read();
  Beat beat;
  beat.moves = at.moves + pieces_;
  beat.waits_for = at.process >= 0 && at.process < size_ ? at.process : -1;
  const auto age = std::chrono::duration_cast<milliseconds>(Clock::now() - at.since).count();
  beat.age_ms = static_cast<uint32_t>(std::clamp<int64_t>(age, 0, UINT32_MAX));
  beat.position = options_.describe(at);
  return beat;
}

}  // namespace contraflow
