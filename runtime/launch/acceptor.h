#pragma once

#include <poll.h>

#include <map>
#include <string>
#include <vector>

#include "runtime/launch/handshake.h"
#include "runtime/transport/socket.h"

namespace contraflow {

/// Which of several descriptors have something to read or can be written to.
class Readiness {
 public:
  /// Asks for one descriptor at the next Wait.
  void Add(const Socket& socket, bool write = false);
  /// Waits until one is ready or the time has come, and forgets what it was asked for.
  void Wait(Clock::time_point until);
  /// Whether it was ready (or broken) at the last Wait.
  bool Has(const Socket& socket) const;

 private:
  std::vector<pollfd> asked_;
  std::vector<bool> ready_;  // by descriptor
};

/// Who has proven that it belongs to the job.
struct Visitor {
  Socket socket;
  Claim claim;
  Address address;  ///< where it comes from
};

/// A process's listener, and those who have come to it and have not proven yet that they belong to
/// the job: each has a few seconds to do so, and none waits for another.
class Door {
 public:
  Door(Socket listener, std::string secret, int rank, int size);

  const Socket& listener() const { return listener_; }

  void Ask(Readiness* readiness) const;
  /// Goes on with everyone as far as it can; never waits. Returns those who have proven it since;
  /// what they claim is true, but may not fit.
  std::vector<Visitor> Serve(const Readiness& readiness);

  /// Takes note of one that was sent away.
  void Refuse(const Address& address, const std::string& reason);
  /// Who was sent away, and why: "10.0.0.7 (does not speak this protocol; 3 times)", or "".
  std::string Refused() const;

 private:
  struct Stranger {
    Socket socket;
    Address address;
    Clock::time_point deadline;
    Inbox inbox{kHelloBytes};
    Claim claim;
    std::string hello, challenge;  // once they are said
  };

  bool HasRoom() const;
  void LetIn();
  /// What the stranger is to be sent away for, or "".
  std::string Advance(Stranger* stranger);
  std::string Answer(Stranger* stranger);

  const Socket listener_;
  const std::string secret_;
  const int rank_, size_;
  size_t most_;                      // strangers at a time
  std::vector<Stranger> strangers_;  // the oldest first
  std::map<std::string, int> refused_;
  int more_refused_ = 0;
};

}  // namespace contraflow
