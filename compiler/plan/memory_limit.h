#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compiler/plan/cost.h"

namespace contraflow {

/// Limit of what a rank holds, and its unit: bytes of activations or, where the costs give no
/// activation_bytes, activations, one for each cell.
class MemoryLimit {
 public:
  /// Without an amount there is room for anything.
  explicit MemoryLimit(const CostModel& costs, std::optional<int64_t> amount = std::nullopt)
      : bytes_(costs.memory && costs.memory->activation_bytes > 0),
        activation_(bytes_ ? costs.memory->activation_bytes : 1),
        stash_(bytes_ ? costs.memory->w_stash_bytes : 1),
        largest_(activation_),
        amount_(amount) {
    if (!bytes_) return;
    for (const int64_t bytes : costs.memory->activation_of) largest_ = std::max(largest_, bytes);
  }

  /// The same for a rank with these stages.
  MemoryLimit(const CostModel& costs, std::optional<int64_t> amount, const std::vector<int>& stages)
      : MemoryLimit(costs, amount) {
    if (!bytes_ || stages.empty()) return;
    activation_ = stash_ = INT64_MAX;
    for (const int s : stages) {
      activation_ = std::min(activation_, costs.memory->activation(s));
      stash_ = std::min(stash_, costs.memory->stash(s));
    }
  }

  bool bytes() const { return bytes_; }  ///< else activations
  /// Amount that a cell holds from its F to its B; where stages differ, the least.
  int64_t activation() const { return activation_; }
  int64_t stash() const { return stash_; }      ///< of that what stays up to its W
  int64_t largest() const { return largest_; }  ///< activation of any stage of the plan
  std::optional<int64_t> amount() const { return amount_; }
  /// Cells between F and B, at most, of a limit with an amount.
  int64_t slots() const { return *amount_ / activation_; }

  /// " bytes" or " activations"
  std::string unit() const { return bytes_ ? " bytes" : " activations"; }

  /// The peak of a rank's figures (RankFigures) in what the limit counts.
  template <typename Figures>
  int64_t Peak(const Figures& rank) const {
    return bytes_ ? rank.peak_bytes : int64_t{rank.peak_activations};
  }
  /// True if no rank of a run (Simulation) ever holds more.
  template <typename Run>
  bool Fits(const Run& run) const {
    return !amount_ || std::all_of(run.ranks.begin(), run.ranks.end(),
                                   [this](const auto& rank) { return Peak(rank) <= *amount_; });
  }

 private:
  bool bytes_;
  int64_t activation_, stash_, largest_;
  std::optional<int64_t> amount_;
};

/// Returns how many activations of one of `to` stages a limit of as many of one of `from` stages of
/// the same model allows, rounded down.
inline int64_t ActivationsOf(int64_t limit, int from, int to) {
  return std::min(limit, INT64_MAX / to) * to / from;
}

/// True if the costs, of stages or of layers, say what activations take, so that limits are bytes.
bool CountsBytes(const CostModel& costs);

}  // namespace contraflow
