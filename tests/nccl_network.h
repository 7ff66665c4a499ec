#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/emulator.h"
#include "runtime/nccl.h"
#include "tests/emulated_gpu.h"

namespace contraflow {

/// The NCCL of all processes of a job, one after the other in one thread: it keeps what each of
/// them issues, messages and work of the device alike, to be run afterwards in the strictest way
/// that NCCL may: each process does one thing after the other in the order of issue, and a group of
/// messages ends only when all of them have met their counterparts. What ends so ends however NCCL
/// buffers, and whatever it serialises.
class NcclNetwork {
 public:
  struct Message {
    bool sends;
    int comm;  ///< number among all communicators of the job
    int peer;  ///< in the communicator
    std::byte* data;
    size_t bytes;
  };
  /// A group of messages, or something that the device does.
  struct Step {
    std::vector<Message> messages;
    std::function<void()> work;
  };
  /// One communicator, the same for all of its processes.
  struct Comm {
    std::string name;
    int max_ctas = 0;
    std::vector<std::pair<int, int>> members;  ///< key and process
  };

  explicit NcclNetwork(int processes);
  ~NcclNetwork();

  /// What process `p` has: NCCL, and a GPU whose streams give their work to the network.
  Nccl& NcclOf(int p);
  Gpu& GpuOf(int p);
  gpu::Stream StreamOf(int p);
  /// Communicators that it has neither ended in order nor aborted.
  int OpenOf(int p) const;

  std::vector<std::vector<Step>> steps;  ///< by process, in order of issue
  std::vector<Comm> comms;

  /// The number of a process in the job by its number in a communicator.
  int ProcessOf(int comm, int rank) const;
  /// Whatever NCCL demands of what was issued, but its order: every split by all, and with the same
  /// options; for every message a counterpart of the same size, in the same order for each pair.
  /// Throws Error with the first thing that is wrong.
  void Check() const;
  /// Does all steps. Throws Error if it can never end: who waits for what.
  void Run();

 private:
  class Process;

  int CommOf(int parent, int number, int color, const NcclCommOptions& options);

  struct Split {
    int parent, number, color;  // which split of the parent
    int comm;
  };
  std::vector<Split> splits_;
  std::vector<std::unique_ptr<Process>> processes_;
};

}  // namespace contraflow
