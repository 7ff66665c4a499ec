#include "runtime/host/layer.h"

#include <algorithm>
#include <cstddef>

#include "kernels/host/attention.h"
#include "kernels/host/experts.h"
#include "kernels/host/linear.h"
#include "kernels/host/normalization.h"
#include "kernels/host/routing.h"

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
RopeTable<T>::RopeTable(const LayerShape& n)
    : cosine(static_cast<size_t>(n.sequence) * static_cast<size_t>(n.head_width / 2)),
      sine(cosine.size()) {
  FillRopeTable(n.sequence, n.head_width, cosine.data(), sine.data());
}

// x -> norm -> qkv -> rope -> attention -> output projection -> + x = y
// y -> norm -> router, sort by expert
template <typename T>
int Layer<T>::AttentionForward(const T* dense, const LayerViews<T>& v) const {
  const LayerShape& n = *shape;
  RmsNormForward(v.x, dense + offsets.attention_norm, n.tokens, n.width, v.attention_rstd,
                 v.attention_xn);
  LinearForward(v.attention_xn, dense + offsets.qkv, n.tokens, n.width, 3 * n.width, v.qkv);
  RopeForward(rope->cosine.data(), rope->sine.data(), n.tokens, n.sequence, n.heads, n.head_width,
              v.qkv);
  contraflow::AttentionForward(ShapeOfAttention(n), v.qkv, v.probabilities, v.context);
  std::copy_n(v.x, static_cast<ptrdiff_t>(n.tokens) * n.width, v.y);
  LinearForwardAdd(v.context, dense + offsets.output, n.tokens, n.width, n.width, v.y);

  RmsNormForward(v.y, dense + offsets.expert_norm, n.tokens, n.width, v.expert_rstd, v.expert_xn);
  LinearForward(v.expert_xn, dense + offsets.router, n.tokens, n.width, n.experts, v.router);
  RouterForward(n.tokens, n.experts, n.top_k, v.router, v.expert, v.weight);
  int dropped = 0;
  if (n.capacity == 0) {
    SortByExpert(v.expert, n.tokens, n.experts, n.top_k, v.sent, v.token_of, v.row_of);
  } else {
    dropped = SortIntoCapacity(v.expert, n.tokens, n.experts, n.top_k, n.capacity, v.sent,
                               v.token_of, v.row_of);
  }
  GatherTokens(v.expert_xn, v.token_of, n.sent_rows, n.width, v.dispatched);
  return dropped;
}

template <typename T>
void Layer<T>::ExpertsForward(const T* experts, const LayerViews<T>& v) const {
  contraflow::ExpertsForward(ShapeOfExperts(*shape, v.first), v.rows, experts + offsets.gate_up,
                             experts + offsets.down, v.gate, v.hidden, v.expert_out);
}

template <typename T>
void Layer<T>::CombineForward(const LayerViews<T>& v) const {
  contraflow::CombineForward(v.y, v.combined, v.row_of, v.weight, shape->tokens, shape->top_k,
                             shape->width, v.z);
}

template <typename T>
void Layer<T>::CombineBackward(const LayerViews<T>& v) const {
  const LayerShape& n = *shape;
  // Rows that no token took are sent all the same.
  if (n.capacity > 0) std::fill_n(v.dcombined, static_cast<ptrdiff_t>(n.sent_rows) * n.width, T{0});
  CombineBackwardInput(v.dz, v.combined, v.row_of, v.weight, n.tokens, n.top_k, n.width,
                       v.dcombined, v.dweight);
}

template <typename T>
void Layer<T>::ExpertsBackward(const T* experts, const LayerViews<T>& v) const {
  ExpertsBackwardInput(ShapeOfExperts(*shape, v.first), experts + offsets.gate_up,
                       experts + offsets.down, v.gate, v.drows, v.dgate, v.dsorted);
}

template <typename T>
void Layer<T>::DispatchBackward(const LayerViews<T>& v) const {
  GatherTokensBackwardInput(v.ddispatched, v.row_of, shape->tokens, shape->top_k, shape->width,
                            v.dexpert);
}

// ATTN_F in reverse, the residual gradients joining at the norms.
template <typename T>
void Layer<T>::AttentionBackward(const T* dense, const LayerViews<T>& v) const {
  const LayerShape& n = *shape;
  RouterBackwardInput(v.router, v.expert, v.dweight, n.tokens, n.experts, n.top_k, v.dlogits);
  LinearBackwardInputAdd(v.dlogits, dense + offsets.router, n.tokens, n.width, n.experts,
                         v.dexpert);
  RmsNormBackwardInput(v.y, dense + offsets.expert_norm, v.expert_rstd, v.dexpert, v.dz, n.tokens,
                       n.width, v.dy);

  LinearBackwardInput(v.dy, dense + offsets.output, n.tokens, n.width, n.width, v.dcontext);
  AttentionBackwardInput(ShapeOfAttention(n), v.qkv, v.probabilities, v.dcontext, v.dscores,
                         v.dqkv);
  RopeBackwardInput(rope->cosine.data(), rope->sine.data(), n.tokens, n.sequence, n.heads,
                    n.head_width, v.dqkv);
  LinearBackwardInput(v.dqkv, dense + offsets.qkv, n.tokens, n.width, 3 * n.width, v.dattention_xn);
  RmsNormBackwardInput(v.x, dense + offsets.attention_norm, v.attention_rstd, v.dattention_xn, v.dy,
                       n.tokens, n.width, v.dx);
}

template <typename T>
void Layer<T>::ExpertsWeight(const LayerViews<T>& v, T* experts) const {
  ExpertsBackwardWeight(ShapeOfExperts(*shape, v.first), v.rows, v.hidden, v.dgate, v.drows,
                        experts + offsets.gate_up, experts + offsets.down);
}

template <typename T>
void Layer<T>::AttentionWeight(const LayerViews<T>& v, T* dense) const {
  const LayerShape& n = *shape;
  LinearBackwardWeight(v.expert_xn, v.dlogits, n.tokens, n.width, n.experts,
                       dense + offsets.router);
  RmsNormBackwardWeight(v.y, v.expert_rstd, v.dexpert, n.tokens, n.width,
                        dense + offsets.expert_norm);
  LinearBackwardWeight(v.context, v.dy, n.tokens, n.width, n.width, dense + offsets.output);
  LinearBackwardWeight(v.attention_xn, v.dqkv, n.tokens, n.width, 3 * n.width, dense + offsets.qkv);
  RmsNormBackwardWeight(v.x, v.attention_rstd, v.dattention_xn, n.tokens, n.width,
                        dense + offsets.attention_norm);
}

template struct RopeTable<float>;
template struct RopeTable<double>;
template struct Layer<float>;
template struct Layer<double>;

}  // namespace contraflow
