#pragma once

#include <compare>
#include <cstddef>
#include <map>
#include <vector>

#include "compiler/plan/cost.h"
#include "runtime/core/transport.h"

namespace contraflow {

/// A part of the model and what is done with it: a component of a layer, or F, B or W of the
/// embedding or the head.
struct ModelPart {
  static constexpr int kEmbedding = -1;
  /// Layer of the whole model: kEmbedding, 0.., and one after the last layer for the head.
  int layer;
  Op op;

  auto operator<=>(const ModelPart&) const = default;
};

/// How long the parts of a model take on one device while it trains, all other devices at work as
/// well: what a plan of chunks does not tell apart. Used by one thread at a time.
class PartTimes {
 public:
  /// However long a training is, it remembers this many times of each part.
  static constexpr size_t kMostTimes = 512;

  /// Something that consists of parts begins.
  void Begin() { begun_ = Clock::now(); }
  /// A part ends, which began with the end of the one before, or with Begin.
  void End(ModelPart part) {
    const Clock::time_point now = Clock::now();
    Times& times = times_[part];
    const size_t at = times.seen++ % kMostTimes;
    if (at == times.newest.size()) times.newest.emplace_back();
    times.newest[at] = Nanoseconds(now - begun_);
    // The time taken by this belongs to no part.
    begun_ = Clock::now();
  }
  /// Forgets all times.
  void Clear() { times_.clear(); }

  /// In nanoseconds; of each part the newest times, in no order.
  std::map<ModelPart, std::vector<Time>> times() const {
    std::map<ModelPart, std::vector<Time>> newest;
    for (const auto& [part, times] : times_) newest[part] = times.newest;
    return newest;
  }

 private:
  struct Times {
    std::vector<Time> newest;
    size_t seen = 0;
  };

  Clock::time_point begun_{};
  std::map<ModelPart, Times> times_;
};

}  // namespace contraflow
