#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "kernels/host/random.h"
#include "runtime/host/reference_run.h"
#include "runtime/host/stage.h"

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
template <typename T>
struct BasicChain {
  std::vector<WholeStage<T>> stages;

  BasicChain(const Model& model, int count, uint64_t seed = 1, int members = 1) {
    for (int s = 0; s < count; ++s) stages.emplace_back(model, s, count, members, seed);
  }

  /// One micro-batch of every member between F and W.
  struct Flight {
    std::vector<WholeStash<T>> stashes;
    std::vector<T> losses;                          // by member
    std::vector<std::vector<T>> inputs, gradients;  // of every stage
    T loss() const { return losses.at(0); }
  };

  Flight Forward(std::span<const MicroBatch> micros) const {
    Flight flight;
    flight.stashes.resize(stages.size());
    flight.gradients.resize(stages.size());
    std::vector<T> x;
    for (size_t s = 0; s < stages.size(); ++s) {
      flight.inputs.push_back(x);
      x = stages[s].Forward(micros, x, &flight.stashes[s], &flight.losses);
    }
    return flight;
  }
  Flight Forward(const MicroBatch& micro) const { return Forward(std::span(&micro, 1)); }
  void BackwardInput(Flight& flight, T loss_scale) {
    std::vector<T> d;
    for (size_t s = stages.size(); s > 0; --s) {
      d = stages[s - 1].BackwardInput(d, loss_scale, &flight.stashes[s - 1]);
      flight.gradients[s - 1] = d;
    }
  }
  void BackwardWeight(Flight& flight) {
    for (size_t s = stages.size(); s > 0; --s) {
      stages[s - 1].BackwardWeight(&flight.stashes[s - 1]);
    }
  }
  /// F, B and W in one go.
  Flight TrainAll(std::span<const MicroBatch> micros, T loss_scale) {
    Flight flight = Forward(micros);
    BackwardInput(flight, loss_scale);
    BackwardWeight(flight);
    return flight;
  }
  /// The same of one micro-batch; returns the loss.
  T Train(const MicroBatch& micro, T loss_scale) {
    return TrainAll(std::span(&micro, 1), loss_scale).loss();
  }

  /// Gradients (parameters) of all stages by name of their blocks, which is the same however the
  /// model is cut into stages.
  std::map<std::string, std::vector<T>> Gradients() {
    return Gather([](BasicStage<T>& stage) { return stage.gradients(); });
  }
  std::map<std::string, std::vector<T>> Parameters() {
    return Gather([](BasicStage<T>& stage) { return stage.parameters(); });
  }

 private:
  template <typename Values>
  std::map<std::string, std::vector<T>> Gather(Values values) {
    std::map<std::string, std::vector<T>> all;
    for (WholeStage<T>& whole : stages) {
      for (const ParameterBlock& block : whole.stage().blocks()) {
        const std::span<T> part = values(whole.stage()).subspan(block.offset, block.size);
        all[block.name].assign(part.begin(), part.end());
      }
    }
    return all;
  }
};
using Chain = BasicChain<float>;

}  // namespace contraflow
