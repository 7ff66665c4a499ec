#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "runtime/transport/shared_memory.h"
#include "runtime/transport/tickets.h"
#include "runtime/transport/wire.h"

namespace contraflow {

/// A wire between processes of one machine, over memory that they share. A message goes through the
/// ring of its pair and channel: its label, then its bytes, as far as the ring has room; the sender
/// writes the rest when it calls next. So a message that the ring holds needs no attention of
/// either side, and a send is done once its receive has begun and all its bytes are in the ring.
/// No number of another process sizes or indexes memory before it is checked. Lost
/// processes are the watch's to notice: it aborts the wire.
class ShmWire : public Wire {
 public:
  /// The wire of process `self`. `name` returns the name of a process. The memory must outlive the
  /// wire.
  ShmWire(const SharedMemory& memory, int self, std::function<std::string(int)> name);

  int processes() const override { return memory_.processes(); }
  int self() const override { return self_; }
  int Send(Channel channel, int to, const Label& label, std::span<const std::byte> bytes) override;
  int Receive(Channel channel, int from, std::span<std::byte> bytes) override;
  /// Throws Error where the other process has written something that no wire writes.
  Status Test(int ticket) override;
  void Poll() override;
  void Pause() override;
  void Abort() override;

 private:
  /// A message under way.
  struct Entry {
    size_t lane = 0;
    bool done = false;
    bool labelled = false;  // its label is in the ring, or has come
    int next = -1;          // in its lane, or among free entries
    uint64_t number = 0;    // of a send, on its lane
    size_t moved = 0;       // bytes written or read
    Label label;
    Clock::time_point begun;
    std::span<const std::byte> out;
    std::span<std::byte> in;
  };
  /// One end of a ring.
  struct Lane {
    Channel channel = Channel::kMessages;
    int peer = 0;
    bool sends = false;
    bool listed = false;  // among busy_
    SharedMemory::Ring* ring = nullptr;
    std::span<std::byte> bytes;  // of the ring
    int first = -1, last = -1;   // messages that are not done
    int current = -1;            // of sends: the first that is not all in the ring
    uint64_t at = 0;             // bytes of the ring that this end has passed
    uint64_t count = 0;          // messages begun
    uint64_t skip = 0;           // bytes of a message that its receive did not expect
  };

  Entry& At(int ticket) { return tickets_.At(ticket); }
  int Begin(Channel channel, int peer, const Entry& entry);
  void Turn(Lane* lane);
  bool Write(Lane* lane);
  bool Read(Lane* lane);
  void Finish(Lane* lane);
  void TakeLabel(Lane* lane, Entry* entry);
  void RequireRunning() const;
  Error Lied(const Lane& lane) const;

  const SharedMemory& memory_;
  const int self_;
  const std::function<std::string(int)> name_;
  std::atomic<bool> aborted_ = false;
  std::vector<Lane> lanes_;   // by process, channel and direction
  std::vector<size_t> busy_;  // lanes with something under way
  Tickets<Entry> tickets_;
  uint64_t events_ = 0, seen_ = 0;  // messages done; at the last pause
};

}  // namespace contraflow
