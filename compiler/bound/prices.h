#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "compiler/plan/cost.h"

namespace contraflow {

/// A stage of a route as prices see it.
struct PricedStage {
  int rank = -1;  ///< -1: of none; a micro-batch takes its time there, and no rank's
  StageCost cost;
  Time hop = 0;  ///< of a message to the next stage, or back
};

/// A step with micro-batches that are all alike, or the part of it that some ranks do.
struct PricedStep {
  struct Route {
    double microbatches = 0;
    std::vector<PricedStage> stages;
  };
  int ranks = 0;
  /// A rank that does twice what its stages say: of two routes that are each other's mirror image,
  /// where one stands for both, the one in the middle; -1: none.
  int doubled = -1;
  std::vector<Route> routes;
};

/// For each slot of time one behind the other: what the time of each rank costs, and what the
/// forward of each kind of pair pays. Those that were of use before are where the next search
/// begins.
struct Prices {
  std::vector<double> time, phi;
};

/// Refutes makespans, by prices that are kept from one question to the next (prices.cc). The same
/// on every machine.
class PriceProof {
 public:
  /// `horizon`: the longest makespan that will be asked about. `slots`: how finely time is cut.
  PriceProof(Time horizon, int64_t slots) : slot_((horizon + slots - 1) / slots) {}

  /// True if it is proven that the step takes no less than `makespan`, whatever else its ranks do:
  /// by prices known from before or by those that a search of so many rounds finds, fewer where
  /// they would take more than `work` (TakeWork).
  bool Refutes(const PricedStep& step, Time makespan, int64_t rounds, int64_t work);

  /// Slots of operations that have been looked at, some ten nanoseconds each.
  int64_t TakeWork() { return std::exchange(work_, 0); }

 private:
  Time slot_;
  int64_t work_ = 0;
  std::vector<Prices> known_;  // what refuted last, first
};

}  // namespace contraflow
