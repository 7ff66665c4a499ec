#pragma once

#include <memory>
#include <string>
#include <vector>

#include "compiler/plan/error.h"
#include "runtime/launch/listener.h"

namespace contraflow {

/// One process of a job that has met the others.
struct Membership {
  int rank = 0, size = 1;
  /// Connections by rank: of rank 0 to every other process; of the others to rank 0.
  std::vector<Socket> links;
  /// Answers those who ask for the status of the job, on rank 0; null elsewhere.
  std::unique_ptr<Listener> listener;
};

/// Thrown on a process that had come, when the meeting fails elsewhere: rank 0 throws the same
/// text.
struct MeetingOver : Error {
  MeetingOver(const std::string& text, bool one_was_lost) : Error(text), lost(one_was_lost) {}
  bool lost;  ///< it failed because one that had come was lost
};
/// One that had come was lost, as this process has seen itself.
struct MeetingLost : RefusedError {
  using RefusedError::RefusedError;
};

/// Meets the other processes at rank 0 over TCP (the README has the protocol). Returns on every
/// process when all have come. Connections that do not prove that they belong to the job are
/// closed and change nothing. Throws Error, with the remedy:
///  - the port is taken, nobody answers, another program or a job of another size answers,
///  - two processes say that they are the same rank,
///  - on rank 0, some ranks did not come in time; names them and all that it refused.
/// Rank 0 tells its failure to all that have come; they throw the same text (MeetingOver).
Membership Meet(const MeetingPoint& point);

/// Returns the status of a job that runs. Asks its rank 0 at point.address, with the secret or as
/// the user of the job. Throws Error if nobody answers there, or answers without a status.
std::string AskJob(const MeetingPoint& point);

}  // namespace contraflow
