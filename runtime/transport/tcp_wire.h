#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "runtime/transport/link_set.h"
#include "runtime/transport/wire.h"

namespace contraflow {

/// A wire over the connections of a job. The label of a message goes ahead; its bytes follow once
/// their receive has begun, straight from the sender's memory into the receiver's: nothing is
/// buffered, and every send is a rendezvous. So no message ever waits in the memory of the
/// receiver, and one that nobody takes does not hold up those behind it.
class TcpWire : public Wire, private Link::Tensors {
 public:
  /// How long after a connection has ended it is an error: who watches over the job sees that too,
  /// knows what it means for all, and aborts.
  static constexpr std::chrono::milliseconds kGrace{1'000};

  /// `links` connect every pair of processes; they must outlive it. `name` is what a process is
  /// called.
  TcpWire(LinkSet& links, std::function<std::string(int)> name,
          std::chrono::milliseconds grace = kGrace);
  ~TcpWire() override;

  int processes() const override { return links_.size(); }
  int self() const override { return links_.self(); }
  int Send(Channel channel, int to, const Label& label, std::span<const std::byte> bytes) override;
  int Receive(Channel channel, int from, std::span<std::byte> bytes) override;
  Status Test(int ticket) override;
  void Poll() override;
  void Pause() override;
  void Abort() override;

 private:
  /// A send or receive under way, or a label that came before its receive.
  struct Entry {
    enum class Kind : uint8_t { kFree, kSend, kReceive, kArrived };
    Kind kind = Kind::kFree;
    bool matched = false, done = false;
    int process = 0;   // at the other end
    int theirs = 0;    // of a label: the ticket of its send
    int next = -1;     // in its queue
    size_t moved = 0;  // bytes received
    std::span<const std::byte> out;
    std::span<std::byte> in;
    Label label;
    Clock::time_point begun;
  };
  /// What was begun on one channel and not met yet: all receives or all labels that came.
  struct Queue {
    int first = -1, last = -1;
  };
  struct Peer {
    Queue queues[kChannels];
    size_t arrived = 0;  // labels in them
    Clock::time_point lost{};
  };

  void OnFrame(int process, const Frame& frame) override;
  std::span<std::byte> Room(int process, const Frame& frame) override;
  void OnBytes(int process, int receiver, size_t count) override;
  void OnSent(int sender) override { Finish(&At(sender)); }

  Entry& At(int ticket) { return entries_[static_cast<size_t>(ticket)]; }
  Peer& PeerAt(int process) { return peers_[static_cast<size_t>(process)]; }
  int New(Entry::Kind kind, int process);
  void Free(int ticket);
  void Append(Queue* queue, int ticket);
  int PopFirst(Queue* queue);
  void Finish(Entry* entry);
  void Match(int process, int ticket, const Label& label, int theirs, Clock::time_point begun);
  void TakeLabel(int process, const Frame& frame);
  bool Knows(int process, int ticket, Entry::Kind kind);
  void RequireConnected(const Entry& entry);
  void RequireHope();

  LinkSet& links_;
  const std::function<std::string(int)> name_;
  const std::chrono::milliseconds grace_;
  // Guarded by the mutex of the links:
  bool aborted_ = false;
  uint64_t seen_ = 0;           // of the events, when the caller last paused
  std::vector<Entry> entries_;  // by ticket
  int free_ = -1;               // the first of those that are free
  std::vector<Peer> peers_;     // by process
};

}  // namespace contraflow
