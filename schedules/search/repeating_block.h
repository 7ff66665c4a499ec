#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "schedules/search/search_problem.h"

namespace contraflow {

/// A schedule that repeats: the k-th micro-batch of each route does the same as the first, k
/// periods later, and no two instructions of a rank ever meet. The building blocks of Qi et al.,
/// "Pipeline Parallelism with Controllable Memory" (arXiv 2405.15362, section 3), for any placement
/// and any costs, with real start times in place of slots.
struct RepeatingBlock {
  Time period = 0;
  std::vector<Time> f, b, w;  ///< starts, by stage
};

/// Finds blocks by placing one instruction after the other along the way of a micro-batch, each as
/// early as the period leaves room on its rank (modulo scheduling), after delays that are searched.
class BlockSearch {
 public:
  /// How a block does: nothing but memory counts once the period is given.
  struct Fit {
    int64_t excess = 0;  ///< by which all ranks together exceed the limit; kNoRoom: no block
    double area = 0;     ///< memory x time of all ranks
    bool operator<(const Fit& other) const {
      return excess != other.excess ? excess < other.excess : area < other.area;
    }
  };

  /// The problem must outlive it.
  explicit BlockSearch(const SearchProblem& problem);

  /// The least period that the work of the busiest rank allows, and memory if nothing waited.
  Time least_period() const { return least_; }
  /// Instructions of a block, for accounts.
  int64_t size() const { return static_cast<int64_t>(3 * problem_.stages.size()); }

  /// Changes the delays `rounds` times at random, keeping what fits no worse; stops early where the
  /// block fits. Begins with the delays of the last call.
  Fit Search(Time period, int rounds, std::mt19937_64* random);
  /// Other delays to begin with.
  void Shake(std::mt19937_64* random) {
    for (int i = 0; i < 8; ++i) Mutate(random);
  }
  /// Block of the last Search.
  const RepeatingBlock& block() const { return block_; }

  static constexpr int64_t kNoRoom = INT64_MAX;

 private:
  struct Busy {
    Time begin, length;  // begin in [0, period)
  };
  Time FirstFit(size_t rank, Time ready, Time length) const;
  bool Put(size_t rank, Time ready, Time length, Time* start);
  int64_t PeakOf(size_t rank) const;
  Fit Place(Time period);
  void Mutate(std::mt19937_64* random);

  const SearchProblem& problem_;
  Time least_ = 0;
  RepeatingBlock block_;
  std::vector<std::vector<Busy>> busy_;
  std::vector<std::vector<int>> routes_;  // stages of each route by stage
  std::vector<Time> delays_;              // of each route: before it, before each F, before each B
};

/// F and B of each rank if the block repeats for all micro-batches, in the order of time.
Order OrderOf(const SearchProblem& problem, const RepeatingBlock& block);

}  // namespace contraflow
