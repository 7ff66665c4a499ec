#include "schedules/recompute/memory_advice.h"

#include <algorithm>
#include <string>
#include <vector>

#include "compiler/plan/error.h"
#include "compiler/plan/memory_limit.h"
#include "compiler/plan/recompute_cost.h"
#include "schedules/published/placement.h"
#include "schedules/published/rows.h"
#include "schedules/recompute/recompute.h"
#include "schedules/search/candidates.h"

namespace contraflow {
namespace {

/// Bytes that each stage of a candidate holds with as much recomputed as there may be.
std::vector<CellBytes> LeastCells(const Candidate& candidate, const Recompute& recompute,
                                  int given) {
  const CostModel& costs = candidate.spec.costs;
  const int stages = candidate.frame.stages;
  std::vector<CellBytes> cells;
  for (int s = 0; s < stages; ++s) cells.push_back(BytesOfCell(costs, s, false));
  if (recompute.choice == Recompute::Choice::kNone) return cells;
  Spec spec = candidate.spec;
  spec.recompute = RepartitionRecompute(recompute, given, stages);
  for (const auto& [stage, extent] : MostRecomputed(stages, spec)) {
    cells[static_cast<size_t>(stage)] = BytesOfCell(costs, stage, true, extent);
  }
  return cells;
}

/// Activation of the largest cell, in bytes; 0 where the costs give none.
int64_t LargestOf(const std::vector<CellBytes>& cells) {
  return std::ranges::max(cells, {}, &CellBytes::activation).activation;
}

/// " with all stages recomputed"
std::string With(const Recompute& recompute) {
  if (recompute.choice == Recompute::Choice::kNone) return "";
  if (recompute.everything()) return " with all stages recomputed";
  const bool whole = recompute.part == RecomputePart::kFull && recompute.layers.empty();
  return whole ? " with these stages recomputed" : " with so much of its stages recomputed";
}

}  // namespace

std::optional<int64_t> LeastLimit(const Spec& spec, const Recompute& recompute) {
  const bool bytes = MemoryLimit(spec.costs).bytes();
  const bool plain = recompute.choice == Recompute::Choice::kNone;
  if (!plain && (!bytes || !InputBytes(spec.costs))) return std::nullopt;
  Spec roomy = spec;
  roomy.memory_limit.reset();
  roomy.device_memory.reset();
  for (RankCost& rank : roomy.costs.ranks) rank.memory_bytes.reset();
  std::optional<int64_t> least;
  for (const Candidate& candidate : CandidatesOf(roomy)) {
    const std::vector<CellBytes> cells = LeastCells(candidate, recompute, CostStages(spec));
    // All but the chunk that runs may wait in the host's memory.
    const bool offloads = spec.offload.choice == Offload::Choice::kAuto;
    const int64_t held =
        offloads ? std::max<int64_t>(1, LargestOf(cells)) : SerialPeak(candidate.frame, cells);
    const int64_t limit = bytes ? held : LimitNeeded(spec, candidate.frame, held);
    least = std::min(least.value_or(limit), limit);
  }
  return least;
}

std::string MemoryAdvice(const Spec& spec) {
  CF_ASSERT(spec.memory_limit);
  const int64_t limit = *LimitFor(spec, CostStages(spec));
  const std::string unit = MemoryLimit(spec.costs).unit();
  const std::optional<int64_t> asked = LeastLimit(spec, spec.recompute);
  CF_ASSERT(asked);
  const std::string least = std::to_string(*asked);
  const std::string text = "does not fit `memory_limit`: one micro-batch alone holds " + least +
                           unit + " on a rank" + With(spec.recompute) + ", the limit is " +
                           std::to_string(limit) + unit + "; raise it to " + least;
  const std::optional<int64_t> free = LeastLimit(spec, {.choice = Recompute::Choice::kFull});
  if (spec.recompute.everything() || !free || *free >= *asked) return text;
  if (*free <= limit) return text + ", or give `recompute` auto, which fits";
  return text + ", or to " + std::to_string(*free) + " with `recompute` auto";
}

std::string DeviceAdvice(const Spec& spec, bool activations) {
  std::vector<std::string> ways = {"more `ranks`", "`zero` with `data_parallel`"};
  const bool plain = spec.recompute.choice == Recompute::Choice::kNone;
  if (activations && !spec.recompute.everything())
    ways.push_back(plain ? "`recompute`" : "`recompute` auto");
  if (spec.schedule != kAuto.name) ways.push_back("another schedule");
  std::string text = "use " + ways.front();
  for (size_t i = 1; i < ways.size(); ++i) {
    text += (i + 1 < ways.size() ? ", " : ", or ") + ways[i];
  }
  const std::optional<GpuCost>& gpu = spec.costs.gpu;
  if (!gpu || !gpu->memory_bytes || spec.device_memory != gpu->memory_bytes) return text;
  return text + "; this is the memory of " + gpu->name +
         " in the costs, `device_memory` none lifts it";
}

}  // namespace contraflow
