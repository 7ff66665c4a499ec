#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "runtime/core/transport.h"
#include "runtime/transport/process_peers.h"

namespace contraflow {

/// Transport::Sum between processes. Every part adds up one share of the elements, of all parts in
/// their order, and sends it back: each element travels twice, and is added in one order, at one
/// place.
class OrderedSum {
 public:
  /// With `rendezvous`, messages are sent like that. The peers must outlive it.
  OrderedSum(const ProcessPeers& peers, bool rendezvous) : peers_(peers), rendezvous_(rendezvous) {}

  /// As Transport::Sum; this process is one of the holders. If it throws, messages of `values` may
  /// be under way.
  Clock::time_point Run(const Instruction& reduce, Transport::Over over,
                        std::span<const int> holders, std::span<float> values);

 private:
  /// Who takes part, in the order in which they are added.
  struct Parts {
    std::vector<Device> devices;
    std::vector<int> processes;
    size_t place = 0;  // of this one
  };

  const Parts& PartsOf(int stage, Transport::Over over, std::span<const int> holders);
  template <typename Send, typename Receive>
  void Begin(const Parts& parts, const Label& label, const Send& send, const Receive& receive);
  Clock::time_point Finish(const Parts& parts, const Label& label);

  const ProcessPeers& peers_;
  const bool rendezvous_;
  std::map<std::pair<int, Transport::Over>, Parts> parts_;  // by stage
  // Of the sum under way, by part:
  std::vector<int> sends_, receives_;  // tickets
  std::vector<uint64_t> sizes_;
  std::vector<std::span<const float>> shares_;
  std::vector<float> scratch_;  // where the shares of others are
};

}  // namespace contraflow
