#pragma once

#include <vector>

#include "schedules/partition/stages.h"

namespace contraflow {

/// Least compute of a stage for a micro-batch, F, B and W, in pairs or not (LeastWorkOf), for
/// stages that are looked at again and again.
class LayerWork {
 public:
  /// Only of stages whose compute lane alone is busy for less than `most` a micro-batch: of others
  /// that is all that is known. `layers` must outlive this.
  LayerWork(LayerStages* layers, Time most)
      : layers_(*layers), most_(most), known_(static_cast<size_t>(layers->layers())) {}

  /// Work of a stage with the layers first..last-1.
  Time Of(int first, int last);
  /// Time for which the compute lane is busy with the layers before the i-th, and with some. It
  /// sums up to no more than the work, whichever stages the layers form.
  Time before(int i) const { return layers_.least_work_before(i); }
  Time between(int first, int last) const { return before(last) - before(first); }

 private:
  LayerStages& layers_;
  const Time most_;
  std::vector<std::vector<Time>> known_;  // by first layer and number; -1: not yet
};

}  // namespace contraflow
