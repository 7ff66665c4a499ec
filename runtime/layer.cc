#include "runtime/layer.h"

#include <utility>

#include "kernels/attention.h"
#include "kernels/combine.h"
#include "kernels/experts.h"
#include "kernels/linear.h"
#include "kernels/permutation.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"
#include "kernels/router.h"

namespace contraflow {
namespace {

// Sizes of a layer's buffers. `pairs` are the (token, expert) pairs, one row of the experts each.
struct Sizes {
  int rows, width, pairs;
  AttentionShape attention;

  explicit Sizes(const Model& model)
      : rows(model.tokens()),
        width(model.width),
        pairs(rows * model.top_k),
        attention{model.batch, model.sequence, model.heads, model.width / model.heads} {}
};

ExpertsShape ShapeOfExperts(const Model& model, const Buffer<int32_t>& first) {
  return {model.experts, model.width, model.expert_width, first.data()};
}

template <typename T>
Buffer<T> Matrix(int rows, int columns) {
  return Buffer<T>(static_cast<size_t>(rows) * static_cast<size_t>(columns));
}

}  // namespace

template <typename T>
RopeTable<T>::RopeTable(const Model& model)
    : cosine(Matrix<T>(model.sequence, model.width / model.heads / 2)), sine(cosine.size()) {
  FillRopeTable(model.sequence, model.width / model.heads, cosine.data(), sine.data());
}

// x -> norm -> qkv -> rope -> attention -> output projection -> + x = y
// y -> norm -> router, sort by expert -> experts -> combine -> + y = z
template <typename T>
Buffer<T> Layer<T>::Forward(const T* parameters, Buffer<T> x, LayerStash<T>* stash) const {
  const Model& m = *model;
  const Sizes n(m);
  LayerStash<T>& s = *stash;

  s.x = std::move(x);
  s.attention_rstd.resize(static_cast<size_t>(n.rows));
  s.attention_xn = Matrix<T>(n.rows, n.width);
  RmsNormForward(s.x.data(), parameters + offsets.attention_norm, n.rows, n.width,
                 s.attention_rstd.data(), s.attention_xn.data());
  s.qkv = Matrix<T>(n.rows, 3 * n.width);
  LinearForward(s.attention_xn.data(), parameters + offsets.qkv, n.rows, n.width, 3 * n.width,
                s.qkv.data());
  RopeForward(rope->cosine.data(), rope->sine.data(), n.rows, m.sequence, m.heads,
              n.attention.head_width, s.qkv.data());
  s.attention_probabilities = Matrix<T>(n.rows * m.heads, m.sequence);
  s.attention = Matrix<T>(n.rows, n.width);
  AttentionForward(n.attention, s.qkv.data(), s.attention_probabilities.data(), s.attention.data());
  s.y = s.x;
  LinearForwardAdd(s.attention.data(), parameters + offsets.output, n.rows, n.width, n.width,
                   s.y.data());

  s.expert_rstd.resize(static_cast<size_t>(n.rows));
  s.expert_xn = Matrix<T>(n.rows, n.width);
  RmsNormForward(s.y.data(), parameters + offsets.expert_norm, n.rows, n.width,
                 s.expert_rstd.data(), s.expert_xn.data());
  s.router_probabilities = Matrix<T>(n.rows, m.experts);
  LinearForward(s.expert_xn.data(), parameters + offsets.router, n.rows, n.width, m.experts,
                s.router_probabilities.data());
  s.expert = Matrix<int32_t>(n.rows, m.top_k);
  s.weight = Matrix<T>(n.rows, m.top_k);
  RouterForward(n.rows, m.experts, m.top_k, s.router_probabilities.data(), s.expert.data(),
                s.weight.data());

  s.first.resize(static_cast<size_t>(m.experts) + 1);
  s.row_of = Matrix<int32_t>(n.rows, m.top_k);
  Buffer<int32_t> token_of(static_cast<size_t>(n.pairs));
  SortByExpert(s.expert.data(), n.rows, m.experts, m.top_k, s.first.data(), token_of.data(),
               s.row_of.data());
  s.sorted = Matrix<T>(n.pairs, n.width);
  GatherTokens(s.expert_xn.data(), token_of.data(), n.pairs, n.width, s.sorted.data());
  s.gate_up = Matrix<T>(n.pairs, 2 * m.expert_width);
  s.hidden = Matrix<T>(n.pairs, m.expert_width);
  s.expert_out = Matrix<T>(n.pairs, n.width);
  ExpertsForward(ShapeOfExperts(m, s.first), s.sorted.data(), parameters + offsets.gate_up,
                 parameters + offsets.down, s.gate_up.data(), s.hidden.data(), s.expert_out.data());
  Buffer<T> z = Matrix<T>(n.rows, n.width);
  CombineForward(s.y.data(), s.expert_out.data(), s.row_of.data(), s.weight.data(), n.rows, m.top_k,
                 n.width, z.data());
  return z;
}

// Forward in reverse, the residual gradients joining at the norms.
template <typename T>
Buffer<T> Layer<T>::BackwardInput(const T* parameters, const Buffer<T>& dz,
                                  LayerStash<T>* stash) const {
  const Model& m = *model;
  const Sizes n(m);
  LayerStash<T>& s = *stash;

  s.dexpert_out = Matrix<T>(n.pairs, n.width);
  Buffer<T> dweight = Matrix<T>(n.rows, m.top_k);
  CombineBackwardInput(dz.data(), s.expert_out.data(), s.row_of.data(), s.weight.data(), n.rows,
                       m.top_k, n.width, s.dexpert_out.data(), dweight.data());
  s.dgate_up = Matrix<T>(n.pairs, 2 * m.expert_width);
  Buffer<T> dsorted = Matrix<T>(n.pairs, n.width);
  ExpertsBackwardInput(ShapeOfExperts(m, s.first), parameters + offsets.gate_up,
                       parameters + offsets.down, s.gate_up.data(), s.dexpert_out.data(),
                       s.dgate_up.data(), dsorted.data());
  s.dexpert_xn = Matrix<T>(n.rows, n.width);
  GatherTokensBackwardInput(dsorted.data(), s.row_of.data(), n.rows, m.top_k, n.width,
                            s.dexpert_xn.data());
  s.dlogits = Matrix<T>(n.rows, m.experts);
  RouterBackwardInput(s.router_probabilities.data(), s.expert.data(), dweight.data(), n.rows,
                      m.experts, m.top_k, s.dlogits.data());
  LinearBackwardInputAdd(s.dlogits.data(), parameters + offsets.router, n.rows, n.width, m.experts,
                         s.dexpert_xn.data());
  s.dy = Matrix<T>(n.rows, n.width);
  RmsNormBackwardInput(s.y.data(), parameters + offsets.expert_norm, s.expert_rstd.data(),
                       s.dexpert_xn.data(), dz.data(), n.rows, n.width, s.dy.data());
  Release(s.router_probabilities);
  Release(s.weight);
  Release(s.gate_up);
  Release(s.expert_out);
  Release(s.expert);
  Release(s.row_of);

  Buffer<T> dattention = Matrix<T>(n.rows, n.width);
  LinearBackwardInput(s.dy.data(), parameters + offsets.output, n.rows, n.width, n.width,
                      dattention.data());
  s.dqkv = Matrix<T>(n.rows, 3 * n.width);
  AttentionBackwardInput(n.attention, s.qkv.data(), s.attention_probabilities.data(),
                         dattention.data(), s.dqkv.data());
  RopeBackwardInput(rope->cosine.data(), rope->sine.data(), n.rows, m.sequence, m.heads,
                    n.attention.head_width, s.dqkv.data());
  s.dattention_xn = Matrix<T>(n.rows, n.width);
  LinearBackwardInput(s.dqkv.data(), parameters + offsets.qkv, n.rows, n.width, 3 * n.width,
                      s.dattention_xn.data());
  Buffer<T> dx = Matrix<T>(n.rows, n.width);
  RmsNormBackwardInput(s.x.data(), parameters + offsets.attention_norm, s.attention_rstd.data(),
                       s.dattention_xn.data(), s.dy.data(), n.rows, n.width, dx.data());
  Release(s.qkv);
  Release(s.attention_probabilities);
  return dx;
}

template <typename T>
void Layer<T>::BackwardWeight(LayerStash<T>* stash, T* gradients) const {
  const Model& m = *model;
  const Sizes n(m);
  const LayerStash<T>& s = *stash;
  ExpertsBackwardWeight(ShapeOfExperts(m, s.first), s.sorted.data(), s.hidden.data(),
                        s.dgate_up.data(), s.dexpert_out.data(), gradients + offsets.gate_up,
                        gradients + offsets.down);
  LinearBackwardWeight(s.expert_xn.data(), s.dlogits.data(), n.rows, n.width, m.experts,
                       gradients + offsets.router);
  RmsNormBackwardWeight(s.y.data(), s.expert_rstd.data(), s.dexpert_xn.data(), n.rows, n.width,
                        gradients + offsets.expert_norm);
  LinearBackwardWeight(s.attention.data(), s.dy.data(), n.rows, n.width, n.width,
                       gradients + offsets.output);
  LinearBackwardWeight(s.attention_xn.data(), s.dqkv.data(), n.rows, n.width, 3 * n.width,
                       gradients + offsets.qkv);
  RmsNormBackwardWeight(s.x.data(), s.attention_rstd.data(), s.dattention_xn.data(), n.rows,
                        n.width, gradients + offsets.attention_norm);
  *stash = {};
}

template struct RopeTable<float>;
template struct RopeTable<double>;
template struct Layer<float>;
template struct Layer<double>;

}  // namespace contraflow
