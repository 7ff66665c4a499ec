#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "kernels/gpu/stream.h"

namespace contraflow {

/// One communicator of NCCL, as one of its processes holds it. Owned by the Nccl that made it.
class NcclComm {
 public:
  virtual ~NcclComm() = default;
};

/// Memory of every member of a communicator, into which the others put. Owned by the Nccl.
class NcclWindow {
 public:
  virtual ~NcclWindow() = default;
};

struct NcclCommOptions {
  std::string name;  ///< for errors and NCCL's own log
  int max_ctas = 1;  ///< most CTAs of its kernels, one a SM; a power of two
};

/// Interface to NCCL for one process and its GPU. Communicators are non-blocking: a call may still
/// be in progress when it returns. Until Ready, no other call and no event may follow it. The
/// issuing thread makes all calls but Abort. A failure throws Error with the message of NCCL and,
/// if known, a remedy.
class Nccl {
 public:
  virtual ~Nccl() = default;

  /// Made by one process, for all that are to Join.
  virtual std::string NewId() = 0;
  /// The communicator of all `size` processes that have the id; this is number `rank`.
  virtual NcclComm* Join(const std::string& id, int rank, int size,
                         const NcclCommOptions& options) = 0;
  /// A communicator of those members of `parent` that give the same color, in the order of their
  /// keys; null for who gives kNoColor. Called by all members, in one order. Until the new one, or
  /// where there is none the parent, is Ready nothing may be asked of the parent.
  static constexpr int kNoColor = -1;
  virtual NcclComm* Split(NcclComm* parent, int color, int key, const NcclCommOptions& options) = 0;

  /// Device memory that can be registered, 4096-aligned; lives as long as this. Its bytes are
  /// undefined.
  virtual std::span<std::byte> NewMemory(size_t bytes) = 0;
  /// Messages of the communicator may go from and to this memory, of NewMemory, without copies in
  /// between. All of its members register all that its messages use from then on, or nothing.
  /// Returns what Deregister takes: before the communicator is finalized. An abort undoes it, too.
  virtual void* Register(NcclComm* comm, std::byte* data, size_t bytes) = 0;
  virtual void Deregister(NcclComm* comm, void* registration) noexcept = 0;

  /// Send and Recv are called between these, which may be nested. Calls in a group make progress
  /// together: none waits for another.
  virtual void GroupStart() = 0;
  virtual void GroupEnd() = 0;
  /// In the stream, `bytes` of device memory to or from a member of the communicator. Messages of a
  /// pair meet in the order in which they were issued, and must have the same size.
  virtual void Send(NcclComm* comm, const void* data, size_t bytes, int to, gpu::Stream stream) = 0;
  virtual void Recv(NcclComm* comm, void* data, size_t bytes, int from, gpu::Stream stream) = 0;

  /// Throws Error, with what is missing, if this NCCL has none of what follows.
  virtual void RequirePuts() = 0;
  /// A window onto memory of NewMemory, as much at all members, all of which open it; nothing can
  /// be put before the communicator is Ready. Closed as memory is deregistered.
  virtual NcclWindow* Open(NcclComm* comm, std::byte* data, size_t bytes) = 0;
  virtual void Close(NcclComm* comm, NcclWindow* window) noexcept = 0;
  /// In the stream, and in groups as Send: `bytes` of this member's window to where `offset` is in
  /// that of member `to`, and then a signal; when the stream goes on, the bytes here may change.
  virtual void Put(NcclComm* comm, const void* data, size_t bytes, int to, NcclWindow* window,
                   size_t offset, gpu::Stream stream) = 0;
  /// A signal alone; those of a member to another arrive in order.
  virtual void Signal(NcclComm* comm, int to, gpu::Stream stream) = 0;
  /// The stream waits for the next signal of a member, and sees what was put before it.
  virtual void AwaitSignal(NcclComm* comm, int from, gpu::Stream stream) = 0;

  /// Whether all that was asked of it so far has been taken over; never waits. Throws if that, or
  /// work on the device, has failed meanwhile.
  virtual bool Ready(NcclComm* comm) = 0;
  /// Throws if something has failed meanwhile, as Ready; costs more, and finds more.
  virtual void Check(NcclComm* comm) = 0;

  /// Begins the orderly end, once the device has done all work and no graph with its messages is
  /// left, which NCCL would wait for; when Ready, Destroy it. Called by all members.
  virtual void Finalize(NcclComm* comm) = 0;
  virtual void Destroy(NcclComm* comm) noexcept = 0;
  /// Ends its work on the device, wherever that waits, and destroys it; waits until no graph with
  /// its messages is left. Any thread may call it while no other thread is in a call, except Abort
  /// of another communicator. It may take a while.
  virtual void Abort(NcclComm* comm) noexcept = 0;
};

}  // namespace contraflow
