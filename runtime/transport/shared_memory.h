#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "runtime/transport/wire.h"

namespace contraflow {

/// Memory that the processes of a job on one machine share: a ring of bytes for each ordered pair
/// of processes and each channel, and a flag for each process. Unused pages take no memory. The
/// memory has no name: it is gone once its processes have ended, however they end.
class SharedMemory {
 public:
  /// One direction of one channel. Counts only grow; each has one writer.
  struct Ring {
    alignas(64) std::atomic<uint64_t> written;  ///< bytes, by the sender
    alignas(64) std::atomic<uint64_t> read;     ///< bytes, by the receiver
    std::atomic<uint64_t> begun;                ///< messages, by the receiver
  };

  /// Bytes of a ring that holds two messages of `message_bytes`: a power of 2 from 64 KiB to 64
  /// MiB; less where the rings of this many processes together would exceed 64 GiB of addresses.
  static size_t RingBytes(int processes, int64_t message_bytes);

  /// Makes the memory. `ring_bytes` is a power of 2. Throws Error where the system refuses.
  SharedMemory(int processes, size_t ring_bytes);
  /// Maps the memory that another process of this machine and user has made and still has. Throws
  /// Error where it cannot be reached or belongs to another job.
  SharedMemory(int processes, const std::string& invitation);
  SharedMemory(const SharedMemory&) = delete;
  ~SharedMemory();

  int processes() const { return processes_; }
  size_t ring_bytes() const { return ring_bytes_; }
  /// Bytes for other processes of the job, which tell where the memory is.
  std::string Invitation() const;

  Ring& RingOf(Wire::Channel channel, int from, int to) const;
  std::span<std::byte> BytesOf(Wire::Channel channel, int from, int to) const;

  /// Announces that a process is about to sleep: Wake ends its next Sleep from here on.
  void PrepareToSleep(int process) const;
  /// Returns after Wake, or after `most`; may return early.
  void Sleep(int process, std::chrono::milliseconds most) const;
  /// Wakes a process that has announced its sleep.
  void Wake(int process) const;

 private:
  struct Mapping;
  struct Head;
  struct WakeFlag;
  size_t PlaceOf(Wire::Channel channel, int from, int to) const;
  WakeFlag& WakeFlagOf(int process) const;

  const int processes_;
  size_t ring_bytes_ = 0;
  int file_ = -1;  // of the process that has made it
  std::unique_ptr<Mapping> mapping_;
};

}  // namespace contraflow
