#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "compiler/plan/cost.h"
#include "compiler/plan/plan.h"
#include "compiler/plan/recompute_cost.h"

namespace contraflow {

/// An instruction and its chunks: of the forward, of the backward; W and R have the latter.
struct Item {
  Op op = Op::F;
  int32_t forward = -1, back = -1;
  Time duration = 0;
};

/// Items of a rank, in order.
using Items = std::vector<Item>;

/// A compute order that recomputes, laid out for a search that moves its instructions. Chunks are
/// numbered micro-batch by micro-batch.
class RecomputedProblem {
 public:
  /// Plan and costs must outlive it.
  RecomputedProblem(const Plan& plan, const CostModel& costs, std::optional<int64_t> limit);

  size_t chunks() const { return before_.size(); }
  size_t ranks() const { return plan_.programs.size(); }
  int32_t Before(int32_t c) const { return before_[static_cast<size_t>(c)]; }
  int32_t After(int32_t c) const { return (c + 1) % stages_ == 0 ? -1 : c + 1; }
  Time Hop(int32_t c) const { return hop_[static_cast<size_t>(c)]; }
  size_t Rank(int32_t c) const { return static_cast<size_t>(rank_[static_cast<size_t>(c)]); }
  int32_t Stage(int32_t c) const { return c % stages_; }
  int stages() const { return stages_; }

  Item ItemOf(const Instruction& i) const;
  Instruction InstructionOf(const Item& item) const;
  /// One part of a full backward, or all of it.
  Item Backward(Op op, int32_t c) const;
  /// R of a chunk.
  Item Again(int32_t c) const;

  /// How much of a stage runs again where its cells do, and how much else could: fewer or more of
  /// its first layers. One entry where its layers are not known.
  const RecomputeExtent& Extent(int s) const { return extents_[static_cast<size_t>(s)]; }
  std::vector<RecomputeExtent> ExtentsOf(int s) const;
  void SetExtent(int s, const RecomputeExtent& extent);

  /// Whether a rank that runs this never holds more than the limit. `again`: chunks that are
  /// recomputed.
  bool Fits(const Items& list, const std::vector<bool>& again) const;

 private:
  const CellBytes& BytesOf(int32_t c) const { return cells_[static_cast<size_t>(c % stages_)]; }

  const Plan& plan_;
  const CostModel& costs_;
  const int32_t stages_;
  std::vector<RecomputeExtent> extents_;  // by stage
  std::vector<CellBytes> cells_;          // by stage
  const std::optional<int64_t> limit_;
  std::vector<int32_t> before_;  // by chunk
  std::vector<Time> hop_;        // from the stage before
  std::vector<int> rank_;
};

/// When the lists of all ranks end; each instruction is looked at once, plus once for each wait.
class RecomputedClock {
 public:
  /// The problem must outlive it.
  explicit RecomputedClock(const RecomputedProblem& problem);

  /// The makespan, and a little for the mean end of the ranks; nothing where ranks wait for ever.
  std::optional<Time> Run(const std::vector<Items>& lists);
  /// Makespan of the last run.
  Time makespan() const { return makespan_; }

 private:
  static size_t Place(int32_t c, bool backward) { return 2 * static_cast<size_t>(c) + backward; }
  bool Arrived(size_t r, int32_t neighbour, Time hop, bool backward, Time* start);
  void Ended(int32_t c, bool backward, Time end);
  void Walk(size_t r, const Items& list);

  const RecomputedProblem& problem_;
  std::vector<Time> end_;       // of F and B of each chunk
  std::vector<int32_t> waits_;  // the rank that waits for it
  std::vector<Time> lane_;
  std::vector<size_t> next_, ready_;
  Time makespan_ = 0;
};

}  // namespace contraflow
