#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/transport/socket.h"
#include "runtime/transport/wire.h"

namespace contraflow {

/// A wire over one TCP connection for each pair of processes, with a thread of its own that moves
/// bytes while the caller computes. The label of a message goes ahead; its bytes follow once their
/// receive has begun, straight from the sender's memory into the receiver's: nothing is buffered,
/// and every send is a rendezvous.
class TcpWire : public Wire {
 public:
  /// How long after a connection has ended it is an error: who watches over the job sees that too,
  /// knows what it means for all, and aborts.
  static constexpr std::chrono::milliseconds kGrace{1'000};

  /// `connections`: by process, none to itself; to be trusted (Meet). `name`: what a process is
  /// called in messages; by default by its number. Throws Error if no thread can be started.
  TcpWire(int self, std::vector<Socket> connections, std::function<std::string(int)> name = {},
          std::chrono::milliseconds grace = kGrace);
  /// What was handed over has left; but no longer than a second.
  ~TcpWire() override;

  int processes() const override;
  int self() const override;
  int Send(Channel channel, int to, const Label& label, std::span<const std::byte> bytes,
           bool rendezvous) override;
  int Receive(Channel channel, int from, std::span<std::byte> bytes) override;
  Status Test(int ticket) override;
  void Poll() override;
  void Pause() override;
  void Abort() override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace contraflow
