#pragma once

#include <memory>
#include <string>
#include <vector>

#include "compiler/plan/error.h"
#include "runtime/launch/door.h"

namespace contraflow {

/// One process of a job that has met the others.
struct Membership {
  int rank = 0, size = 1;
  /// By rank: of rank 0 to every other process; of the others to rank 0.
  std::vector<Stream> links;
  /// Rank 0's, where one may ask what the job does; null elsewhere.
  std::unique_ptr<Door> door;
};

/// Thrown on a process that had come, when the meeting fails elsewhere: rank 0 throws the same
/// text.
struct MeetingOver : Error {
  MeetingOver(const std::string& text, bool one_was_lost) : Error(text), lost(one_was_lost) {}
  bool lost;  ///< it failed because one that had come was lost
};
/// One that had come was lost, as this process has seen itself.
struct MeetingLost : ToldError {
  using ToldError::ToldError;
};

/// Meets the other processes at rank 0 over TCP (the README has the protocol). Returns on every
/// process when all have come. Connections that do not prove that they belong to the job are
/// closed and change nothing. Throws Error, with the remedy: the port is taken, nobody answers,
/// what answers is none of the job or belongs to one of another size; on rank 0 which ranks did not
/// come in time and whom it refused meanwhile and why; two processes that say they are the same
/// rank. A failure that rank 0 sees is told to those who have come, which throw the same text
/// (MeetingOver).
Membership Meet(const MeetingPoint& point);

/// What a job that runs says about itself: asks its rank 0 at point.address, with the secret or as
/// the user of the job. Throws Error if nobody answers there, or who answers does not tell.
std::string AskJob(const MeetingPoint& point);

}  // namespace contraflow
