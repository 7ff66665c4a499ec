#include "schedules/partition/layer_work.h"

#include <algorithm>

#include "schedules/partition/joint_bound.h"

namespace contraflow {
namespace {

/// Layers of a stage that are looked at together: how they overlap takes long to find.
constexpr int kMostLayers = 24;

}  // namespace

Time LayerWork::Of(int first, int last) {
  const Time busy = between(first, last);
  if (last - first > kMostLayers || busy >= most_) return busy;
  std::vector<Time>& known = known_[static_cast<size_t>(first)];
  const auto length = static_cast<size_t>(last - first);
  if (known.size() <= length) known.resize(length + 1, -1);
  // Layers that overlap are costly to look at together.
  if (known[length] < 0) known[length] = std::max(busy, LeastWorkOf(layers_.CostOf(first, last)));
  return known[length];
}

}  // namespace contraflow
