#pragma once

#include <string>
#include <vector>

#include "compiler/plan/plan.h"

namespace contraflow {

/// How the makespan of a plan follows one of its costs.
struct Sensitivity {
  std::string cost;  ///< "f", where stages differ "f s3", "mlp_f", "comm", "occupancy"
  Time value = 0;    ///< ticks; of a list of components the sum of its entries
  /// Ticks of makespan a tick of the cost, from a simulation with it changed by 0.1 %: how often it
  /// stands on the critical path. The fall of a cost that cannot grow (a backward part as long as
  /// the whole) is taken off.
  double slope = 0;

  /// Worth of one per cent of the cost, in ticks of makespan.
  double PerCent() const { return slope * static_cast<double>(value) / 100; }
};

/// The costs that the makespan follows most, by what one per cent of them is worth, at most `most`
/// of them; only those above 0. For plans too large to try each cost, tries those on the critical
/// path. Throws Error as Simulate does.
std::vector<Sensitivity> Sensitivities(const Plan& plan, const CostModel& costs, size_t most);

}  // namespace contraflow
