#pragma once

#include <vector>

#include "compiler/cost.h"

namespace contraflow {

/// Jackson's preemptive schedule of jobs on one lane: a bound for jobs that may not interrupt each
/// other, and the best there is for those that may.
class Jackson {
 public:
  /// A job that can begin at `head`, and after which `tail` follows elsewhere.
  void Add(Time head, Time duration, Time tail);

  /// The least time at which all jobs and tails have ended; 0 without jobs.
  Time Makespan();

 private:
  struct Job {
    Time head, duration, tail;
  };
  std::vector<Job> jobs_;
};

}  // namespace contraflow
