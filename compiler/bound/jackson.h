#pragma once

#include <cstddef>
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
  /// Like Binding, where the tail of the job that determines the makespan is known.
  Reason BindingBefore(Time tail);

 private:
  struct Job {
    Time head, duration, tail;
  };
  /// The makespan and the tail of the job that determines it.
  std::pair<Time, Time> Run();

  std::vector<Job> jobs_;
};

/// Jobs of equal duration in a fixed order: none starts before those ahead of it, and none has less
/// to follow it than those after it. Heads ascend and tails descend; each is read at `head` or
/// `tail` and has a constant added.
struct JobQueue {
  const Time* head = nullptr;
  const Time* tail = nullptr;
  Time head_plus = 0, tail_plus = 0;
  Time duration = 0;
  size_t count = 0;

  Time HeadOf(size_t k) const { return head[k] + head_plus; }
  Time TailOf(size_t k) const { return tail[k] + tail_plus; }
};

/// The makespan of Jackson's preemptive schedule of all jobs of the queues on one lane.
struct QueueBound {
  Time makespan = 0;
  Time last_tail = 0;  ///< of the job that determines the makespan
};
QueueBound ScheduleQueues(const std::vector<JobQueue>& queues);
/// A set of their jobs that shows it.
Jackson::Reason ReasonOf(const std::vector<JobQueue>& queues, const QueueBound& bound);

}  // namespace contraflow
