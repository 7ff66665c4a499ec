// The opening of a rank: what it does before its first backward, forwards alone, and no more of
// them than fit in memory, n. Let the first backward be of stage s, and let j forwards run before
// the forward x of the same chunk. A forward is not interrupted, so x starts
//
//     no earlier than the head of s, and then the rank was idle for wait - j longest or more,
//
// where wait is what the head of s is later than that of the rank. From the end of x to the start
// of its backward the lag of s passes, in which n - 1 - j forwards run at most:
//
//     idle >= max(0, wait - j longest) + max(0, lag - (n - 1 - j) longest).
//
// Which stage and which j the bound cannot know: it is the least for any. Where x has to wait a
// little more than j forwards take, the rank is idle in front of x; one forward more before x is
// one less behind it, which memory lets it run only once. That is so on the middle ranks of a
// bidirectional placement with n = P + 1: wait = f + hop, for x the second forward a hop of idle
// time, for x the third the last forward missing from the lag. One window with n forwards in it,
// however they lie, does not see it.
//
// Without the max the sum does not depend on j; the first term falls with j until it is 0, the
// second is 0 until it rises. So the least is at an end, or next to one of the two corners.

#include "compiler/bound/opening.h"

#include <algorithm>
#include <limits>

namespace contraflow {

Time IdleOfOpening(const std::vector<Opening>& openings, int64_t forwards, Time longest) {
  Time least = std::numeric_limits<Time>::max();
  const int64_t others = forwards - 1;
  for (const auto& [wait, lag] : openings) {
    const auto idle = [&, wait = wait, lag = lag](int64_t before) {
      return std::max<Time>(0, wait - before * longest) +
             std::max<Time>(0, lag - (others - before) * longest);
    };
    least = std::min({least, idle(0), idle(others)});
    if (longest == 0) continue;
    for (const int64_t corner : {wait / longest, others - lag / longest}) {
      for (int64_t before = corner - 1; before <= corner + 1; ++before) {
        if (before > 0 && before < others) least = std::min(least, idle(before));
      }
    }
  }
  return least;
}

}  // namespace contraflow
