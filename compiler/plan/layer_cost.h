#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compiler/plan/cost.h"

namespace contraflow {

/// One layer of a model, or `repeat` alike ones in a row: what a partition puts into stages. Bytes
/// are those of one layer on one rank; activations are of one micro-batch.
struct LayerCost {
  std::string name;
  int repeat = 1;
  StageCost cost;  ///< of one micro-batch; without f, b, w, bw and fb where `moe` is
  std::optional<MoeCost> moe = {};  ///< the components of one layer
  /// Bytes of the state of the layer, where known.
  std::optional<int64_t> parameter_bytes = {}, gradient_bytes = {}, optimizer_bytes = {};
  /// The parameter_bytes of no expert; the other bytes divide alike. Unset: not known.
  std::optional<int64_t> rest_bytes = {};
  int64_t activation_bytes = 0, w_stash_bytes = 0;  ///< as in MemoryCost
  /// Bytes to the next layer, a message where that is on another rank; 0: as `comm` says.
  int64_t output_bytes = 0;
  /// The name of another layer that has the same parameters and counts them, such as the head of a
  /// tied embedding; "" for none.
  std::string tied = {};

  bool operator==(const LayerCost&) const = default;
};

/// The one list of the bytes that a stage and a layer hold as long as the training runs.
struct StateBytes {
  const char* key;  ///< in a cost file
  std::vector<int64_t> MemoryCost::*of_stages, MemoryCost::*rest_of_stages;
  std::optional<int64_t> LayerCost::*of_layer;
};
inline constexpr std::array<StateBytes, 3> kStateBytes = {
    {{"parameter_bytes", &MemoryCost::parameter_bytes, &MemoryCost::parameter_rest,
      &LayerCost::parameter_bytes},
     {"gradient_bytes", &MemoryCost::gradient_bytes, &MemoryCost::gradient_rest,
      &LayerCost::gradient_bytes},
     {"optimizer_bytes", &MemoryCost::optimizer_bytes, &MemoryCost::optimizer_rest,
      &LayerCost::optimizer_bytes}}};
/// Bytes of this kind that belong to no expert; 0 where that is not known.
int64_t RestOf(const LayerCost& layer, const StateBytes& state);

/// Most layers of a model, repeats counted.
inline constexpr int kMaxModelLayers = 4096;

/// Why a layer does not hold (more stash than activation, a sum over kMaxCost), or "".
std::string FlawOf(const LayerCost& layer, Unit unit);

}  // namespace contraflow
