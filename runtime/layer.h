#pragma once

#include <cstdint>
#include <vector>

#include "kernels/buffer.h"
#include "runtime/model.h"
#include "runtime/parameters.h"

namespace contraflow {

/// What one layer keeps of one micro-batch. F fills the first group, B frees of it what W does not
/// need and fills the second, W frees all.
template <typename T>
struct LayerStash {
  // Kept from F to W.
  Buffer<T> x, attention_rstd, attention_xn;  ///< input, and normed for the attention
  Buffer<T> attention;                        ///< values weighted with the probabilities
  Buffer<T> y, expert_rstd, expert_xn;        ///< after the attention, and normed for the experts
  Buffer<T> sorted, hidden;  ///< input of the experts, and of their down projection
  Buffer<int32_t> first;     ///< rows of each expert
  // Kept from F to B.
  Buffer<T> qkv, attention_probabilities;
  Buffer<T> router_probabilities, weight;
  Buffer<T> gate_up, expert_out;
  Buffer<int32_t> expert, row_of;
  // Kept from B to W: gradients.
  Buffer<T> dqkv, dy, dattention_xn, dexpert_xn, dlogits, dgate_up, dexpert_out;
};

/// Angles of the rotary position embedding; the same for every layer.
template <typename T>
struct RopeTable {
  explicit RopeTable(const Model& model);
  Buffer<T> cosine, sine;
};

/// One layer of the model at `parameters + offsets`, the same code whichever stage it is in.
template <typename T>
struct Layer {
  const Model* model;
  const RopeTable<T>* rope;
  LayerOffsets offsets;

  /// Takes the input [tokens x d], returns the output.
  Buffer<T> Forward(const T* parameters, Buffer<T> x, LayerStash<T>* stash) const;
  /// Takes the gradient of the output, returns the gradient of the input.
  Buffer<T> BackwardInput(const T* parameters, const Buffer<T>& dz, LayerStash<T>* stash) const;
  /// Adds to the weight gradients and empties the stash.
  void BackwardWeight(LayerStash<T>* stash, T* gradients) const;
};

}  // namespace contraflow
