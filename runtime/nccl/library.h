#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/nccl/nccl.h"

namespace contraflow {

/// A new unique id of NCCL, as bytes: made by one process, for all that are to become one of its
/// communicators. Needs no GPU. Throws Error with NCCL's message.
std::string NewNcclId();

/// NCCL itself, for the calling thread's current device. Streams are CUDA's.
class NcclLibrary : public Nccl {
 public:
  /// Tells NCCL and CUDA, in the environment, what this runtime relies on, where the user has not:
  /// kernels of several communicators are launched in program order, graphs are not mixed with
  /// other launches, and all kernels are loaded at the start: loading one may wait until the GPU is
  /// idle, which it never is while a message waits for a peer. Before the first call of NCCL or
  /// CUDA, and before there are threads that read the environment.
  static void SetDefaults();

  /// Throws Error if the library is older than its header.
  NcclLibrary();
  ~NcclLibrary() override;

  std::string NewId() override;
  NcclComm* Join(const std::string& id, int rank, int size,
                 const NcclCommOptions& options) override;
  NcclComm* Split(NcclComm* parent, int color, int key, const NcclCommOptions& options) override;
  std::span<std::byte> NewMemory(size_t bytes) override;
  void* Register(NcclComm* comm, std::byte* data, size_t bytes) override;
  void Deregister(NcclComm* comm, void* registration) noexcept override;
  void GroupStart() override;
  void GroupEnd() override;
  void Send(NcclComm* comm, const void* data, size_t bytes, int to, gpu::Stream stream) override;
  void Recv(NcclComm* comm, void* data, size_t bytes, int from, gpu::Stream stream) override;
  void RequirePuts() override;
  NcclWindow* Open(NcclComm* comm, std::byte* data, size_t bytes) override;
  void Close(NcclComm* comm, NcclWindow* window) noexcept override;
  void Put(NcclComm* comm, const void* data, size_t bytes, int to, NcclWindow* window,
           size_t offset, gpu::Stream stream) override;
  void Signal(NcclComm* comm, int to, gpu::Stream stream) override;
  void AwaitSignal(NcclComm* comm, int from, gpu::Stream stream) override;
  bool Ready(NcclComm* comm) override;
  void Check(NcclComm* comm) override;
  void Finalize(NcclComm* comm) override;
  void Destroy(NcclComm* comm) noexcept override;
  void Abort(NcclComm* comm) noexcept override;

  /// Its version, and whether messages use registered memory.
  std::string Report() const;

 private:
  class Comm;
  class Window;

  void* Allocate(size_t bytes);

  std::vector<void*> memory_;
  bool registers_ = false;  // the last registration
  std::vector<std::unique_ptr<Comm>> comms_;
  std::vector<std::unique_ptr<Window>> windows_;
  std::vector<Comm*> in_group_;  // those that the group under way uses
  int depth_ = 0;                // of groups
};

}  // namespace contraflow
