#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "compiler/plan/plan.h"

namespace contraflow {

/// One of the devices that execute a plan: replicas x members of the expert group x ranks.
struct Device {
  int replica = 0;
  int member = 0;
  int rank = 0;

  bool operator==(const Device&) const = default;
};

/// The device's place among all devices of a plan: replica by replica, member by member, rank by
/// rank.
size_t DeviceNumber(const Plan& plan, Device device);
/// Replicas x members x ranks.
size_t DeviceCount(const Plan& plan);
/// In the order of their numbers.
std::vector<Device> AllDevices(const Plan& plan);

/// `replica 0 member 1 rank 2`, without what there is only one of.
std::string NameOf(const Plan& plan, Device device);

/// The stages that a rank holds a copy of, ascending.
std::vector<int> StagesOf(const Plan& plan, int rank);

}  // namespace contraflow
