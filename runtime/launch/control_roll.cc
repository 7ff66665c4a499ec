#include "runtime/launch/control_roll.h"

#include <algorithm>

namespace contraflow {
namespace {

double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

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
      standing.since = entry.answered ? age + Seconds(now - entry.told) : age;
      standing.heard = Seconds((entry.lost ? entry.gone : now) - entry.told);
    }
    findings.standings.push_back(standing);
  }
  return findings;
}

}  // namespace contraflow
