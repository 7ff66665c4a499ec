#pragma once

#include <cstddef>
#include <vector>

#include "compiler/plan/cost.h"

namespace contraflow {

/// Jobs of equal duration in a fixed order: none starts before those ahead of it, and none has less
/// to follow it than those behind it. Heads ascend and tails descend; each is read at `head` or
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

/// The makespan of Jackson's preemptive schedule (compiler/jackson.h) of all jobs of the queues on
/// one lane, and a set of jobs that shows it: makespan = head + work + tail, where none of them
/// starts before `head`, they last `work` in all, and `tail` or more follows each.
struct QueueBound {
  Time makespan = 0;
  Time last_tail = 0;  ///< of the job that determines the makespan
};
QueueBound ScheduleQueues(const std::vector<JobQueue>& queues);

struct QueueReason {
  Time head = 0, work = 0, tail = 0;
};
QueueReason ReasonOf(const std::vector<JobQueue>& queues, const QueueBound& bound);

}  // namespace contraflow
