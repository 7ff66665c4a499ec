#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compiler/plan/plan.h"

namespace contraflow {

/// What a search is measured on.
struct BenchInstance {
  std::string group;  ///< rows of the report: "v 1x", "linear 1.5x", ...
  std::string name;   ///< "14.6B P=8 M=16"
  Plan frame;         ///< head and routes
  CostModel costs;
  int64_t limit = 0;
  std::vector<Plan> seeds;  ///< every schedule of the table with these routes
  /// Of the schedule that the group's memory comes from, in the order it has at unit cost, if the
  /// group has one.
  std::vector<Plan> published;
};

/// One stage a rank: 11 sets of costs, P 4 8 16, M P 2P 4P 8P, 1, 1.5 and 2 times 1F1B's memory.
std::vector<BenchInstance> LinearInstances(int max_ranks);
/// Two stages a rank: 9 sets, M 2P and 4P, 1 and 1.5 times 1F1B's memory, V-Half's and V-Min's.
std::vector<BenchInstance> VInstances(int max_ranks);
/// Two routes: 9 sets, M 2P 4P 8P, P+1 activations of a stage and half as many again.
std::vector<BenchInstance> BidirectionalInstances(int max_ranks);
/// The stages of cost files: M P 2P 4P, 1, 1.25, 1.5 and 2 times 1F1B's memory.
std::vector<BenchInstance> RealInstances(const std::vector<std::string>& files);

}  // namespace contraflow
