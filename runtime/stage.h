#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runtime/model.h"
#include "runtime/parameters.h"

namespace contraflow {

/// The bytes one micro-batch trains on: batch * sequence each; target t is the byte after token t.
struct MicroBatch {
  std::vector<int32_t> tokens, targets;
};

/// What F leaves for B, and B for W, of one stage and micro-batch. Freed by W.
struct Stash;
struct StashDeleter {
  void operator()(Stash*) const;
};
using StashPtr = std::unique_ptr<Stash, StashDeleter>;

/// One copy of one stage on one rank: parameters, gradients and optimizer state, and the truly
/// split forward, input-gradient and weight-gradient computation. Not thread safe; no hidden global
/// state; the same inputs give the same bits, whichever thread or rank runs it.
class Stage {
 public:
  /// Parameters are drawn from (seed, layer), so every copy of a stage and every partition of the
  /// model into stages starts from the same weights.
  Stage(const Model& model, int stage, int stages, uint64_t seed);
  ~Stage();
  Stage(Stage&&) noexcept;

  /// F. `input` is the output of the stage before [tokens x d] (empty for stage 0, which reads the
  /// tokens). Returns the activation for the next stage [tokens x d]; the last stage returns
  /// nothing and leaves the mean cross-entropy of the micro-batch in `loss`.
  std::vector<float> Forward(const MicroBatch& micro, std::vector<float> input, StashPtr* stash,
                             float* loss);

  /// B. Turns the gradient of the output [tokens x d] (empty for the last stage, which starts from
  /// its loss times `loss_scale`) into the gradient of the input [tokens x d] (empty for stage 0).
  /// Leaves in the stash what W needs; does not touch weight gradients.
  std::vector<float> BackwardInput(std::vector<float> output_gradient, float loss_scale,
                                   Stash* stash);

  /// W. Adds this micro-batch's weight gradients to gradients() and frees the stash.
  void BackwardWeight(StashPtr stash);

  void ZeroGradients();
  /// AdamW with the gradients as they are; `step` counts from 1.
  void OptimizerStep(int step);

  std::span<float> parameters();  ///< one flat, 64-byte aligned block
  std::span<float> gradients();   ///< same layout
  std::span<const ParameterBlock> blocks() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace contraflow
