#pragma once

#include <cstdint>
#include <optional>

#include "compiler/plan/plan.h"
#include "schedules/search/search.h"

namespace contraflow {

/// Choices that moves may make about the recompute of an order.
enum class Freedom : uint8_t {
  kNone,
  kCells,   ///< which cells are recomputed
  kLayers,  ///< and how many of the first layers of each stage, where the costs know them
};

/// A compute order that recomputes, with its instructions moved within their ranks: F, R, B and W
/// of every chunk stay in order, and so do the micro-batches of every stage. If `freedom` allows,
/// switches recompute of single cells on or off, and changes the number of recomputed layers of a
/// stage. The shortest that holds no more than `limit` on any rank, as MemoryLimit counts, after
/// `budget` instructions of the work or at `bound`; never longer than `plan`, which fits. Returns
/// `plan` itself if messages queue on links. Deterministic for a seed.
Plan ImproveRecomputed(const Plan& plan, const CostModel& costs, std::optional<int64_t> limit,
                       Freedom freedom, Time bound, uint64_t seed, int64_t budget,
                       SearchWork* work);

}  // namespace contraflow
