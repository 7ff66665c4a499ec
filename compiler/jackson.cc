// At every moment the job with the longest tail runs, of those that can.

#include "compiler/jackson.h"

#include <algorithm>
#include <queue>
#include <utility>

namespace contraflow {

void Jackson::Add(Time head, Time duration, Time tail) { jobs_.push_back({head, duration, tail}); }

Time Jackson::Makespan() {
  std::sort(jobs_.begin(), jobs_.end(), [](const Job& a, const Job& b) { return a.head < b.head; });
  std::priority_queue<std::pair<Time, Time>> ready;  // tail, and how much of the job is left
  Time now = 0, makespan = 0;
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
    } else {
      makespan = std::max(makespan, now + tail);
    }
  }
  return makespan;
}

}  // namespace contraflow
