#include "runtime/host/stage.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "compiler/plan/error.h"
#include "kernels/host/adamw.h"
#include "kernels/host/attention.h"
#include "kernels/host/embedding_and_loss.h"
#include "kernels/host/experts.h"
#include "kernels/host/linear.h"
#include "kernels/host/normalization.h"
#include "kernels/host/routing.h"
#include "runtime/model/dataset.h"

namespace contraflow {
namespace {

AttentionShape ShapeOfAttention(const LayerShape& n) {
  return {n.batch, n.sequence, n.heads, n.head_width};
}

ExpertsShape ShapeOfExperts(const LayerShape& n, const int32_t* first) {
  return {n.local_experts, n.width, n.expert_width, first};
}

}  // namespace

template <typename T>
BasicStage<T>::BasicStage(const Model& model, const LayerShape& shape, int member, int stage,
                          int stages, std::optional<uint64_t> seed)
    : model_(model),
      shape_(shape),
      stage_(stage),
      stages_(stages),
      layout_(LayoutOfStage(model, stage, stages, OwnedBy(member, shape.local_experts))),
      cosine_(static_cast<size_t>(shape.sequence) * static_cast<size_t>(shape.head_width / 2)),
      sine_(cosine_.size()),
      parameters_(layout_.size),
      gradients_(layout_.size),
      m_(layout_.size),
      v_(layout_.size) {
  CF_ASSERT(model.layers >= stages && stage >= 0 && stage < stages);
  FillRopeTable(shape.sequence, shape.head_width, cosine_.data(), sine_.data());
  if (seed) DrawParameters(layout_, *seed, parameters_.data());
}

template <typename T>
void BasicStage<T>::CheckTokens(const std::vector<int32_t>& tokens) const {
  CF_ASSERT(tokens.size() == static_cast<size_t>(shape_.tokens));
  CF_ASSERT(std::all_of(tokens.begin(), tokens.end(),
                        [&](int32_t t) { return t >= 0 && t < model_.vocabulary; }));
}

template <typename T>
void BasicStage<T>::Embed(const MicroBatch& micro, const LayerViews<T>& v) const {
  CheckTokens(micro.tokens);
  EmbeddingForward(micro.tokens.data(), dense() + layout_.embedding, shape_.tokens, shape_.width,
                   v.x);
}

// x -> norm -> qkv -> rope -> attention -> output projection -> + x = y
// y -> norm -> router, sort by expert
template <typename T>
int BasicStage<T>::AttentionForward(int layer, const LayerViews<T>& v) const {
  const LayerShape& n = shape_;
  const LayerOffsets& o = At(layer);
  RmsNormForward(v.x, dense() + o.attention_norm, n.tokens, n.width, v.attention_rstd,
                 v.attention_xn);
  LinearForward(v.attention_xn, dense() + o.qkv, n.tokens, n.width, 3 * n.width, v.qkv);
  RopeForward(cosine_.data(), sine_.data(), n.tokens, n.sequence, n.heads, n.head_width, v.qkv);
  contraflow::AttentionForward(ShapeOfAttention(n), v.qkv, v.probabilities, v.context);
  std::copy_n(v.x, static_cast<ptrdiff_t>(n.tokens) * n.width, v.y);
  LinearForwardAdd(v.context, dense() + o.output, n.tokens, n.width, n.width, v.y);

  RmsNormForward(v.y, dense() + o.expert_norm, n.tokens, n.width, v.expert_rstd, v.expert_xn);
  LinearForward(v.expert_xn, dense() + o.router, n.tokens, n.width, n.experts, v.router);
  RouterForward(n.tokens, n.experts, n.top_k, model_.renormalise_top_k, v.router, v.expert,
                v.weight);
  const int dropped = SortIntoCapacity(v.expert, n.tokens, n.experts, n.top_k, n.capacity, v.sent,
                                       v.token_of, v.row_of);
  GatherTokens(v.expert_xn, v.token_of, n.sent_rows, n.width, v.dispatched);
  return dropped;
}

template <typename T>
void BasicStage<T>::ExpertsForward(int layer, const LayerViews<T>& v) const {
  contraflow::ExpertsForward(ShapeOfExperts(shape_, v.first), v.rows, experts() + At(layer).gate_up,
                             experts() + At(layer).down, v.gate, v.hidden, v.expert_out);
}

template <typename T>
void BasicStage<T>::CombineForward(const LayerViews<T>& v) const {
  const LayerShape& n = shape_;
  contraflow::CombineForward(v.y, v.combined, v.row_of, v.weight, n.tokens, n.top_k, n.width, v.z);
}

template <typename T>
T BasicStage<T>::HeadForward(const MicroBatch& micro, const LayerViews<T>& v) const {
  const LayerShape& n = shape_;
  CheckTokens(micro.targets);
  RmsNormForward(v.z, dense() + layout_.final_norm, n.tokens, n.width, v.final_rstd, v.final_xn);
  LinearForward(v.final_xn, dense() + layout_.head, n.tokens, n.width, n.vocabulary, v.logits);
  return CrossEntropyForward(micro.targets.data(), n.tokens, n.vocabulary, v.logits);
}

template <typename T>
void BasicStage<T>::HeadBackward(const MicroBatch& micro, T loss_scale,
                                 const LayerViews<T>& v) const {
  const LayerShape& n = shape_;
  CrossEntropyBackwardInput(micro.targets.data(), loss_scale, n.tokens, n.vocabulary, v.logits);
  LinearBackwardInput(v.logits, dense() + layout_.head, n.tokens, n.width, n.vocabulary,
                      v.dfinal_xn);
  // No work runs past the final norm, so there is no residual gradient to join.
  std::fill_n(v.dz, static_cast<ptrdiff_t>(n.tokens) * n.width, T{0});
  RmsNormBackwardInput(v.z, dense() + layout_.final_norm, v.final_rstd, v.dfinal_xn, v.dz, n.tokens,
                       n.width, v.dz);
}

template <typename T>
void BasicStage<T>::CombineBackward(const LayerViews<T>& v) const {
  const LayerShape& n = shape_;
  // Rows that no token took are sent all the same.
  if (n.capacity > 0) std::fill_n(v.dcombined, static_cast<ptrdiff_t>(n.sent_rows) * n.width, T{0});
  CombineBackwardInput(v.dz, v.combined, v.row_of, v.weight, n.tokens, n.top_k, n.width,
                       v.dcombined, v.dweight);
}

template <typename T>
void BasicStage<T>::ExpertsBackward(int layer, const LayerViews<T>& v) const {
  ExpertsBackwardInput(ShapeOfExperts(shape_, v.first), experts() + At(layer).gate_up,
                       experts() + At(layer).down, v.gate, v.drows, v.dgate, v.dsorted);
}

template <typename T>
void BasicStage<T>::DispatchBackward(const LayerViews<T>& v) const {
  GatherTokensBackwardInput(v.ddispatched, v.row_of, shape_.tokens, shape_.top_k, shape_.width,
                            v.dexpert);
}

// ATTN_F in reverse, the residual gradients joining at the norms.
template <typename T>
void BasicStage<T>::AttentionBackward(int layer, T loss_scale, const LayerViews<T>& v) const {
  const LayerShape& n = shape_;
  const LayerOffsets& o = At(layer);
  RouterBackwardInput(v.router, v.expert, v.dweight, n.tokens, n.experts, n.top_k,
                      model_.renormalise_top_k, loss_scale * static_cast<T>(model_.balance_loss),
                      v.dlogits);
  LinearBackwardInputAdd(v.dlogits, dense() + o.router, n.tokens, n.width, n.experts, v.dexpert);
  RmsNormBackwardInput(v.y, dense() + o.expert_norm, v.expert_rstd, v.dexpert, v.dz, n.tokens,
                       n.width, v.dy);

  LinearBackwardInput(v.dy, dense() + o.output, n.tokens, n.width, n.width, v.dcontext);
  AttentionBackwardInput(ShapeOfAttention(n), v.qkv, v.probabilities, v.dcontext, v.dscores,
                         v.dqkv);
  RopeBackwardInput(cosine_.data(), sine_.data(), n.tokens, n.sequence, n.heads, n.head_width,
                    v.dqkv);
  LinearBackwardInput(v.dqkv, dense() + o.qkv, n.tokens, n.width, 3 * n.width, v.dattention_xn);
  RmsNormBackwardInput(v.x, dense() + o.attention_norm, v.attention_rstd, v.dattention_xn, v.dy,
                       n.tokens, n.width, v.dx);
}

template <typename T>
void BasicStage<T>::ExpertsWeight(int layer, const LayerViews<T>& v, T* experts) const {
  ExpertsBackwardWeight(ShapeOfExperts(shape_, v.first), v.rows, v.hidden, v.dgate, v.drows,
                        experts + At(layer).gate_up, experts + At(layer).down);
}

template <typename T>
void BasicStage<T>::AttentionWeight(int layer, const LayerViews<T>& v, T* dense) const {
  const LayerShape& n = shape_;
  const LayerOffsets& o = At(layer);
  LinearBackwardWeight(v.expert_xn, v.dlogits, n.tokens, n.width, n.experts, dense + o.router);
  RmsNormBackwardWeight(v.y, v.expert_rstd, v.dexpert, n.tokens, n.width, dense + o.expert_norm);
  LinearBackwardWeight(v.context, v.dy, n.tokens, n.width, n.width, dense + o.output);
  LinearBackwardWeight(v.attention_xn, v.dqkv, n.tokens, n.width, 3 * n.width, dense + o.qkv);
  RmsNormBackwardWeight(v.x, v.attention_rstd, v.dattention_xn, n.tokens, n.width,
                        dense + o.attention_norm);
}

template <typename T>
void BasicStage<T>::EmbeddingWeight(const MicroBatch& micro, const LayerViews<T>& v,
                                    T* dense) const {
  EmbeddingBackwardWeight(micro.tokens.data(), v.dx, shape_.tokens, shape_.width,
                          dense + layout_.embedding);
}

template <typename T>
void BasicStage<T>::HeadWeight(const LayerViews<T>& v, T* dense) const {
  const LayerShape& n = shape_;
  LinearBackwardWeight(v.final_xn, v.logits, n.tokens, n.width, n.vocabulary, dense + layout_.head);
  RmsNormBackwardWeight(v.z, v.final_rstd, v.dfinal_xn, n.tokens, n.width,
                        dense + layout_.final_norm);
}

template <typename T>
void BasicStage<T>::OptimizerStep(int step, double norm) {
  CF_ASSERT(step >= 1);
  const auto most = static_cast<double>(model_.clip);
  if (most > 0 && norm > most) {
    for (T& gradient : gradients_) gradient *= static_cast<T>(most / norm);
  }
  AdamW settings{LearningRate(model_, step), static_cast<double>(model_.beta1),
                 static_cast<double>(model_.beta2), static_cast<double>(model_.epsilon), 0};
  const auto update = [&](size_t begin, size_t end) {
    AdamWStep(settings, step, end - begin, gradients_.data() + begin, m_.data() + begin,
              v_.data() + begin, parameters_.data() + begin);
  };
  update(0, layout_.gains);
  settings.weight_decay = static_cast<double>(model_.weight_decay);
  update(layout_.gains, layout_.size);
}

template <typename T>
void BasicStage<T>::AddSquares(std::map<std::string, double>* squares) const {
  for (const ParameterBlock& block : layout_.blocks) {
    (*squares)[block.name] = SumOfSquares(block.size, gradients_.data() + block.offset);
  }
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

StageState StageHolder::StateAt(int stage) {
  Stage& held = StageAt(stage);
  const auto dense = std::ranges::count_if(held.blocks(), [&](const ParameterBlock& block) {
    return block.offset < held.dense_gradients().size();
  });
  return {StateOf(held), static_cast<size_t>(dense)};
}

template class BasicStage<float>;
template class BasicStage<double>;

}  // namespace contraflow
