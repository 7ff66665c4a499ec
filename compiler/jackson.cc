// At every moment the job with the longest tail runs, of those that can.

#include "compiler/jackson.h"

#include <algorithm>
#include <queue>
#include <utility>

namespace contraflow {

void Jackson::Add(Time head, Time duration, Time tail) { jobs_.push_back({head, duration, tail}); }

Time Jackson::Makespan() { return Run().first; }

Jackson::Reason Jackson::Binding() {
  // The job that ends it, and all that ran before it without a gap and have tails no shorter: those
  // from some head on. Which head it is, the largest sum tells.
  const Time tail = Run().second;
  Reason best = {0, 0, 0};
  Time work = 0;
  for (size_t i = jobs_.size(); i-- > 0;) {
    if (jobs_[i].tail < tail) continue;
    work += jobs_[i].duration;
    if (jobs_[i].head + work + tail >= best.head + best.work + best.tail) {
      best = {jobs_[i].head, work, tail};
    }
  }
  return best;
}

std::pair<Time, Time> Jackson::Run() {
  std::sort(jobs_.begin(), jobs_.end(), [](const Job& a, const Job& b) { return a.head < b.head; });
  std::priority_queue<std::pair<Time, Time>> ready;  // tail, and how much of the job is left
  Time now = 0;
  std::pair<Time, Time> last = {0, 0};
  for (size_t next = 0; next < jobs_.size() || !ready.empty();) {
    if (ready.empty()) now = std::max(now, jobs_[next].head);
    for (; next < jobs_.size() && jobs_[next].head <= now; ++next) {
      ready.push({jobs_[next].tail, jobs_[next].duration});
    }
    const auto [tail, left] = ready.top();
    ready.pop();
    const Time run = next < jobs_.size() ? std::min(left, jobs_[next].head - now) : left;
    now += run;
    if (run < left) {
      ready.push({tail, left - run});
    } else if (now + tail > last.first) {
      last = {now + tail, tail};
    }
  }
  return last;
}

}  // namespace contraflow
