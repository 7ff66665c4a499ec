#include "compiler/plan/timeline.h"

#include <algorithm>

namespace contraflow {

Time Makespan(const Timeline& timeline) {
  Time makespan = 0;
  for (const std::vector<Span>& rank : timeline.ranks) {
    for (const Span& span : rank) makespan = std::max(makespan, span.end);
  }
  return makespan;
}

}  // namespace contraflow
