#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "schedules/partition/joint_bound.h"

namespace contraflow {

/// Times before and between the stages of one route on ranks that are alike.
class DeepRoute {
 public:
  DeepRoute(const Spec& spec, const LayerStages& layers, const Plan& frame)
      : layers_(layers),
        microbatches_(frame.microbatches),
        held_(MostForwardsHeld(spec, layers)),
        of_(frame.routes[0].ranks) {
    const Time hop = LeastHop(spec.costs);
    stages_.resize(static_cast<size_t>(frame.ranks));
    for (size_t s = 0; s < of_.size(); ++s) {
      hops_.push_back(s == 0 ? 0 : hops_.back() + (of_[s] != of_[s - 1] ? hop : 0));
      pass_.push_back(stages_[RankOf(s)].size());
      stages_[RankOf(s)].push_back(s);
    }
  }

  Time microbatches() const { return microbatches_; }
  /// Forwards that a rank can have run before its first backward; nothing: all.
  std::optional<Time> held() const { return held_; }
  size_t stages() const { return of_.size(); }
  /// Number of ranks, and the stages of each.
  size_t ranks() const { return stages_.size(); }
  const std::vector<size_t>& StagesOf(size_t rank) const { return stages_[rank]; }
  size_t RankOf(size_t s) const { return static_cast<size_t>(of_[s]); }
  /// Number of stages of its rank before stage s.
  size_t PassOf(size_t s) const { return pass_[s]; }

  /// Earliest time of the first micro-batch at stage s, whose first layer is `i`.
  Time Head(size_t s, int i) const { return layers_.forward_before(i) + hops_[s]; }
  /// Earliest time of the first micro-batch back at stage s, whose last layer is j - 1.
  Time BackAt(size_t s, int j) const {
    const int all = layers_.layers();
    return layers_.forward_before(all) + hops_.back() + layers_.backward_before(all) -
           layers_.backward_before(j) + hops_.back() - hops_[s];
  }

 private:
  const LayerStages& layers_;
  const Time microbatches_;
  const std::optional<Time> held_;
  const std::vector<int>& of_;
  std::vector<Time> hops_;  // before each stage, what messages take
  std::vector<size_t> pass_;
  std::vector<std::vector<size_t>> stages_;
};

/// Time of whole layers on the ranks together, up to `enough` (whole_layers.cc).
Time WholeLayers(const LayerStages& layers, const LayerWork& work, const DeepRoute& route,
                 Time enough);

}  // namespace contraflow
