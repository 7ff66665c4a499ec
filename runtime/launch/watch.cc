#include "runtime/launch/watch.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <utility>

#include "compiler/plan/error.h"
#include "compiler/plan/text.h"
#include "runtime/core/bytes.h"
#include "runtime/core/seconds.h"

namespace contraflow {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kTick{10}, kEndOfJob{1000};
/// Messages of one process that this main thread has not taken; at most two are ever under way.
constexpr size_t kMaxIncoming = 4;

/// Throws Error unless it is one of a job of this many processes. Its text steers no terminal.
Beat TakeBeat(ByteReader* bytes, int size) {
  Beat beat;
  beat.moves = bytes->Take<uint64_t>();
  beat.step = bytes->Take<int32_t>();
  beat.waits_for = bytes->Take<int32_t>();
  beat.age_ms = bytes->Take<uint32_t>();
  beat.position = PlainText(bytes->TakeText()).substr(0, kMaxSaid);
  if (beat.waits_for < -1 || beat.waits_for >= size) throw Error("names a process there is not");
  return beat;
}

double InSeconds(Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

Watch::Watch(LinkSet& links, const Progress& progress, const Control::Options& options)
    : links_(links),
      rank_(links.self()),
      size_(links.size()),
      progress_(progress),
      options_(options),
      members_(static_cast<size_t>(size_)) {
  for (Member& member : members_) member.told = member.moved = now_;
  At(rank_).watched = true;
  for (const Link& link : links_.all()) At(link.process()).watched = true;
  if (options_.catch_signals) catcher_.emplace();
}

Clock::time_point Watch::OnTurn(LinkSet::Lock& lock) {
  const Clock::time_point before = std::exchange(now_, Clock::now());
  // After a suspension of this process silence is nobody's fault.
  if (now_ - before > std::max<Clock::duration>(std::chrono::seconds(1), options_.silence / 4)) {
    if (phase_ == Phase::kWatching && !known_) {
      away_ = now_ - before;
      back_ = now_;
    }
    for (Member& member : members_) member.moved = now_;
    for (Link& link : links_.all()) link.Excuse(now_);
  }
  if (!over()) Advance();
  WakeOnce(lock);
  const bool calm = phase_ == Phase::kWatching && !known_;
  return calm ? next_beat_ : now_ + kTick;
}

void Watch::Advance() {
  ReadSignals();
  NoticeLosses();
  // A process that leaves while all is well is lost to the others. A stop goes on without it.
  if (leave_ && phase_ == Phase::kWatching && !known_) Over(Phase::kDone);
  if (phase_ == Phase::kWatching) Keep();
  if (phase_ == Phase::kWatching) Decide();
  if (phase_ == Phase::kStopped) CollectReports();
  if (phase_ == Phase::kEnding && (!links_.AnyOpen() || now_ >= end_at_)) End();
  if (phase_ == Phase::kFinishing && (!links_.AnyOpen() || now_ >= end_at_)) Over(Phase::kDone);
  if (!over() && known_) Enforce();
}

/// Wakes the main thread once the job must stop.
void Watch::WakeOnce(LinkSet::Lock& lock) {
  if (!stopped() || !wake) return;
  lock.unlock();
  {
    const std::lock_guard wake_lock(wake_mutex);
    lock.lock();
    const auto call = std::exchange(wake, nullptr);
    lock.unlock();
    if (call) call();
  }
  lock.lock();
}

void Watch::ReadSignals() {
  const int signal = catcher_ ? catcher_->Take() : 0;
  // The first one counts, and only if nothing else ends this process.
  const bool counts = signal_ == 0 && !failed_ && phase_ != Phase::kFinishing;
  if (signal != 0 && counts) {
    if (asked_ == 0 && options_.grace.count() > 0 && signal != SIGINT) {
      asked_ = signal;
      grace_until_ = now_ + options_.grace;
      return;
    }
    signal_ = signal;
    Tell(Own(FaultKind::kSignal, SignalName(signal)));
  } else if (asked_ != 0 && now_ >= grace_until_ && counts) {
    signal_ = asked_;
    Tell(Own(FaultKind::kSignal, SignalName(asked_) + ", and its step did not end within " +
                                     SecondsText(options_.grace)));
  }
}

void Watch::NoticeLosses() {
  for (const Link& link : links_.all()) {
    Member& member = At(link.process());
    if (link.open() || member.lost) continue;
    member.lost = now_;
    if (phase_ != Phase::kWatching) continue;
    Add({FaultKind::kLost, link.process(), link.reason()});
    Suspect();
  }
}

void Watch::OnTalk(int from, uint8_t channel, std::string bytes) {
  if (finished() || ended()) return;
  if (channel == kData) {
    std::deque<std::string>& incoming = Incoming(from);
    if (incoming.size() == kMaxIncoming) throw Error("it sent data that nobody asked for");
    ++pieces_;
    incoming.push_back(std::move(bytes));
    return;
  }
  if (channel > kFinished) throw Error("it sent something that is not a message of this job");
  ByteReader reader(bytes, "a message of the watch is");
  Beat beat;
  std::optional<Fault> fault;
  if (channel == kBeat || channel == kWords) beat = TakeBeat(&reader, size_);
  const bool faulty = channel == kFault || channel == kStop || channel == kWords;
  if (faulty && (channel != kWords || !reader.empty())) fault = ReadFault(&reader, size_);
  reader.RequireEnd();
  // The message is sound. Some are process 0's alone.
  switch (static_cast<Talk>(channel)) {
    case kBeat:
      NoteBeat(from, beat);
      break;
    case kFault:
      TakeFault(from, *fault);
      break;
    case kStop:
      if (from == 0 && phase_ == Phase::kWatching) Stop(*fault);
      break;
    case kWords:
      NoteBeat(from, beat);
      At(from).answered = true;
      if (fault) TakeFault(from, *fault);
      break;
    case kEnd:
      if (from == 0 && phase_ != Phase::kEnding) End();
      break;
    case kFinish:
      At(from).finished = true;
      break;
    case kFinished:
      if (from == 0 && At(rank_).finished && phase_ == Phase::kWatching) BeginFinishing();
      break;
    case kData:
      break;
  }
}

void Watch::TakeFault(int from, Fault fault) {
  fault.process = from;
  Add(fault);
  Suspect();
}

void Watch::Keep() {
  for (Link& link : links_.all()) {
    if (link.open() && now_ - link.heard() > options_.silence) {
      link.Close("it was silent for " + SecondsText(options_.silence) +
                 " (it is suspended, or its machine or network is gone)");
      away_ = {};  // this process was back in time to see it
    }
  }
  NoticeLosses();
  if (now_ < next_beat_) return;
  next_beat_ =
      now_ + std::max(milliseconds(1),
                      std::min({milliseconds(500), options_.timeout / 4, options_.silence / 4}));
  const Beat beat = Look();
  if (beat.step != step_) {
    if (step_ > 0) step_seconds_ = InSeconds(now_ - step_began_) / std::max(1, beat.step - step_);
    step_ = beat.step;
    step_began_ = now_;
  }
  NoteBeat(rank_, beat);
  SendToAll(kBeat, BytesOf(beat));
  const bool still =
      AllWatched([&](const Member& member) { return now_ - member.moved > options_.timeout; });
  if (!known_ && still && Leads()) {
    const std::string nobody = size_ > 1 ? "no rank has made progress for " : "no progress for ";
    Tell(Own(FaultKind::kTimeout, nobody + SecondsText(options_.timeout)));
  }
}

void Watch::NoteBeat(int process, const Beat& beat) {
  Member& member = At(process);
  if (member.beat.moves != beat.moves) member.moved = now_;
  member.beat = beat;
  member.told = now_;
}

void Watch::Add(const Fault& fault) {
  if (faults_.size() >= 4 * members_.size() + 4) return;  // more than any job has
  if (std::find(faults_.begin(), faults_.end(), fault) == faults_.end()) faults_.push_back(fault);
}

std::vector<Standing> Watch::Standings(Clock::time_point now) const {
  std::vector<Standing> standings;
  for (const Member& member : members_) {
    Standing& standing = standings.emplace_back();
    if (!member.watched) continue;
    standing.kind = member.answered ? Standing::Kind::kAnswered
                    : member.lost   ? Standing::Kind::kLost
                                    : Standing::Kind::kUnheard;
    standing.position = member.beat.position;
    standing.waits_for = member.beat.waits_for;
    // An answer is still true now. An older position is as old as it was told.
    standing.since = member.beat.age_ms / 1000.0;
    if (member.answered) standing.since += InSeconds(now - member.told);
    standing.heard = InSeconds(member.lost.value_or(now) - member.told);
  }
  return standings;
}

bool Watch::Leads() const {
  const Link* const link = links_.At(0);
  return link == nullptr || !link->open();
}

Fault Watch::Own(FaultKind kind, std::string text) const { return {kind, rank_, std::move(text)}; }

void Watch::BeginFinishing() {
  phase_ = Phase::kFinishing;
  end_at_ = now_ + kEndOfJob;
  known_.reset();
  backstop_.reset();
  if (rank_ == 0) SendToAll(kFinished);
  for (Link& link : links_.all()) {
    link.EndSending();
    links_.Flush(&link);  // the main thread may end the process at once
  }
  links_.changed().notify_all();
}

void Watch::Over(Phase phase) {
  phase_ = phase;
  catcher_.reset();
  links_.changed().notify_all();
}

std::string Watch::Status() const {
  char text[96];
  std::snprintf(text, sizeof text, "step %d", step_);
  std::string status = text;
  if (step_seconds_ > 0) {
    std::snprintf(text, sizeof text, ", %.3g s a step", step_seconds_);
    status += text;
  }
  return status + "\n" + StandingLines(options_.name, Standings(Clock::now()));
}

void Watch::Finish() {
  At(rank_).finished = true;
  SendTo(0, kFinish);
}

void Watch::SendData(int process, std::string bytes) {
  Link* const link = links_.At(process);
  link->PutLong(kData, std::move(bytes));
  links_.Flush(link);
}

std::string Watch::BytesOf(const Beat& beat) {
  ByteWriter bytes;
  bytes.Put(beat.moves).Put(beat.step).Put(beat.waits_for).Put(beat.age_ms);
  return bytes.PutText(beat.position.substr(0, kMaxSaid)).Take();
}

void Watch::SendTo(int process, Talk talk, const std::string& bytes) {
  if (Link* const link = links_.At(process)) link->Put(talk, bytes);
}

void Watch::SendToAll(Talk talk, const std::string& bytes) {
  for (Link& link : links_.all()) link.Put(talk, bytes);
}

Beat Watch::Look() const {
  const Progress::Snapshot at = progress_.Read();
  Beat beat;
  beat.moves = at.moves + pieces_;
  beat.step = at.step;
  beat.waits_for = at.process >= 0 && at.process < size_ ? at.process : -1;
  const auto age = std::chrono::duration_cast<milliseconds>(Clock::now() - at.since).count();
  beat.age_ms = static_cast<uint32_t>(std::clamp<int64_t>(age, 0, UINT32_MAX));
  beat.position = options_.describe(at);
  return beat;
}

}  // namespace contraflow
