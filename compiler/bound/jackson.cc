// At every moment the job with the longest tail runs, of those that can. In a queue, only the job
// at the front can be that one, so queues need no priority queue over all jobs: linear in jobs for
// a few queues.

#include "compiler/bound/jackson.h"

#include <algorithm>
#include <utility>

#include "compiler/bound/work.h"

namespace contraflow {
namespace {

/// A lane that takes jobs in the order of their heads.
struct OneLane {
  struct Open {
    Time tail, left;
    bool operator<(const Open& other) const { return tail < other.tail; }
  };

  /// The one that runs is not in the heap of those that wait: few that come interrupt it.
  std::vector<Open> waiting = {};
  bool busy = false;
  Open running = {0, 0};
  Time now = 0;
  std::pair<Time, Time> last = {0, 0};  // as Run returns it

  void End() {
    now += running.left;
    if (now + running.tail > last.first) last = {now + running.tail, running.tail};
    busy = !waiting.empty();
    if (!busy) return;
    running = waiting.front();
    std::pop_heap(waiting.begin(), waiting.end());
    waiting.pop_back();
  }

  void Take(Time head, Time duration, Time tail) {
    while (busy && now + running.left <= head) End();
    Open come = {tail, duration};
    if (!busy) {
      busy = true;
      now = std::max(now, head);
      running = come;
      return;
    }
    running.left -= head - now;
    now = head;
    if (running.tail < tail) std::swap(running, come);
    waiting.push_back(come);
    std::push_heap(waiting.begin(), waiting.end());
  }

  void Finish() {
    while (busy) End();
  }
};

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

void Jackson::Add(Time head, Time duration, Time tail) { jobs_.push_back({head, duration, tail}); }

Time Jackson::Makespan() { return Run().first; }

Jackson::Reason Jackson::Binding() { return BindingBefore(Run().second); }

Jackson::Reason Jackson::BindingBefore(Time tail) {
  // The job that ends it, and all that ran before it without a gap and have tails no shorter: those
  // from some head on. Which head it is, the largest sum tells.
  std::sort(jobs_.begin(), jobs_.end(), [](const Job& a, const Job& b) { return a.head < b.head; });
  Reason best = {0, 0, tail};
  Time work = 0;
  for (size_t i = jobs_.size(); i-- > 0;) {
    if (jobs_[i].tail < tail) continue;
    work += jobs_[i].duration;
    if (jobs_[i].head + work >= best.head + best.work) best = {jobs_[i].head, work, tail};
  }
  return best;
}

std::pair<Time, Time> Jackson::Run() {
  std::sort(jobs_.begin(), jobs_.end(), [](const Job& a, const Job& b) { return a.head < b.head; });
  OneLane lane;
  // Jobs without a tail delay no other; the last of them ends when the lane is done with all.
  Time end = 0;
  for (const Job& job : jobs_) {
    end = std::max(end, job.head) + job.duration;
    if (job.tail > 0) lane.Take(job.head, job.duration, job.tail);
  }
  lane.Finish();
  return end > lane.last.first ? std::pair<Time, Time>(end, 0) : lane.last;
}

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

Jackson::Reason ReasonOf(const std::vector<JobQueue>& queues, const QueueBound& bound) {
  Jackson jobs;
  for (const JobQueue& queue : queues) {
    for (size_t k = 0; k < queue.count; ++k) {
      jobs.Add(queue.HeadOf(k), queue.duration, queue.TailOf(k));
    }
  }
  return jobs.BindingBefore(bound.last_tail);
}

}  // namespace contraflow
