#pragma once

#include <cstdint>
#include <string_view>

#include "compiler/plan/plan.h"
#include "runtime/core/devices.h"

namespace contraflow {

/// Most processes that one job can have.
inline constexpr int64_t kMaxProcesses = int64_t{1} << 20;

/// Which device of a plan each process of a job is. Written as the three dimensions from the one
/// that changes fastest to the slowest: `ep` the member of the expert group, `dp` the replica, `pp`
/// the rank.
class RankOrder {
 public:
  /// Neighbours in the job share experts, whose all-to-alls are the heaviest traffic.
  static constexpr std::string_view kDefault = "ep-dp-pp";

  /// `order` is a permutation of ep, dp and pp, joined by "-". Throws Error if it is not.
  RankOrder(std::string_view order, const Plan& plan);

  int processes() const { return size_[0] * size_[1] * size_[2]; }
  Device DeviceOf(int process) const;
  int ProcessOf(Device device) const;

 private:
  // Dimension at each place in the order (0 ep, 1 dp, 2 pp), and how many it has.
  int dimension_[3], size_[3];
};

}  // namespace contraflow
