#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "schedules/search_problem.h"

namespace contraflow {

/// A schedule that repeats: the k-th micro-batch of each route does the same as the first, k
/// periods later, and no two instructions of a rank ever meet. The building blocks of Qi et al.,
/// "Pipeline Parallelism with Controllable Memory" (arXiv 2405.15362, section 3), for any placement
/// and any costs, with real start times in place of slots.
struct RepeatingBlock {
  Time period = 0;
  std::vector<Time> f, b, w;  ///< starts, by line
};

/// Finds blocks by placing one instruction after the other along the way of a micro-batch, each as
/// early as the period leaves room on its rank (modulo scheduling), with random delays in between.
class BlockSearch {
 public:
  /// The problem must outlive it.
  explicit BlockSearch(const SearchProblem& problem);

  /// The least period that the work of the busiest rank allows, and memory if nothing waited.
  Time least_period() const { return least_; }
  /// Instructions of a block, for accounts.
  int64_t size() const { return static_cast<int64_t>(3 * problem_.lines.size()); }

  /// Tries one set of delays, the more of them the larger `spread` (percent of a forward); 0: none.
  /// By how much memory the fullest rank would exceed the limit, at most 0 where the block fits; a
  /// period too short to hold the work gives kNoRoom.
  int64_t Try(Time period, int spread, std::mt19937_64* random);
  const RepeatingBlock& block() const { return block_; }

  static constexpr int64_t kNoRoom = INT64_MAX;

 private:
  struct Busy {
    Time begin, length;  // begin in [0, period)
  };
  Time FirstFit(size_t rank, Time ready, Time length) const;
  bool Put(size_t rank, Time ready, Time length, Time* start);
  int64_t PeakOf(size_t rank) const;

  const SearchProblem& problem_;
  Time least_ = 0;
  RepeatingBlock block_;
  std::vector<std::vector<Busy>> busy_;
  std::vector<std::vector<int>> routes_;  // lines of each route by stage
};

/// What each rank runs of F and B if the block repeats for all micro-batches, in the order of time.
Order OrderOf(const SearchProblem& problem, const RepeatingBlock& block);

}  // namespace contraflow
