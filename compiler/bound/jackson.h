#pragma once

#include <utility>
#include <vector>

#include "compiler/plan/cost.h"

namespace contraflow {

/// Jackson's preemptive schedule of jobs on one lane: a bound for jobs that may not interrupt each
/// other, and the best there is for those that may.
class Jackson {
 public:
  /// A set of jobs, and why it takes so long: none starts before `head`, they last `work` in all,
  /// and `tail` or more follows each.
  struct Reason {
    Time head = 0, work = 0, tail = 0;
  };

  /// A job that can begin at `head`, and after which `tail` follows elsewhere.
  void Add(Time head, Time duration, Time tail);

  /// The least time at which all jobs and tails have ended; 0 without jobs.
  Time Makespan();

  /// A set of jobs whose head, work and tail add up to the makespan; nothing without jobs.
  Reason Binding();

 private:
  struct Job {
    Time head, duration, tail;
  };
  /// The makespan and the tail of the job that determines it.
  std::pair<Time, Time> Run();

  std::vector<Job> jobs_;
};

}  // namespace contraflow
