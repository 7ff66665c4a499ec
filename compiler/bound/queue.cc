// Of a queue only the job at its front can be the one with the longest tail, so the schedule needs
// no priority queue over all jobs: linear in jobs for a few queues.

#include "compiler/bound/queue.h"

#include <algorithm>

#include "compiler/bound/work.h"

namespace contraflow {
namespace {

/// How far a queue has come.
struct Front {
  size_t next = 0;
  Time head = kNever, tail = 0, left = 0;

  void Load(const JobQueue& queue) {
    head = next < queue.count ? queue.HeadOf(next) : kNever;
    tail = next < queue.count ? queue.TailOf(next) : 0;
    left = queue.duration;
  }
};

}  // namespace

QueueBound ScheduleQueues(const std::vector<JobQueue>& queues) {
  std::vector<Front> fronts(queues.size());
  for (size_t q = 0; q < queues.size(); ++q) fronts[q].Load(queues[q]);
  QueueBound bound;
  for (Time now = 0;;) {
    Time later = kNever;  // when the next front that is not ready becomes so
    size_t best = queues.size();
    for (size_t q = 0; q < fronts.size(); ++q) {
      if (fronts[q].head > now) {
        later = std::min(later, fronts[q].head);
      } else if (best == queues.size() || fronts[q].tail > fronts[best].tail) {
        best = q;
      }
    }
    if (best == queues.size()) {
      if (later == kNever) return bound;
      now = later;
      continue;
    }
    Front& front = fronts[best];
    const Time run = later == kNever ? front.left : std::min(front.left, later - now);
    now += run;
    front.left -= run;
    if (front.left > 0) continue;
    if (now + front.tail > bound.makespan) bound = {now + front.tail, front.tail};
    ++front.next;
    front.Load(queues[best]);
  }
}

QueueReason ReasonOf(const std::vector<JobQueue>& queues, const QueueBound& bound) {
  struct Job {
    Time head, duration;
  };
  std::vector<Job> jobs;
  for (const JobQueue& queue : queues) {
    for (size_t k = 0; k < queue.count; ++k) {
      if (queue.TailOf(k) >= bound.last_tail) jobs.push_back({queue.HeadOf(k), queue.duration});
    }
  }
  std::sort(jobs.begin(), jobs.end(), [](const Job& a, const Job& b) { return a.head > b.head; });
  QueueReason best = {0, 0, bound.last_tail};
  Time work = 0;
  for (const Job& job : jobs) {
    work += job.duration;
    if (job.head + work >= best.head + best.work) best = {job.head, work, bound.last_tail};
  }
  return best;
}

}  // namespace contraflow
