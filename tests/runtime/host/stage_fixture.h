#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/host/random.h"
#include "runtime/host/reference_run.h"
#include "runtime/host/stage.h"

namespace contraflow {

/// A model of awkward sizes: nothing is a multiple of a vector, heads are as narrow as they can be.
inline Model AwkwardModel(int layers) {
  return {.name = "awkward",
          .layers = layers,
          .width = 6,
          .heads = 3,
          .experts = 5,
          .top_k = 2,
          .expert_width = 7,
          .vocabulary = 11,
          .sequence = 5,
          .batch = 3};
}

/// Pseudo-random tokens; target t is the token after t.
inline MicroBatch RandomMicroBatch(const Model& model, uint64_t key) {
  MicroBatch micro;
  for (int b = 0; b < model.batch; ++b) {
    int32_t token = -1;
    for (int t = 0; t <= model.sequence; ++t) {
      if (t > 0) micro.tokens.push_back(token);
      key = DeriveKey(key, static_cast<uint64_t>(t));
      token = static_cast<int32_t>(key % static_cast<uint64_t>(model.vocabulary));
      if (t > 0) micro.targets.push_back(token);
    }
  }
  return micro;
}

/// A whole model whose members add to one gradient.
template <typename T>
struct Training : WholeModel<T> {
  explicit Training(const Model& model, uint64_t seed = 1, int members = 1)
      : WholeModel<T>(model, members, seed), layers{0, model.layers} {}

  void Weight(size_t members) {
    const std::vector<T*> dense(members, this->stage().dense_gradients().data());
    this->BackwardWeight(layers, dense, this->stage().expert_gradients().data());
  }
  /// F, B and W of a micro-batch of every member; returns their losses.
  std::vector<T> Train(std::span<const MicroBatch> micros, T loss_scale) {
    std::vector<T> losses = this->Forward(micros);
    this->BackwardInput(loss_scale);
    Weight(micros.size());
    return losses;
  }
  T Train(const MicroBatch& micro, T loss_scale) {
    return Train(std::span(&micro, 1), loss_scale)[0];
  }

  const LayerRange layers;
};

/// Blocks that are not as in `want`, by the relative error of the Euclidean norm.
template <typename T>
std::string BlocksApart(BasicStage<float>& got, BasicStage<T>& want, double bound) {
  std::string apart;
  for (const ParameterBlock& block : got.blocks()) {
    double error = 0, norm = 0;
    for (size_t i = block.offset; i < block.offset + block.size; ++i) {
      const auto x = static_cast<double>(want.gradients()[i]);
      error += std::pow(static_cast<double>(got.gradients()[i]) - x, 2);
      norm += x * x;
    }
    if (!(norm > 0 && std::sqrt(error) <= bound * std::sqrt(norm))) apart += block.name + "; ";
  }
  return apart;
}

}  // namespace contraflow
