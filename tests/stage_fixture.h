#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/random.h"
#include "runtime/basic_stage.h"
#include "runtime/stage.h"

namespace contraflow {

/// A model of awkward sizes: nothing is a multiple of a vector, heads are as narrow as they can be.
inline Model AwkwardModel(int layers) {
  Model model;
  model.name = "awkward";
  model.layers = layers;
  model.width = 6;
  model.heads = 3;
  model.experts = 5;
  model.top_k = 2;
  model.expert_width = 7;
  model.vocabulary = 11;
  model.sequence = 5;
  model.batch = 3;
  return model;
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

/// All stages of a model, chained without a pipeline.
struct Chain {
  std::vector<Stage> stages;

  Chain(const Model& model, int count, uint64_t seed = 1) {
    for (int s = 0; s < count; ++s) stages.emplace_back(model, s, count, seed);
  }

  /// One micro-batch between F and W.
  struct Flight {
    std::vector<StashPtr> stashes;
    float loss = 0;
  };

  Flight Forward(const MicroBatch& micro) {
    Flight flight;
    flight.stashes.resize(stages.size());
    std::vector<float> x;
    for (size_t s = 0; s < stages.size(); ++s) {
      x = stages[s].Forward(micro, std::move(x), &flight.stashes[s], &flight.loss);
    }
    return flight;
  }
  void BackwardInput(Flight& flight, float loss_scale) {
    std::vector<float> d;
    for (size_t s = stages.size(); s > 0; --s) {
      d = stages[s - 1].BackwardInput(std::move(d), loss_scale, flight.stashes[s - 1].get());
    }
  }
  void BackwardWeight(Flight& flight) {
    for (size_t s = stages.size(); s > 0; --s) {
      stages[s - 1].BackwardWeight(std::move(flight.stashes[s - 1]));
    }
  }
  /// F, B and W in one go; returns the loss.
  float Train(const MicroBatch& micro, float loss_scale) {
    Flight flight = Forward(micro);
    BackwardInput(flight, loss_scale);
    BackwardWeight(flight);
    return flight.loss;
  }

  /// Gradients (parameters) of all stages one after another, which is the layout of a single stage.
  std::vector<float> Gradients() { return Gather(&Stage::gradients); }
  std::vector<float> Parameters() { return Gather(&Stage::parameters); }

 private:
  std::vector<float> Gather(std::span<float> (Stage::*values)()) {
    std::vector<float> all;
    for (Stage& stage : stages) {
      const std::span<float> part = (stage.*values)();
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }
};

}  // namespace contraflow
