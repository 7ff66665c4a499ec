#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "compiler/plan/plan.h"
#include "kernels/host/buffer.h"
#include "runtime/core/executor.h"
#include "runtime/core/value_places.h"
#include "runtime/host/arenas.h"

namespace contraflow {

/// Offloaded values of one rank, in an allocation of its own that stands for the memory of the
/// host, and the two threads that copy there and back, each in the order of the program. Without
/// OFFLOAD in the plan there are none.
class HostCopies {
 public:
  /// All that is passed must outlive it.
  HostCopies(const Plan& plan, int rank, const ValuePlaces& places, HostArenas* arenas);
  HostCopies(const HostCopies&) = delete;
  ~HostCopies();

  void BeginStep();
  /// Like those of Backend.
  void Start(const Instruction& copy, size_t offloads);
  void Await(Op op, size_t count);
  CopyTimes TimesOf(Op op, size_t number) const;

 private:
  struct Copy {
    const HostArenas::Uses* uses = nullptr;
    size_t offset = 0;
    size_t offloads = 0, reloads = 0;  ///< that must have ended before it begins
    CopyTimes times;
  };
  struct Lane {
    std::vector<Copy> copies;  ///< of a step, in their order
    size_t started = 0, ended = 0;
    std::thread thread;
  };

  Lane& LaneOf(Op op) { return op == Op::OFFLOAD ? offload_ : reload_; }
  size_t BytesOf(const HostArenas::Uses& uses) const;
  void Serve(Op op);
  CopyTimes Run(Op op, const Copy& copy);
  void Stop();

  HostArenas& arenas_;
  Lane offload_, reload_;
  Buffer<std::byte> memory_;
  mutable std::mutex mutex_;  // of what follows, and of the counts and times of the lanes
  std::condition_variable changed_;
  bool stopped_ = false;
};

}  // namespace contraflow
