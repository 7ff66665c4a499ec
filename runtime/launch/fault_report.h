#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "runtime/core/bytes.h"

namespace contraflow {

/// The kind of a reason to stop. kJob is an error of the job, which all processes report alike,
/// such as two different plans.
enum class FaultKind { kError, kBug, kLost, kTimeout, kSignal, kJob };

/// One reason to stop.
struct Fault {
  FaultKind kind = FaultKind::kError;
  int process = 0;   ///< the one that tells of it; kLost: the one that was lost
  std::string text;  ///< kSignal: its name; kLost: the cause of the loss; otherwise the message

  bool operator==(const Fault&) const = default;
};

/// Most bytes of a text of one process that another one hears.
inline constexpr size_t kMaxSaid = size_t{1} << 14;

/// Turn a fault into bytes for another process, and back. ReadFault throws Error unless it is one
/// of a job of this many processes. Its text steers no terminal.
std::string FaultBytes(const Fault& fault);
Fault ReadFault(ByteReader* bytes, int size);

/// Returns whether a fault may follow from one that has not arrived yet, as signals and errors
/// about lost peers do. The faults are in the order of their arrival.
bool MayFollow(const std::vector<Fault>& faults, size_t index);
/// Returns the index of the first fault that does not merely follow from another. The faults, at
/// least one, are in the order of their arrival.
size_t CauseOf(const std::vector<Fault>& faults);

/// The state of one process in the report.
struct Standing {
  enum class Kind {
    kAnswered,   ///< told its position when the job was stopped
    kUnheard,    ///< did not answer in time; the position is older
    kLost,       ///< its connection closed, or it was silent
    kUnwatched,  ///< this process had no connection to it: not in the report
  };
  Kind kind = Kind::kUnwatched;
  std::string position;  ///< "" if it never told any
  double since = 0;      ///< seconds at the position
  int waits_for = -1;    ///< a process
  double heard = 0;      ///< unless it answered: seconds since its last message
};

/// The content of the report.
struct Findings {
  Fault cause;
  std::vector<Fault> later;         ///< in the order of their arrival
  std::vector<Standing> standings;  ///< by process
};

/// Returns the lines of the report. `prefix` opens the first line, `name` names a process.
std::string FaultReport(const std::string& prefix,
                        const std::function<std::string(int process)>& name,
                        const Findings& findings);

/// Returns the line of a process that has lost process 0 and knows of no other.
std::string LossOfLeader(const std::string& prefix,
                         const std::function<std::string(int process)>& name,
                         const std::string& how, int process, const Standing& standing);

/// Returns a line with the position of each process of a job that runs.
std::string StandingLines(const std::function<std::string(int process)>& name,
                          const std::vector<Standing>& standings);

}  // namespace contraflow
