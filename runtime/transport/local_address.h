#pragma once

#include <string>
#include <vector>

namespace contraflow {

/// The addresses of this machine that others may reach, each with the length of its network's
/// prefix (`192.0.2.2/24`): of the interfaces that are up, IPv4 ahead of IPv6, without loopback and
/// link-local ones.
std::vector<std::string> LocalAddresses();

/// The address of `own` at which all `others`, the machines of a job by their LocalAddresses, most
/// likely reach this machine: the first in whose network each has an address of its own; otherwise
/// the first. Without the prefix; "" if there is none. What is no such address is passed over.
std::string ReachableAddress(const std::vector<std::string>& own,
                             const std::vector<std::vector<std::string>>& others);

}  // namespace contraflow
