#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/exec/gpu.h"
#include "runtime/nccl/nccl.h"

namespace contraflow {

/// The NCCL and the GPUs of all processes of a job, which are parts of this one. The calls of each
/// of them, messages and work of the device alike, are done in the strictest way that NCCL may:
/// each process does one thing after the other in the order of issue, and a group of messages ends
/// only when all of them have met their counterparts. A job that ends so ends however NCCL buffers,
/// and whatever it serialises. It happens while somebody waits for an event, or in Run.
///
/// NCCL's rules are kept: communicators are not ready at once, and it is an Error to ask something
/// of one that is not, or outside a group, or to end one while a graph has messages of it or memory
/// is registered in it; an abort undoes registrations itself. Memory to be registered comes from
/// NewMemory. If a communicator has some, its messages use no other, at both ends. Windows have one
/// size at all members, and puts come from them. A put is done as soon as it may be, so that what
/// was still in its place is lost.
class NcclNetwork {
 public:
  struct Message {
    bool sends;
    int comm;  ///< number among all communicators of the job
    int peer;  ///< in the communicator
    std::byte* data;
    size_t bytes;
    bool registered;  ///< its memory
  };
  /// Actions of one member of a communicator alone: to put is to copy and then to signal.
  struct OneSided {
    enum class Kind { kPut, kSignal, kAwait };
    Kind kind;
    int comm, peer;
    const std::byte* data = nullptr;  ///< kPut
    size_t bytes = 0, offset = 0;
  };
  /// A group of messages, or something that a member, or the device, does.
  struct Step {
    std::vector<Message> messages;
    std::function<void()> work;
    std::optional<OneSided> alone;
  };
  /// One communicator, the same for all of its processes.
  struct Comm {
    std::string name;
    int max_ctas = 0;
    std::vector<std::pair<int, int>> members;     ///< key and process, ascending: by rank
    std::map<int, std::span<std::byte>> windows;  ///< that members have opened, by process
    std::map<std::pair<int, int>, int> signals;   ///< not awaited yet, by sender and receiver
  };

  /// How the processes of the job run: as threads, or one after another in one thread, where
  /// nothing is done before Run and every event counts as done.
  enum class Processes : bool { kThreads, kInTurn };

  NcclNetwork(int processes, Processes how);
  ~NcclNetwork();

  Nccl& NcclOf(int p);
  Gpu& GpuOf(int p);
  /// Every stream of a process is this one, but for that named "watch", which is done at once.
  gpu::Stream StreamOf(int p);
  /// Communicators that it has neither ended in order nor aborted.
  int OpenOf(int p) const;
  /// Registrations of memory that were not undone, also when their communicators ended.
  int RegisteredOf(int p) const;
  /// Registrations that it has undone itself.
  int DeregisteredOf(int p) const;
  /// Signals between any two that nobody has awaited.
  int signals() const;
  /// From now on a check of its communicators fails with this.
  void Fail(int p, const std::string& error);

  std::vector<std::vector<Step>> steps;  ///< by process, in order of issue
  std::vector<Comm> comms;

  /// Whatever NCCL demands of what was issued, but its order: every split by all, and with the same
  /// options; for every message a counterpart of the same size, in the same order for each pair.
  /// Throws Error with the first thing that is wrong.
  void Check() const;
  /// Does all steps, from the first one on. Throws Error if it can never end: who waits for what.
  void Run();

 private:
  class Process;

  bool Complete(int comm) const;
  int ProcessOf(int comm, int rank) const;
  int CommOf(int parent, int number, int color, const NcclCommOptions& options);
  void Advance();
  void Begin(size_t p);
  bool Meet(size_t p, const Message& message);
  bool Do(size_t p, const OneSided& alone);
  int RankOf(int comm, size_t p) const;
  std::string Stuck() const;

  struct Split {
    int parent, number, color;  // which split of the parent
    int comm;
  };
  const Processes how_;
  std::mutex mutex_;           // guards everything, where processes are threads
  std::vector<Split> splits_;  // by communicator
  std::vector<std::unique_ptr<Process>> processes_;
  std::vector<size_t> done_;  // steps of each process
  // Messages of the step at hand that have not met theirs, in order of issue.
  std::vector<std::vector<Message>> waiting_;
  std::vector<bool> begun_;  // whether it has been looked at
};

}  // namespace contraflow
