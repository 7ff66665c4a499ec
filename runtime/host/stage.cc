#include "runtime/host/stage.h"

#include <algorithm>

#include "compiler/plan/error.h"
#include "kernels/host/adamw.h"
#include "kernels/host/embedding_and_loss.h"
#include "kernels/host/linear.h"
#include "kernels/host/normalization.h"
#include "runtime/checkpoint/checkpoint.h"

namespace contraflow {
namespace {

ExpertRange ExpertsOf(const LayerShape& shape, int member) {
  CF_ASSERT(member >= 0 && (member + 1) * shape.local_experts <= shape.experts);
  return {member * shape.local_experts, (member + 1) * shape.local_experts};
}

}  // namespace

template <typename T>
BasicStage<T>::BasicStage(const Model& model, const LayerShape& shape, int member, int stage,
                          int stages, uint64_t seed)
    : model_(model),
      shape_(shape),
      stage_(stage),
      stages_(stages),
      layout_(LayoutOfStage(model, stage, stages, ExpertsOf(shape, member))),
      rope_(shape),
      parameters_(layout_.size),
      gradients_(layout_.size),
      m_(layout_.size),
      v_(layout_.size) {
  CF_ASSERT(model.layers >= stages && stage >= 0 && stage < stages);
  for (const LayerOffsets& offsets : layout_.layers) layers_.push_back({&shape_, &rope_, offsets});
  DrawParameters(model_, stage_, stages_, ExpertsOf(shape, member), seed, parameters_.data());
}

template <typename T>
void BasicStage<T>::CheckTokens(const std::vector<int32_t>& tokens) const {
  CF_ASSERT(tokens.size() == static_cast<size_t>(shape_.tokens));
  CF_ASSERT(std::all_of(tokens.begin(), tokens.end(),
                        [&](int32_t t) { return t >= 0 && t < model_.vocabulary; }));
}

template <typename T>
int BasicStage<T>::AttentionForward(int layer, const MicroBatch& micro,
                                    const LayerViews<T>& v) const {
  if (HasEmbedding(layer)) {
    CheckTokens(micro.tokens);
    EmbeddingForward(micro.tokens.data(), dense() + layout_.embedding, shape_.tokens, shape_.width,
                     v.x);
  }
  return At(layer).AttentionForward(dense(), v);
}

template <typename T>
void BasicStage<T>::ExpertsForward(int layer, const LayerViews<T>& v) const {
  At(layer).ExpertsForward(experts(), v);
}

template <typename T>
T BasicStage<T>::CombineForward(int layer, const MicroBatch& micro, const LayerViews<T>& v) const {
  At(layer).CombineForward(v);
  if (!HasHead(layer)) return 0;
  CheckTokens(micro.targets);
  const LayerShape& n = shape_;
  RmsNormForward(v.z, dense() + layout_.final_norm, n.tokens, n.width, v.final_rstd, v.final_xn);
  LinearForward(v.final_xn, dense() + layout_.head, n.tokens, n.width, n.vocabulary, v.logits);
  return CrossEntropyForward(micro.targets.data(), n.tokens, n.vocabulary, v.logits);
}

template <typename T>
void BasicStage<T>::CombineBackward(int layer, const MicroBatch& micro, T loss_scale,
                                    const LayerViews<T>& v) const {
  if (HasHead(layer)) {
    const LayerShape& n = shape_;
    CrossEntropyBackwardInput(micro.targets.data(), loss_scale, n.tokens, n.vocabulary, v.logits);
    LinearBackwardInput(v.logits, dense() + layout_.head, n.tokens, n.width, n.vocabulary,
                        v.dfinal_xn);
    // Nothing runs past the final norm, so there is no residual gradient to join.
    std::fill_n(v.dz, static_cast<ptrdiff_t>(n.tokens) * n.width, T{0});
    RmsNormBackwardInput(v.z, dense() + layout_.final_norm, v.final_rstd, v.dfinal_xn, v.dz,
                         n.tokens, n.width, v.dz);
  }
  At(layer).CombineBackward(v);
}

template <typename T>
void BasicStage<T>::ExpertsBackward(int layer, const LayerViews<T>& v) const {
  At(layer).ExpertsBackward(experts(), v);
}

template <typename T>
void BasicStage<T>::DispatchBackward(int layer, const LayerViews<T>& v) const {
  At(layer).DispatchBackward(v);
}

template <typename T>
void BasicStage<T>::AttentionBackward(int layer, const LayerViews<T>& v) const {
  At(layer).AttentionBackward(dense(), v);
}

template <typename T>
void BasicStage<T>::ExpertsWeight(int layer, const LayerViews<T>& v, T* experts) const {
  At(layer).ExpertsWeight(v, experts);
}

template <typename T>
void BasicStage<T>::HeadWeight(const LayerViews<T>& v, T* dense) const {
  const LayerShape& n = shape_;
  LinearBackwardWeight(v.final_xn, v.logits, n.tokens, n.width, n.vocabulary, dense + layout_.head);
  RmsNormBackwardWeight(v.z, v.final_rstd, v.dfinal_xn, n.tokens, n.width,
                        dense + layout_.final_norm);
}

template <typename T>
void BasicStage<T>::AttentionWeight(int layer, const MicroBatch& micro, const LayerViews<T>& v,
                                    T* dense) const {
  At(layer).AttentionWeight(v, dense);
  if (!HasEmbedding(layer)) return;
  EmbeddingBackwardWeight(micro.tokens.data(), v.dx, shape_.tokens, shape_.width,
                          dense + layout_.embedding);
}

template <typename T>
void BasicStage<T>::ZeroGradients() {
  std::fill(gradients_.begin(), gradients_.end(), T{0});
}

template <typename T>
void BasicStage<T>::OptimizerStep(int step) {
  CF_ASSERT(step >= 1);
  double rate = static_cast<double>(model_.learning_rate);
  if (step < model_.warmup_steps) rate *= static_cast<double>(step) / model_.warmup_steps;
  const AdamW settings{rate, static_cast<double>(model_.beta1), static_cast<double>(model_.beta2),
                       static_cast<double>(model_.epsilon),
                       static_cast<double>(model_.weight_decay)};
  AdamWStep(settings, step, parameters_.size(), gradients_.data(), m_.data(), v_.data(),
            parameters_.data());
}

std::vector<StateBlock> StateOf(Stage& stage) {
  std::vector<StateBlock> blocks;
  for (const ParameterBlock& block : stage.blocks()) {
    const auto part = [&block](std::span<float> all) {
      return all.subspan(block.offset, block.size);
    };
    blocks.push_back({block.name, part(stage.parameters()), part(stage.first_moments()),
                      part(stage.second_moments())});
  }
  return blocks;
}

template class BasicStage<float>;
template class BasicStage<double>;

}  // namespace contraflow
