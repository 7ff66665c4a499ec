#include <algorithm>

#include "compiler/plan/error.h"
#include "compiler/plan/memory_limit.h"
#include "schedules/published/placement.h"
#include "schedules/search/candidates.h"

namespace contraflow {

std::optional<int64_t> LeastLimit(const Spec& spec, bool recomputed) {
  const bool bytes = MemoryLimit(spec.costs).bytes();
  if (recomputed && (!bytes || !InputBytes(spec.costs))) return std::nullopt;
  Spec roomy = spec;
  roomy.memory_limit.reset();
  roomy.device_memory.reset();
  for (RankCost& rank : roomy.costs.ranks) rank.memory_bytes.reset();
  std::optional<int64_t> least;
  for (const Candidate& candidate : CandidatesOf(roomy)) {
    const int64_t held = SerialPeak(candidate.frame, candidate.spec.costs, recomputed);
    const int64_t limit = bytes ? held : LimitNeeded(spec, candidate.frame, held);
    least = std::min(least.value_or(limit), limit);
  }
  return least;
}

std::string MemoryAdvice(const Spec& spec) {
  CF_ASSERT(spec.memory_limit);
  using Choice = Recompute::Choice;
  const Choice choice = spec.recompute.choice;
  const std::string unit = MemoryLimit(spec.costs).unit();
  const std::string limit = std::to_string(*spec.memory_limit) + unit;
  const std::optional<int64_t> plain = LeastLimit(spec, false), recomputed = LeastLimit(spec, true);
  CF_ASSERT(plain);
  const bool everything = recomputed && (choice == Choice::kFull || choice == Choice::kAuto);
  const std::string least = std::to_string(everything ? *recomputed : *plain);
  std::string text = "does not fit `memory_limit`: one micro-batch alone holds ";
  if (choice == Choice::kStages) {
    text += "more than " + limit + " on a rank with these stages recomputed";
  } else {
    text += least + unit + " on a rank" + (everything ? " with all stages recomputed" : "") +
            ", the limit is " + limit;
  }
  text += "; raise it to " + least;
  if (everything || !recomputed || *recomputed >= *plain) return text;
  if (*recomputed <= *spec.memory_limit) return text + ", or give `recompute` auto, which fits";
  return text + ", or to " + std::to_string(*recomputed) + " with `recompute` auto";
}

}  // namespace contraflow
