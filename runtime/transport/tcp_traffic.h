#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "compiler/plan/error.h"
#include "runtime/transport/socket.h"
#include "runtime/transport/wire.h"

namespace contraflow {

/// What goes over the connection of two wires; behind a frame of kBytes come so many bytes of a
/// message. Both ends are the same build on the same kind of machine: it goes as it lies in memory.
struct Frame {
  enum Kind : uint8_t {
    kLabel,   ///< a send was begun
    kReady,   ///< its receive was, and takes it
    kRefuse,  ///< its receive expects another number of bytes
    kBytes,   ///< some of the bytes
  };
  uint8_t kind = kLabel, channel = 0, op = 0, unused = 0;
  int32_t sender = 0;    ///< ticket of the send, where it was begun
  int32_t receiver = 0;  ///< ticket of the receive, likewise
  int32_t stage = 0, microbatch = 0, layer = 0, part = 0;
  int32_t unused_too = 0;
  uint64_t bytes = 0;  ///< of the message (kLabel), or behind this frame (kBytes)
};
static_assert(sizeof(Frame) == 40);

/// One connection of a wire: frames, and the bytes of messages between them, in chunks that take
/// turns. Never waits. Used with the wire's mutex held.
class TcpLink {
 public:
  /// The connection ended, at the other side or on the way.
  struct Closed : Error {
    using Error::Error;
  };

  /// Who is told what comes and goes. Throws Error where the other side does what no wire does.
  class User {
   public:
    virtual ~User() = default;

    virtual void OnFrame(const Frame& frame) = 0;
    /// Where the bytes behind a frame of kBytes go: exactly so many as it says.
    virtual std::span<std::byte> Room(const Frame& frame) = 0;
    /// So many bytes have been put there.
    virtual void OnBytes(int receiver, size_t count) = 0;
    /// All bytes of a message are on their way.
    virtual void OnSent(int sender) = 0;
  };

  /// The user must outlive it.
  TcpLink(Socket socket, User& user);

  int fd() const { return socket_.fd(); }
  /// Ends the connection at both sides.
  void Shutdown() { socket_.Shutdown(); }

  void Put(const Frame& frame);
  /// The bytes of a message whose receive is ready; at least one.
  void PutBytes(int sender, int receiver, std::span<const std::byte> bytes);

  /// Whether something is left to be written.
  bool writes() const;
  /// Writes what the connection takes, at most one chunk. Throws Closed.
  void Write();
  /// Reads what is there, at most one chunk. Throws Closed, and what the user throws.
  void Read();

 private:
  /// A message whose bytes are on their way.
  struct Message {
    int sender = 0, receiver = 0;
    std::span<const std::byte> rest;
  };

  void Parse();

  Socket socket_;
  User& user_;
  // What is being written: frames of written_..., and behind them a chunk of the first message.
  std::vector<std::byte> frames_, writing_;
  size_t written_ = 0;
  std::deque<Message> messages_;
  std::span<const std::byte> chunk_;
  // What has been read and not been looked at, and the room for bytes that come next.
  std::vector<std::byte> read_;
  size_t begin_ = 0, end_ = 0;
  std::span<std::byte> room_;
  int receiver_ = 0;
};

/// What is under way on the connections of a wire: sends and receives, and labels that came before
/// their receive. Never waits. Used by one thread at a time.
class TcpTraffic {
 public:
  /// As TcpWire.
  TcpTraffic(int self, std::vector<Socket> connections, std::function<std::string(int)> name,
             std::chrono::milliseconds grace);

  int self() const { return self_; }
  int processes() const { return static_cast<int>(peers_.size()); }

  /// As those of a wire; they write nothing before Serve.
  int Send(Wire::Channel channel, int to, const Label& label, std::span<const std::byte> bytes);
  int Receive(Wire::Channel channel, int from, std::span<std::byte> bytes);
  Wire::Status Test(int ticket);
  /// Throws Error if something under way can never be done: its process is lost, and the grace is
  /// over.
  void RequireHope() const;

  /// The connection to a process; -1 if there is none any more.
  int fd(int process) const;
  /// Whether something is to be written to a process.
  bool writes(int process) const;
  /// Does a bit of the work with one process: reads where `reads`, writes what there is.
  void Serve(int process, bool reads);
  /// Grows when something is done or a process is lost.
  uint64_t changes() const { return changes_; }

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

  /// Another process.
  struct Peer : TcpLink::User {
    Peer(TcpTraffic& the_traffic, int the_process, Socket socket);
    void OnFrame(const Frame& frame) override { traffic.Take(this, frame); }
    std::span<std::byte> Room(const Frame& frame) override { return traffic.Room(*this, frame); }
    void OnBytes(int receiver, size_t count) override { traffic.Fill(receiver, count); }
    void OnSent(int sender) override { traffic.Finish(&traffic.At(sender)); }

    TcpTraffic& traffic;
    const int process;
    TcpLink link;
    std::optional<std::string> lost;  // why
    Clock::time_point told{};         // from when on that is an error
    Queue queues[Wire::kChannels];
    size_t arrived = 0;  // labels in them
  };

  Entry& At(int ticket) { return entries_[static_cast<size_t>(ticket)]; }
  Peer& PeerAt(int process);
  int New(Entry::Kind kind, int process);
  void Free(int ticket);
  void Append(Queue* queue, int ticket);
  int PopFirst(Queue* queue);
  void Finish(Entry* entry);
  void Lose(Peer* peer, const std::string& why, std::chrono::milliseconds grace);
  void RequireConnected(const Entry& entry) const;
  void Match(Peer* peer, int ticket, const Label& label, int theirs, Clock::time_point begun);
  void Take(Peer* peer, const Frame& frame);
  void TakeLabel(Peer* peer, const Frame& frame);
  std::span<std::byte> Room(const Peer& peer, const Frame& frame);
  void Fill(int ticket, size_t count);
  bool Knows(const Peer& peer, int ticket, Entry::Kind kind) const;

  const int self_;
  const std::function<std::string(int)> name_;
  const std::chrono::milliseconds grace_;
  uint64_t changes_ = 0;
  std::vector<Entry> entries_;                // by ticket
  int free_ = -1;                             // the first of those that are free
  size_t lost_ = 0;                           // processes
  std::vector<std::unique_ptr<Peer>> peers_;  // by process; none for itself
};

}  // namespace contraflow
