#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "schedules/search/search_problem.h"

namespace contraflow {

/// Choice of a rank when several chunks are ready.
enum class Turn : uint8_t {
  kBackward,   ///< backwards before forwards
  kAlternate,  ///< the other of the two than last time
  kForward,    ///< forwards before backwards
};

/// How many micro-batches pass a stage, about, while one of them is away from it.
enum class Depth : uint8_t {
  kStages,  ///< stages after it, divided by the stages of its rank
  kLag,     ///< time from the end of its F to the start of its B if nothing waits, divided by the
            ///< work of the busiest rank for one micro-batch
};

/// Which of several stages of a rank goes first.
enum class Pick : uint8_t {
  kDeep,     ///< the one nearest to the last stage
  kShallow,  ///< the one nearest to the first stage
  kEarly,    ///< the one whose message came first
  kOld,      ///< the one whose next micro-batch has the lowest number
};

/// How the list scheduler decides (list_scheduler.h). Percentages are whole numbers, so that every
/// machine decides alike.
struct Policy {
  /// Micro-batches between F and B of a stage: at most one more than this percentage of its depth.
  /// 0: as many as memory holds.
  int ahead = 0;
  Depth depth = Depth::kStages;
  /// A rank fills a gap with a weight gradient where the gap is at least this percentage of it.
  int fill = 0;
  /// It lets a forward wait for a backward that arrives within this percentage of the forward.
  int wait = 0;
  /// The same for a forward of a stage that goes first (`forward`), on ranks with several stages.
  int wait_forward = 0;
  int wait_backward = 0;  ///< and for a backward, in place of another backward
  Turn turn = Turn::kBackward;
  Pick forward = Pick::kDeep, backward = Pick::kShallow;
  bool fused = false;  ///< full backwards instead of B and W

  bool operator==(const Policy&) const = default;
};

/// How one rank decides.
struct RankRule {
  int fill = 0, wait = 0, wait_forward = 0, wait_backward = 0;  ///< as in Policy
  Turn turn = Turn::kBackward;
  Pick forward = Pick::kDeep, backward = Pick::kShallow;
  /// With this many weight gradients due one of them goes before anything else.
  int32_t most_due = kMany;

  static constexpr int32_t kMany = 1 << 30;
};

/// A policy worked out for every rank and stage of a problem; a rule may differ from its
/// neighbours.
struct Rules {
  std::vector<RankRule> ranks;
  /// Most micro-batches between F and B, at least 1, by stage: up to its first B, and then.
  std::vector<int32_t> ahead_first, ahead;
  bool fused = false;
};

Rules RulesOf(const SearchProblem& problem, const Policy& policy);

/// "policy ahead 125 fill 50 wait 0 backward deep shallow"
std::string ToString(const Policy& policy);

/// The policies to try, the most successful first.
std::vector<Policy> PolicyGrid(const SearchProblem& problem);

}  // namespace contraflow
