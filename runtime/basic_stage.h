#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/buffer.h"
#include "runtime/layer.h"
#include "runtime/model.h"
#include "runtime/parameters.h"

namespace contraflow {

/// What F leaves for B, and B for W, of one stage and micro-batch.
template <typename T>
struct BasicStash {
  /// What has been done with it; each of B and W happens once, in this order.
  enum class Phase : uint8_t { kForward, kBackward } phase = Phase::kForward;
  std::vector<LayerStash<T>> layers;
  // Stage 0: the tokens, and the gradient of their embeddings.
  std::vector<int32_t> tokens;
  Buffer<T> dembedding;
  // Last stage: input of the final norm, input of the head, and the gradients W needs of both.
  // `logits` holds the probabilities after F and the gradient of the logits after B.
  std::vector<int32_t> targets;
  Buffer<T> x, rstd, xn, dxn, logits;
};

/// The computation of Stage (runtime/stage.h) for any scalar. The runtime uses float; double is for
/// the proof that the gradients are those of the loss, by finite differences.
template <typename T>
class BasicStage {
 public:
  BasicStage(const Model& model, int stage, int stages, uint64_t seed);
  BasicStage(const BasicStage&) = delete;
  BasicStage& operator=(const BasicStage&) = delete;

  std::vector<T> Forward(const std::vector<int32_t>& tokens, const std::vector<int32_t>& targets,
                         const std::vector<T>& input, BasicStash<T>* stash, T* loss) const;
  std::vector<T> BackwardInput(const std::vector<T>& output_gradient, T loss_scale,
                               BasicStash<T>* stash) const;
  void BackwardWeight(BasicStash<T>* stash);
  void ZeroGradients();
  void OptimizerStep(int step);

  std::span<T> parameters() { return parameters_; }
  std::span<T> gradients() { return gradients_; }
  std::span<const ParameterBlock> blocks() const { return layout_.blocks; }

 private:
  bool first() const { return stage_ == 0; }
  bool last() const { return stage_ == stages_ - 1; }
  size_t activation_size() const;
  T Head(Buffer<T> x, const std::vector<int32_t>& targets, BasicStash<T>* stash) const;
  Buffer<T> HeadBackwardInput(T loss_scale, BasicStash<T>* stash) const;
  void HeadBackwardWeight(const BasicStash<T>& stash);

  Model model_;
  int stage_, stages_;
  ParameterLayout layout_;
  RopeTable<T> rope_;
  std::vector<Layer<T>> layers_;
  Buffer<T> parameters_, gradients_, m_, v_;
};

}  // namespace contraflow
