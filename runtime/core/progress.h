#pragma once

#include <atomic>
#include <cstdint>

#include "runtime/core/transport.h"

namespace contraflow {

/// State of one rank, published by the thread that runs it for a watchdog to read: no lock, and no
/// wait. A reader sees each field as it was a moment ago, not all of one instant.
class Progress {
 public:
  /// `index` is an instruction of the rank's program, or kStart or kEnd.
  static constexpr int64_t kStart = -1, kEnd = -2;
  static constexpr int kNobody = -1;

  /// The rank comes to an instruction of a step; steps count from 1, 0 is before the first.
  void Enter(int step, int64_t index) {
    step_ = step;
    index_ = index;
    Move();
  }
  /// It waits for a process of the job (its number), and for the message of `instruction`, unless
  /// that is -1; until the next Enter or WaitFor(kNobody).
  void WaitFor(int process, int64_t instruction = -1) {
    waited_ = instruction;
    process_ = process;
    if (process == kNobody) Move();
  }
  /// Something was done: what counts for the watchdog.
  void Move() {
    since_ = Clock::now().time_since_epoch().count();
    moves_.fetch_add(1, std::memory_order_relaxed);
  }

  struct Snapshot {
    int step = 0;
    int64_t index = kStart;
    int process = kNobody;  ///< whom it waits for
    int64_t waited = -1;    ///< for which instruction's message
    Clock::time_point since;
    uint64_t moves = 0;  ///< grows with all that is done
  };
  Snapshot Read() const {
    return {step_, index_, process_, waited_, Clock::time_point(Clock::duration(since_.load())),
            moves_};
  }

 private:
  std::atomic<int> step_ = 0, process_ = kNobody;
  std::atomic<int64_t> index_ = kStart, waited_ = -1;
  std::atomic<Clock::rep> since_ = Clock::now().time_since_epoch().count();
  std::atomic<uint64_t> moves_ = 0;
};

}  // namespace contraflow
