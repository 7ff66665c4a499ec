#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "compiler/plan/error.h"
#include "runtime/transport/socket.h"

namespace contraflow {

/// What a process needs to find the others of its job.
struct MeetingPoint {
  int rank = 0, size = 1;
  /// Where rank 0 listens, and the others come to. For rank 0 the port may be 0 where `ready` tells
  /// the others about it.
  Address address;
  /// Known to the processes of the job and to nobody else; proven by both sides of every
  /// connection, never sent (HMAC-SHA-256 of nonces of both sides).
  std::string secret;
  /// For a secret that others can guess: only processes of this user are of the job. All must be on
  /// one machine.
  std::optional<uint32_t> user;
  std::chrono::milliseconds timeout{60'000};
  /// Also connects every pair of processes, for messages between them.
  bool mesh = false;
  /// Rank 0 calls it once it listens, with the address.
  std::function<void(const Address&)> ready;
};

/// The connections of one process of a job. A watch connection and a mesh connection of the same
/// pair are apart, so that tensors never keep a report waiting.
struct Membership {
  int rank = 0, size = 1;
  std::vector<Address> roster;  ///< by rank: where it listened for its peers; numeric
  /// By rank: to rank 0 and rank 1 (for them: to everyone), which watch over the job; the second
  /// takes over when the first is lost. None to itself.
  std::vector<Socket> watch;
  std::vector<Socket> mesh;  ///< by rank, to everyone but itself; empty unless asked for
};

/// Thrown on a process that had come, when the meeting fails elsewhere: rank 0 throws the same
/// text.
struct MeetingOver : Error {
  using Error::Error;
};

/// Meets the other processes at rank 0 over TCP (runtime/README has the protocol): proves to each
/// that it belongs to the job, hands out who listens where, and connects them. Connections that do
/// not prove it, or do not speak the protocol, are closed and change nothing; no connection keeps
/// others waiting. Returns on every process when all are connected. Throws Error, with the remedy:
/// the port is taken, nobody answers, what answers is no rendezvous, does not know the secret
/// or belongs to a job of another size; on rank 0 which ranks did not come in time and whom it
/// refused meanwhile and why; two processes that say they are the same rank (on all, where they
/// listen). A failure that rank 0 sees is told to those who have come, which throw the same text
/// (MeetingOver).
Membership Meet(const MeetingPoint& point);

}  // namespace contraflow
