#include "runtime/core/rank_order.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "compiler/plan/error.h"

namespace contraflow {
namespace {

constexpr std::array<std::string_view, 3> kDimensions = {"ep", "dp", "pp"};

}  // namespace

RankOrder::RankOrder(std::string_view order, const Plan& plan) {
  std::array<int, 3> dimensions = {0, 1, 2};
  std::vector<std::string> orders;
  bool found = false;
  do {
    std::string name;
    for (const int d : dimensions) {
      name += (name.empty() ? "" : "-") + std::string(kDimensions[static_cast<size_t>(d)]);
    }
    if (name == order) {
      std::copy(dimensions.begin(), dimensions.end(), dimension_);
      found = true;
    }
    orders.push_back(std::move(name));
  } while (std::next_permutation(dimensions.begin(), dimensions.end()));
  if (!found) {
    std::string known;
    for (const std::string& name : orders) known += (known.empty() ? "" : ", ") + name;
    throw Error("unknown rank order \"" + std::string(order) + "\"" +
                DidYouMean(std::string(order), orders) + "; known are: " + known);
  }
  const int counts[3] = {plan.expert_parallel, plan.data_parallel, plan.ranks};
  int64_t processes = 1;
  for (size_t place = 0; place < 3; ++place) {
    size_[place] = counts[dimension_[place]];
    processes *= size_[place];
    if (processes > kMaxProcesses) {
      throw Error("a plan of " + std::to_string(plan.ranks) + " ranks, " +
                  std::to_string(plan.data_parallel) + " replicas and " +
                  std::to_string(plan.expert_parallel) + " members needs more than " +
                  std::to_string(kMaxProcesses) + " processes, the most that one job can have");
    }
  }
}

Device RankOrder::DeviceOf(int process) const {
  CF_ASSERT(process >= 0 && process < processes());
  int at[3] = {};
  for (size_t place = 0; place < 3; ++place) {
    at[dimension_[place]] = process % size_[place];
    process /= size_[place];
  }
  return {.replica = at[1], .member = at[0], .rank = at[2]};
}

int RankOrder::ProcessOf(Device device) const {
  const int at[3] = {device.member, device.replica, device.rank};
  int process = 0;
  for (size_t place = 3; place-- > 0;) {
    CF_ASSERT(at[dimension_[place]] >= 0 && at[dimension_[place]] < size_[place]);
    process = process * size_[place] + at[dimension_[place]];
  }
  return process;
}

}  // namespace contraflow
