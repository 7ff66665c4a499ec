#include "runtime/basic_stage.h"

#include <algorithm>
#include <utility>

#include "compiler/error.h"
#include "kernels/adamw.h"
#include "kernels/cross_entropy.h"
#include "kernels/embedding.h"
#include "kernels/linear.h"
#include "kernels/rmsnorm.h"

namespace contraflow {

template <typename T>
BasicStage<T>::BasicStage(const Model& model, int stage, int stages, uint64_t seed)
    : model_(model),
      stage_(stage),
      stages_(stages),
      layout_(LayoutOfStage(model, stage, stages, {0, model.experts})),
      rope_(model),
      parameters_(layout_.size),
      gradients_(layout_.size),
      m_(layout_.size),
      v_(layout_.size) {
  CF_ASSERT(model.layers >= stages && stage >= 0 && stage < stages);
  for (LayerOffsets& offsets : layout_.layers) {
    offsets.gate_up += layout_.dense;
    offsets.down += layout_.dense;
  }
  for (const LayerOffsets& offsets : layout_.layers) layers_.push_back({&model_, &rope_, offsets});
  DrawParameters(model_, stage_, stages_, {0, model.experts}, seed, parameters_.data());
}

template <typename T>
size_t BasicStage<T>::activation_size() const {
  return static_cast<size_t>(model_.tokens()) * static_cast<size_t>(model_.width);
}

template <typename T>
std::vector<T> BasicStage<T>::Forward(const std::vector<int32_t>& tokens,
                                      const std::vector<int32_t>& targets,
                                      const std::vector<T>& input, BasicStash<T>* stash,
                                      T* loss) const {
  const auto is_token = [&](int32_t t) { return t >= 0 && t < model_.vocabulary; };
  *stash = {};
  Buffer<T> x(activation_size());
  if (first()) {
    CF_ASSERT(input.empty());
    CF_ASSERT(tokens.size() == static_cast<size_t>(model_.tokens()));
    CF_ASSERT(std::all_of(tokens.begin(), tokens.end(), is_token));
    stash->tokens = tokens;
    EmbeddingForward(tokens.data(), parameters_.data() + layout_.embedding, model_.tokens(),
                     model_.width, x.data());
  } else {
    CF_ASSERT(input.size() == x.size());
    std::copy(input.begin(), input.end(), x.begin());
  }
  stash->layers.resize(layers_.size());
  for (size_t i = 0; i < layers_.size(); ++i) {
    x = layers_[i].Forward(parameters_.data(), std::move(x), &stash->layers[i]);
  }
  if (!last()) return std::vector<T>(x.begin(), x.end());
  CF_ASSERT(targets.size() == static_cast<size_t>(model_.tokens()));
  CF_ASSERT(std::all_of(targets.begin(), targets.end(), is_token));
  *loss = Head(std::move(x), targets, stash);
  return {};
}

template <typename T>
T BasicStage<T>::Head(Buffer<T> x, const std::vector<int32_t>& targets,
                      BasicStash<T>* stash) const {
  const int rows = model_.tokens();
  stash->x = std::move(x);
  stash->targets = targets;
  stash->rstd.resize(static_cast<size_t>(rows));
  stash->xn.resize(activation_size());
  RmsNormForward(stash->x.data(), parameters_.data() + layout_.final_norm, rows, model_.width,
                 stash->rstd.data(), stash->xn.data());
  stash->logits.resize(static_cast<size_t>(rows) * static_cast<size_t>(model_.vocabulary));
  LinearForward(stash->xn.data(), parameters_.data() + layout_.head, rows, model_.width,
                model_.vocabulary, stash->logits.data());
  return CrossEntropyForward(targets.data(), rows, model_.vocabulary, stash->logits.data());
}

template <typename T>
std::vector<T> BasicStage<T>::BackwardInput(const std::vector<T>& output_gradient, T loss_scale,
                                            BasicStash<T>* stash) const {
  CF_ASSERT(stash->phase == BasicStash<T>::Phase::kForward);
  stash->phase = BasicStash<T>::Phase::kBackward;
  Buffer<T> d;
  if (last()) {
    CF_ASSERT(output_gradient.empty());
    d = HeadBackwardInput(loss_scale, stash);
  } else {
    CF_ASSERT(output_gradient.size() == activation_size());
    d.assign(output_gradient.begin(), output_gradient.end());
  }
  for (size_t i = layers_.size(); i > 0; --i) {
    d = layers_[i - 1].BackwardInput(parameters_.data(), d, &stash->layers[i - 1]);
  }
  if (!first()) return std::vector<T>(d.begin(), d.end());
  stash->dembedding = std::move(d);
  return {};
}

template <typename T>
Buffer<T> BasicStage<T>::HeadBackwardInput(T loss_scale, BasicStash<T>* stash) const {
  const int rows = model_.tokens();
  CrossEntropyBackwardInput(stash->targets.data(), loss_scale, rows, model_.vocabulary,
                            stash->logits.data());
  stash->dxn.resize(activation_size());
  LinearBackwardInput(stash->logits.data(), parameters_.data() + layout_.head, rows, model_.width,
                      model_.vocabulary, stash->dxn.data());
  // Nothing runs past the final norm, so there is no residual gradient to join.
  Buffer<T> d(activation_size());
  RmsNormBackwardInput(stash->x.data(), parameters_.data() + layout_.final_norm, stash->rstd.data(),
                       stash->dxn.data(), d.data(), rows, model_.width, d.data());
  return d;
}

template <typename T>
void BasicStage<T>::BackwardWeight(BasicStash<T>* stash) {
  CF_ASSERT(stash->phase == BasicStash<T>::Phase::kBackward);
  if (last()) HeadBackwardWeight(*stash);
  for (size_t i = layers_.size(); i > 0; --i) {
    layers_[i - 1].BackwardWeight(&stash->layers[i - 1], gradients_.data());
  }
  if (first()) {
    EmbeddingBackwardWeight(stash->tokens.data(), stash->dembedding.data(), model_.tokens(),
                            model_.width, gradients_.data() + layout_.embedding);
  }
  *stash = {};
}

template <typename T>
void BasicStage<T>::HeadBackwardWeight(const BasicStash<T>& stash) {
  LinearBackwardWeight(stash.xn.data(), stash.logits.data(), model_.tokens(), model_.width,
                       model_.vocabulary, gradients_.data() + layout_.head);
  RmsNormBackwardWeight(stash.x.data(), stash.rstd.data(), stash.dxn.data(), model_.tokens(),
                        model_.width, gradients_.data() + layout_.final_norm);
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

template class BasicStage<float>;
template class BasicStage<double>;

}  // namespace contraflow
