#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/core/transport.h"
#include "runtime/exec/links.h"
#include "runtime/nccl/comms.h"

namespace contraflow {

/// Gives all processes of the job the bytes of all, by process. Called by all of them.
using ShareBytes = std::function<std::vector<std::string>(const std::string& mine)>;

/// The messages of a pipeline without a kernel that would hold SMs: the sender puts them where the
/// receiver wants them. Each is a rendezvous: the receiver signals that the place is free, and
/// waits for the signal that comes with the message.
class NcclPuts {
 public:
  /// All arguments must outlive it.
  NcclPuts(const Plan& plan, const RankOrder& order, int process, NcclComms& comms);

  /// Places at which a device receives its messages, for NcclPuts of others to read.
  static std::string PlacesOf(const Plan& plan, Device device, GpuBackend& backend);
  /// Opens a window on each edge onto the backend's LinkMemory, which has one size everywhere, and
  /// learns where to put messages. All processes call it, once the edges are connected.
  void Connect(GpuBackend& backend, const ShareBytes& share);

  /// Like those of GpuLinks.
  void Transfer(const Participant& self);
  void BeginGroup() { grouped_ = true; }
  void EndGroup();

 private:
  using Message = std::pair<int, Tag>;  // to or from that rank
  struct Send {
    NcclComm* comm;
    NcclWindow* window;
    std::span<const std::byte> bytes;
    size_t offset;
    gpu::Stream stream;
  };
  struct Receive {
    NcclComm* comm;
    gpu::Stream stream;
  };

  const Plan& plan_;
  const RankOrder& order_;
  const Device device_;
  NcclComms& comms_;
  std::map<int, NcclWindow*> windows_;  // of the edges to other ranks
  std::map<Message, size_t> offsets_;   // there
  bool grouped_ = false;
  std::vector<Send> sends_;  // of the group under way
  std::vector<Receive> receives_;
};

}  // namespace contraflow
