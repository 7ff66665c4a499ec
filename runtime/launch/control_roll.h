#pragma once

#include <string>
#include <vector>

#include "runtime/core/transport.h"
#include "runtime/launch/control_message.h"

namespace contraflow {

/// What one process knows of all that it is connected to, and of itself; and what has gone wrong.
class ControlRoll {
 public:
  explicit ControlRoll(int size) : entries_(static_cast<size_t>(size)) {}

  /// This process hears from `process`, or is that.
  void Watch(int process, Clock::time_point now);
  void Hear(int process, const Beat& beat, Clock::time_point now);
  /// What a process says when the job is stopped.
  void Answer(int process, const Beat& beat, Clock::time_point now);
  void Lose(int process, Clock::time_point now);
  bool IsLost(int process) const { return entries_[static_cast<size_t>(process)].lost; }
  void Finish(int process) { At(process).finished = true; }

  bool AllFinished() const;
  /// Whether nobody is left who may still answer.
  bool AllAnswered() const;
  /// When anything was done last, by anybody.
  Clock::time_point LastMove() const;
  /// As if something had been done now.
  void Excuse(Clock::time_point now);

  /// Adds a fault unless it is there already.
  void Add(const Fault& fault);
  const std::vector<Fault>& faults() const { return faults_; }

  Findings Find(const Fault& cause, Clock::time_point now) const;

 private:
  struct Entry {
    bool watched = false, heard = false, answered = false, lost = false, finished = false;
    Beat beat;
    Clock::time_point told, moved;  // when the beat came; when it last differed in its moves
    Clock::time_point gone{};       // of one that is lost
  };
  Entry& At(int process) { return entries_[static_cast<size_t>(process)]; }

  std::vector<Entry> entries_;
  std::vector<Fault> faults_;
};

}  // namespace contraflow
