#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "compiler/plan/cost.h"

namespace contraflow {

/// What a rank may hold, and what that counts: bytes of activations or, where the costs give no
/// activation_bytes, activations, one for each cell.
class MemoryLimit {
 public:
  /// Without an amount there is room for anything.
  explicit MemoryLimit(const CostModel& costs, std::optional<int64_t> amount = std::nullopt)
      : bytes_(costs.memory && costs.memory->activation_bytes > 0),
        activation_(bytes_ ? costs.memory->activation_bytes : 1),
        stash_(bytes_ ? costs.memory->w_stash_bytes : 1),
        amount_(amount) {}

  bool bytes() const { return bytes_; }               ///< else activations
  int64_t activation() const { return activation_; }  ///< of a cell, from its F to its B
  int64_t stash() const { return stash_; }            ///< of that what stays up to its W
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
  int64_t activation_, stash_;
  std::optional<int64_t> amount_;
};

}  // namespace contraflow
