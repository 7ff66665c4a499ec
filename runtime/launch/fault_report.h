#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace contraflow {

/// Why a job stops. kJob is an error that all processes tell of alike, of one no more than of the
/// others, such as two that have different plans.
enum class FaultKind { kError, kBug, kLost, kTimeout, kSignal, kJob };

/// One reason to stop.
struct Fault {
  FaultKind kind = FaultKind::kError;
  int process = 0;   ///< who tells of it; kLost: who was lost
  std::string text;  ///< kSignal: its name; kLost: how it came; otherwise as it was given

  bool operator==(const Fault&) const = default;
};

/// Whether a fault, of several in the order of their arrival, may follow from one that has not been
/// heard of yet: when a process dies, signals and errors about lost peers do.
bool MayFollow(const std::vector<Fault>& faults, size_t index);
/// Which of the faults, in the order of their arrival, is the cause: the first that does not merely
/// follow from another. At least one is needed.
size_t CauseOf(const std::vector<Fault>& faults);

/// What is known of one process when the report is written.
struct Standing {
  enum class Kind {
    kAnswered,   ///< said what it was doing when the job was stopped
    kUnheard,    ///< did not answer in time; the position is older
    kLost,       ///< its connection closed, or it was silent
    kUnwatched,  ///< this process had no connection to it: not in the report
  };
  Kind kind = Kind::kUnwatched;
  std::string position;  ///< "" where it never said any
  double since = 0;      ///< how many seconds it had been there
  int waits_for = -1;    ///< a process
  double heard = 0;      ///< unless it answered: how many seconds before its end it was heard of
};

/// All that the report says.
struct Findings {
  Fault cause;
  std::vector<Fault> later;         ///< in the order of their arrival
  std::vector<Standing> standings;  ///< by process
};

/// The report, lines that end in a newline. `prefix` opens the first line, `name` says what a
/// process is called.
std::string FaultReport(const std::string& prefix,
                        const std::function<std::string(int process)>& name,
                        const Findings& findings);

/// The line of a process that has lost process 0, which knows of no other.
std::string LossOfLeader(const std::string& prefix,
                         const std::function<std::string(int process)>& name,
                         const std::string& how, int process, const Standing& standing);

/// What each process of a job that runs is doing, a line each.
std::string StandingLines(const std::function<std::string(int process)>& name,
                          const std::vector<Standing>& standings);

}  // namespace contraflow
