#pragma once

#include <vector>

#include "schedules/partition/stages.h"

namespace contraflow {

/// Least compute of a stage for a micro-batch, F, B and W, in pairs or not (LeastWorkOf), for
/// stages that are looked at again and again; and a price of each layer that sums up to no more
/// than that, whichever stages they form.
class LayerWork {
 public:
  /// Only of stages whose compute lane alone is busy for less than `most` a micro-batch: of others
  /// that is all that is known. `layers` must outlive this.
  LayerWork(LayerStages* layers, Time most);

  /// Work of a stage with the layers first..last-1.
  Time Of(int first, int last);
  /// The prices of the layers before the i-th.
  Time before(int i) const { return before_[static_cast<size_t>(i)]; }
  Time between(int first, int last) const { return before(last) - before(first); }

 private:
  /// Time for which its compute lane is busy.
  Time Busy(int first, int last) const;
  bool Looks(int first, int last) const;
  void RaisePrice(int kind, std::vector<Time>* prices);

  LayerStages& layers_;
  const Time most_;
  std::vector<std::vector<Time>> known_;  // by first layer and number; -1: not yet
  std::vector<Time> before_;
};

}  // namespace contraflow
