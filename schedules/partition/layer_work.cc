// Prices of layers. Layers that overlap take longer together than their compute lane alone is busy:
// messages are exposed at the ends, or the all-to-all lane is the fuller one. So much is sure of a
// layer wherever it is: for the layers of one kind, with those of all others at their prices so
// far,
//
//     price = min over stages that have some of (work of the stage - prices of the others) /
//     number.
//
// The work of every stage is then no less than the prices of its layers. The busy time of a compute
// lane is the price to begin with, and kinds are raised one after the other.

#include "schedules/partition/layer_work.h"

#include <algorithm>

#include "schedules/partition/joint_bound.h"

namespace contraflow {
namespace {

/// Layers of a stage that are looked at together: how they overlap takes long to find.
constexpr int kMostLayers = 24;

}  // namespace

LayerWork::LayerWork(LayerStages* layers, Time most) : layers_(*layers), most_(most) {
  const int count = layers_.layers();
  known_.resize(static_cast<size_t>(count));
  std::vector<Time> prices;
  int kinds = 0;
  for (int i = 0; i < count; ++i) {
    prices.push_back(layers_.least_work_before(i + 1) - layers_.least_work_before(i));
    kinds = std::max(kinds, layers_.alike(i) + 1);
  }
  for (int kind = 0; kind < kinds; ++kind) RaisePrice(kind, &prices);
  before_.push_back(0);
  for (const Time price : prices) before_.push_back(before_.back() + price);
}

Time LayerWork::Busy(int first, int last) const {
  return layers_.least_work_before(last) - layers_.least_work_before(first);
}

bool LayerWork::Looks(int first, int last) const {
  return last - first <= kMostLayers && Busy(first, last) < most_;
}

Time LayerWork::Of(int first, int last) {
  const Time busy = Busy(first, last);
  if (!Looks(first, last)) return busy;
  std::vector<Time>& known = known_[static_cast<size_t>(first)];
  const auto length = static_cast<size_t>(last - first);
  if (known.size() <= length) known.resize(length + 1, -1);
  // Layers that overlap are costly to look at together.
  if (known[length] < 0) known[length] = std::max(busy, LeastWorkOf(layers_.CostOf(first, last)));
  return known[length];
}

void LayerWork::RaisePrice(int kind, std::vector<Time>* prices) {
  const int count = layers_.layers();
  Time price = -1;
  for (int first = 0; first < count; ++first) {
    Time others = 0;
    int of_kind = 0;
    for (int last = first; last < count; ++last) {
      if (!Looks(first, last + 1)) {
        if (Busy(first, last + 1) < most_) return;  // its work is not known
        // No partition of interest has as long a stage.
        break;
      }
      if (layers_.alike(last) == kind) {
        ++of_kind;
      } else {
        others += (*prices)[static_cast<size_t>(last)];
      }
      if (of_kind == 0) continue;
      const Time here = (Of(first, last + 1) - others) / of_kind;
      if (price < 0 || here < price) price = here;
    }
  }
  for (int i = 0; i < count; ++i) {
    Time& own = (*prices)[static_cast<size_t>(i)];
    if (layers_.alike(i) == kind) own = std::max(own, price);
  }
}

}  // namespace contraflow
