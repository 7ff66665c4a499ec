#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "runtime/gpu/gpu.h"
#include "runtime/nccl/nccl_comms.h"

namespace contraflow {

/// Transport::Sum between GPUs. Every part gets one slice of the elements from all the others, adds
/// it up in the order of the parts, and sends the sum back: each element travels twice, and is
/// added in one order, at one place. In rounds, so that the memory for slices is bounded.
class NcclSum {
 public:
  /// Most elements of a round, and what its slices take in memory, in floats.
  static constexpr size_t kRound = size_t{8} << 20;

  /// What is passed must outlive it.
  NcclSum(const Plan& plan, const RankOrder& order, int process, NcclComms& comms);

  /// Allocates memory for sums of up to so many elements.
  void Reserve(Gpu& gpu, size_t elements);

  /// Makes the connections of the sums over a stage by messages of a few bytes. All who take part
  /// call it.
  void Connect(int stage, Transport::Over over, gpu::Stream stream);
  /// As Transport::Sum; this process holds the stage. Values are device memory.
  void Run(int stage, Transport::Over over, std::span<float> values, gpu::Stream stream);
  /// Whether there is anybody to add to.
  bool Needed(int stage, Transport::Over over) { return PartsOf(stage, over).processes.size() > 1; }

 private:
  /// Who takes part, in the order in which they are added.
  struct Parts {
    std::vector<int> processes;
    size_t place = 0;  // of this one
  };

  const Parts& PartsOf(int stage, Transport::Over over);
  void Round(const Parts& parts, std::span<float> values, gpu::Stream stream);

  const Plan& plan_;
  const RankOrder& order_;
  const int process_;
  const std::vector<std::vector<int>> holders_;
  NcclComms& comms_;
  std::map<std::pair<int, Transport::Over>, Parts> parts_;  // by stage
  float* work_ = nullptr;
  size_t round_ = 0;  // elements of a round
};

}  // namespace contraflow
