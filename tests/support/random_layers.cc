#include "tests/support/random_layers.h"

#include <string>

#include "compiler/plan/layer_cost.h"

namespace contraflow {

CostModel RandomLayers(std::mt19937_64* random, int layers, bool bytes) {
  const auto draw = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(*random);
  };
  CostModel costs;
  costs.comm.latency = draw(0, 3);
  int left = layers;
  while (left > 0) {
    LayerCost layer = {.name = "layer " + std::to_string(costs.layers.size()),
                       .repeat = draw(1, left),
                       .cost = {.f = draw(1, 9), .b = draw(1, 9), .w = draw(1, 9)}};
    layer.cost.bw = layer.cost.b + layer.cost.w;
    layer.cost.fb = layer.cost.f + layer.cost.bw;
    if (bytes) {
      layer.activation_bytes = draw(1, 9);
      layer.w_stash_bytes = draw(0, static_cast<int>(layer.activation_bytes));
      layer.parameter_bytes = draw(0, 9);
    }
    left -= layer.repeat;
    costs.layers.push_back(layer);
  }
  return costs;
}

std::vector<Partition> AllPartitions(int layers, int stages) {
  if (stages == 1) return {{layers}};
  std::vector<Partition> all;
  for (int first = 1; first <= layers - stages + 1; ++first) {
    for (Partition rest : AllPartitions(layers - first, stages - 1)) {
      rest.insert(rest.begin(), first);
      all.push_back(rest);
    }
  }
  return all;
}

}  // namespace contraflow
