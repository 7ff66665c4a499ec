#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "schedules/search/search_problem.h"

namespace contraflow {

class NoiseDraw;

/// Evaluate for many orders of one problem: keeps its arrays, so that a run allocates nothing.
/// Times are computed, not waited for: each rank runs until a message is missing and is taken up
/// again when that message leaves, so every action is looked at once, plus once for each wait.
class Evaluator {
 public:
  /// The problem must outlive it.
  explicit Evaluator(const SearchProblem& problem);

  /// Valid until the next run. If `runs` is false, no other figure means anything. A draw (noise.h)
  /// replaces the durations.
  const Evaluation& Run(const Order& order, const NoiseDraw* draw = nullptr);

 private:
  /// The stage before or after one.
  struct Neighbour {
    int32_t stage = -1, rank = -1;
    int32_t edge = -1;  // the directed edge to it; -1 where links are free
    Time hop = 0;       // of a message to it
    bool here = false;  // on the same rank
  };
  /// Costs of a stage and the targets of its messages, in one piece of memory.
  struct StageState {
    size_t first = 0;  // of its chunks in the tables by chunk
    int32_t count = 0;
    Neighbour before, after;
    CellBytes memory = {};
    int32_t f = 0, b = 0, w = 0;  // how many have run
    Time cost[4] = {};            // F, B, W, BW where all micro-batches cost the same
  };
  enum class Step : uint8_t { kDone, kWaits, kNever };

  StageState& At(int32_t stage) { return states_[static_cast<size_t>(stage)]; }
  const StageState& At(int32_t stage) const { return states_[static_cast<size_t>(stage)]; }
  /// Message for the F (0) or the B (1) of a chunk, in the table of arrivals.
  static size_t MessageOf(const StageState& stage, int32_t k, size_t backward) {
    return 2 * (stage.first + static_cast<size_t>(k)) + backward;
  }
  size_t PairIndex(int32_t stage, int32_t back) const {
    return static_cast<size_t>(stage) * places_ + place_[static_cast<size_t>(back)];
  }
  void Reset();
  bool Walk(int r, const ActionList& list);
  Step Ready(int r, const Action& action, Time* ready);
  Step Arrived(int r, const StageState& stage, bool backward, Time* ready);
  Time Duration(const Action& action) const;
  void Depart(const Neighbour& to, int32_t k, size_t backward, Time made);

  const SearchProblem& problem_;
  const NoiseDraw* draw_ = nullptr;
  std::vector<StageState> states_;
  std::array<std::vector<Time>, 4> scaled_;  // by chunk; empty where no scale is given
  std::vector<Time> pair_;     // FB by stage and place of the other among its rank's stages
  std::vector<size_t> place_;  // of a stage among its rank's stages
  size_t places_ = 0;
  Time latency_ = 0;
  std::vector<Time> arrivals_;  // when what F and B of a chunk need from another rank is there
  std::vector<Time> edge_free_, lane_free_, first_start_;
  std::vector<int64_t> waits_;
  std::vector<RankMemory> memory_;
  std::vector<size_t> next_;
  std::vector<int> ready_;
  Evaluation result_;
};

}  // namespace contraflow
