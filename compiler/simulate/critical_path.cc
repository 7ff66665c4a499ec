// Walks back from the last instruction to end: whatever let go of it last, and so on.

#include <algorithm>
#include <optional>
#include <vector>

#include "compiler/simulate/simulate.h"
#include "compiler/simulate/waits.h"

namespace contraflow {
namespace {

/// The first to end last, of all but messages; nothing for an empty plan.
std::optional<InstructionRef> LastToEnd(const Plan& plan, const Waits& waits) {
  std::optional<InstructionRef> last;
  for (int r = 0; r < plan.ranks; ++r) {
    for (int i = 0; i < static_cast<int>(plan.program(r).size()); ++i) {
      const InstructionRef ref{r, i};
      if (IsMessage(waits.At(ref).op)) continue;
      if (!last || waits.SpanOf(ref).end > waits.SpanOf(*last).end) last = ref;
    }
  }
  return last;
}

}  // namespace

std::vector<InstructionRef> CriticalPath(const Plan& plan, const CostModel& costs,
                                         const Timeline& timeline) {
  if (plan.level == Level::kCompute) return {};
  const Waits waits(plan, costs, timeline);
  std::vector<InstructionRef> path;
  for (std::optional<InstructionRef> at = LastToEnd(plan, waits); at;) {
    path.push_back(*at);
    const std::optional<Wait> wait = waits.SpanOf(*at).start == 0 ? std::nullopt : waits.Last(*at);
    at = wait ? std::optional(wait->on) : std::nullopt;
  }
  std::reverse(path.begin(), path.end());
  return path;
}

}  // namespace contraflow
