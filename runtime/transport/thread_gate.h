#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "runtime/core/transport.h"

namespace contraflow {

/// Threads that come together to work on each other's memory, again and again: nobody begins before
/// all are here, nobody leaves before all have finished. Guarded by the gate's mutex.
struct Meeting {
  Meeting() = default;
  explicit Meeting(std::vector<int> who) : workers(std::move(who)), here(workers.size()) {}

  std::vector<int> workers;  ///< who takes part
  std::vector<char> here;    ///< those of them that have come this time
  size_t arrived = 0, finished = 0;
  int64_t round = 0;  ///< how many times they have met and left
  Clock::time_point last_arrival{};
};

/// Where the threads of a run wait for each other. One mutex guards all that they share; each
/// worker (one device) sleeps on a condition variable of its own. Nothing here allocates memory
/// once it stands, but messages of errors.
class ThreadGate {
 public:
  using Lock = std::unique_lock<std::mutex>;

  /// A worker gives up when it waits while no worker has called for `timeout`.
  ThreadGate(int ranks, int replicas, int members, std::chrono::milliseconds timeout);

  const int ranks, replicas, members;

  /// The number of a device: replica by replica, member by member, rank by rank.
  int WorkerOf(Device device) const {
    return (device.replica * members + device.member) * ranks + device.rank;
  }
  Device DeviceOf(int worker) const {
    return {worker / ranks / members, worker / ranks % members, worker % ranks};
  }
  /// `replica 0 member 1 rank 2`, without what there is only one of.
  std::string NameOf(int worker) const;

  /// Begins a call: takes the mutex, notes that the run goes on. Throws Aborted after Abort.
  Lock Enter();
  /// Sleeps until `ready()`, which is asked with the mutex held. Throws Aborted after Abort, Error
  /// with all that is known about who waits for whom after the timeout, which aborts. `at` is what
  /// the worker is doing, `meeting` whom it meets there, if anybody.
  template <typename Ready>
  void Wait(Lock& lock, int worker, const Instruction& at, const Meeting* meeting,
            const Ready& ready) {
    Begin(worker, at, meeting);
    while (!ready()) Sleep(lock, worker);
    End(worker);
  }
  /// Takes part in a meeting. `publish()` runs with the mutex held and says what this worker has
  /// for the others; `work()` runs without it once all are here, must not wait for anything and
  /// must not throw. Returns when all have finished their work: from then on nobody touches this
  /// worker's memory, also where the run is aborted meanwhile.
  template <typename Publish, typename Work>
  void Meet(Meeting* meeting, int worker, const Instruction& at, const Publish& publish,
            const Work& work) {
    Lock lock = Enter();
    publish();
    Arrive(meeting, worker);
    Wait(lock, worker, at, meeting, [&] { return meeting->arrived == meeting->workers.size(); });
    const int64_t round = meeting->round;
    lock.unlock();
    work();
    lock.lock();
    Finish(meeting);
    Sleeper& self = sleepers_[static_cast<size_t>(worker)];
    while (meeting->round == round) self.wake.wait(lock);
  }
  /// Has a worker look again whether it is ready; with the mutex held.
  void Wake(int worker);
  /// Ends all waiting, now and from now on.
  void Abort();

 private:
  struct Sleeper {
    std::condition_variable wake;
    bool waits = false;
    Instruction at{};                  // where it waits
    const Meeting* meeting = nullptr;  // for whom, or its peer
  };

  void Begin(int worker, const Instruction& at, const Meeting* meeting);
  void Sleep(Lock& lock, int worker);
  void End(int worker) { sleepers_[static_cast<size_t>(worker)].waits = false; }
  void Arrive(Meeting* meeting, int worker);
  void Finish(Meeting* meeting);
  void WakeAll(const Meeting& meeting);
  std::string WhoWaits() const;
  std::string Absent(const Meeting& meeting) const;

  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::vector<Sleeper> sleepers_;  // by worker
  bool aborted_ = false;
  Clock::time_point last_call_ = Clock::now();
};

}  // namespace contraflow
