#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <string>

#include "compiler/plan/plan.h"

namespace contraflow {

/// A placement (routes, no instructions), costs and memory so small that a search over all
/// schedules ends.
struct ExactInstance {
  Plan plan;
  CostModel costs;
  std::optional<int64_t> limit;
  std::string placement;  ///< "linear" "V" "bidirectional" "interleaved"
  std::string memory;     ///< "any memory" "below 1x" "from 1x on"
  std::string kind;       ///< of costs: "even" "uneven" "micro-batches" "full backwards" "pairs"

  /// Everything that it takes to draw it by hand.
  std::string Describe() const;
};

/// Random ones, the same for a seed everywhere.
class ExactInstances {
 public:
  explicit ExactInstances(uint64_t seed) : random_(seed) {}

  ExactInstance Next();

 private:
  int Of(int low, int high);
  void DrawPlacement(ExactInstance* instance);
  StageCost DrawStage(const std::string& kind);
  void DrawCosts(ExactInstance* instance);
  void DrawMemory(ExactInstance* instance);

  std::mt19937_64 random_;
};

}  // namespace contraflow
