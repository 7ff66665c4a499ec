#include "runtime/model/views.h"

#include <type_traits>

#include "kernels/host/bf16.h"
#include "runtime/model/parameters.h"

namespace contraflow {
namespace {

/// Hands out the parts of a value, one behind the other, each at a multiple of kSlotAlignment from
/// its base; with a null base it only counts.
class ValueParts {
 public:
  explicit ValueParts(std::byte* base) : base_(base) {}

  /// The next rows x columns elements. Returns the bytes of all parts so far.
  template <typename T>
  int64_t Take(int rows, int columns, T** part) {
    if (base_ != nullptr) *part = reinterpret_cast<T*>(base_ + bytes_);
    const int64_t bytes = int64_t{rows} * columns * static_cast<int64_t>(sizeof(T));
    return bytes_ += (bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
  }

 private:
  std::byte* const base_;
  int64_t bytes_ = 0;
};

}  // namespace

LayerShape::LayerShape(const Model& model, int group_members, int owned_experts)
    : batch(model.batch),
      sequence(model.sequence),
      heads(model.heads),
      head_width(model.width / model.heads),
      tokens(model.tokens()),
      width(model.width),
      experts(model.experts),
      top_k(model.top_k),
      expert_width(model.expert_width),
      vocabulary(model.vocabulary),
      members(group_members),
      local_experts(owned_experts),
      capacity(static_cast<int>(Capacity(model))),
      sent_rows(capacity > 0 ? experts * capacity : tokens * top_k),
      expert_rows(static_cast<int>(MostExpertRows(model, members, local_experts))) {}

template <typename T, typename S>
int64_t PlaceValue(const LayerShape& n, Value value, std::byte* base, LayerViews<T, S>* v) {
  constexpr bool kGpu = std::is_same_v<T, gpu::Bf16>;
  ValueParts parts(base);
  const int d = n.width, f = n.expert_width;
  switch (value) {
    case Value::input:
      return parts.Take(n.tokens, d, &v->x);
    case Value::output:
      return parts.Take(n.tokens, d, &v->z);
    case Value::attention:
      parts.Take(n.tokens, 1, &v->attention_rstd);
      parts.Take(n.tokens, d, &v->attention_xn);
      parts.Take(n.tokens, d, &v->context);
      parts.Take(n.tokens, d, &v->y);
      parts.Take(n.tokens, 1, &v->expert_rstd);
      return parts.Take(n.tokens, d, &v->expert_xn);
    case Value::scores:
      parts.Take(n.tokens, 3 * d, &v->qkv);
      if constexpr (kGpu) {
        parts.Take(n.tokens, n.heads, &v->lse);
      } else {
        parts.Take(n.tokens, n.heads * n.sequence, &v->probabilities);
      }
      parts.Take(n.tokens, n.experts, &v->router);
      parts.Take(n.tokens, n.top_k, &v->weight);
      parts.Take(n.tokens, n.top_k, &v->expert);
      parts.Take(n.tokens, n.top_k, &v->row_of);
      parts.Take(n.sent_rows, 1, &v->token_of);
      return parts.Take(n.experts + 1, 1, &v->sent);
    case Value::dispatched:
      return parts.Take(n.sent_rows, d, &v->dispatched);
    case Value::rows:
      parts.Take(n.expert_rows, d, &v->rows);
      parts.Take(n.local_experts + 1, 1, &v->first);
      return parts.Take(n.members, n.local_experts, &v->received);
    case Value::gate:
      return parts.Take(n.expert_rows, 2 * f, &v->gate);
    case Value::hidden:
      return parts.Take(n.expert_rows, f, &v->hidden);
    case Value::expert_out:
      return parts.Take(n.expert_rows, d, &v->expert_out);
    case Value::combined:
      return parts.Take(n.sent_rows, d, &v->combined);
    case Value::head:
      parts.Take(n.tokens, 1, &v->final_rstd);
      parts.Take(n.tokens, d, &v->final_xn);
      parts.Take(n.tokens, n.vocabulary, &v->logits);
      if constexpr (kGpu) parts.Take(n.tokens, 1, &v->row_loss);
      return parts.Take(n.tokens, d, &v->dfinal_xn);
    case Value::doutput:
      return parts.Take(n.tokens, d, &v->dz);
    case Value::dcombined:
      return parts.Take(n.sent_rows, d, &v->dcombined);
    case Value::dweight:
      return parts.Take(n.tokens, n.top_k, &v->dweight);
    case Value::drows:
      return parts.Take(n.expert_rows, d, &v->drows);
    case Value::dgate:
      return parts.Take(n.expert_rows, 2 * f, &v->dgate);
    case Value::dsorted:
      return parts.Take(n.expert_rows, d, &v->dsorted);
    case Value::ddispatched:
      return parts.Take(n.sent_rows, d, &v->ddispatched);
    case Value::dexpert:
      return parts.Take(n.tokens, d, &v->dexpert);
    case Value::dattention:
      parts.Take(n.tokens, 3 * d, &v->dqkv);
      parts.Take(n.tokens, d, &v->dy);
      parts.Take(n.tokens, d, &v->dattention_xn);
      return parts.Take(n.tokens, n.experts, &v->dlogits);
    case Value::attention_work:
      if constexpr (kGpu) return parts.Take(n.tokens, d, &v->dcontext);
      parts.Take(n.tokens, d, &v->dcontext);
      return parts.Take(n.sequence, n.sequence, &v->dscores);
    case Value::dinput:
      return parts.Take(n.tokens, d, &v->dx);
    case Value::activation:
    case Value::stash:
      break;
  }
  return 0;
}

template <typename T, typename S>
ValueBytes BytesOfValues(const LayerShape& shape) {
  ValueBytes bytes{};
  LayerViews<T, S> nowhere;
  for (size_t v = 0; v < kValueCount; ++v) {
    bytes[v] = PlaceValue(shape, static_cast<Value>(v), nullptr, &nowhere);
  }
  return bytes;
}

#define CF_INSTANTIATE(T, S)                                                            \
  template int64_t PlaceValue(const LayerShape&, Value, std::byte*, LayerViews<T, S>*); \
  template ValueBytes BytesOfValues<T, S>(const LayerShape&);
CF_INSTANTIATE(float, float)
CF_INSTANTIATE(double, double)
CF_INSTANTIATE(gpu::Bf16, float)
#undef CF_INSTANTIATE

MemoryCost FootprintOf(const Model& model, int stages, int layers, int expert_parallel) {
  const Model fitted = FitModel(model, stages, layers, expert_parallel);
  const LayerShape shape(fitted, expert_parallel, fitted.experts / expert_parallel);
  return FootprintWith(fitted, stages, expert_parallel, BytesOfValues<float>(shape),
                       {sizeof(float), sizeof(float), 2 * sizeof(float)});
}

MemoryCost FootprintWith(const Model& fitted, int stages, int expert_parallel,
                         const ValueBytes& values, ParameterBytes each) {
  const LayerRange largest = LayersOfStage(fitted, 0, stages);
  const int64_t held = largest.last - largest.first;
  const int owned = fitted.experts / expert_parallel;

  MemoryCost memory;
  memory.values.assign(values.begin(), values.end());
  for (const Value value : kActivationOfLayer) {
    const int64_t bytes = held * values[static_cast<size_t>(value)];
    memory.activation_bytes += bytes;
    if (ArenaOf(value) == Arena::kStash) memory.w_stash_bytes += bytes;
  }
  for (int s = 0; s < stages; ++s) {
    const auto size = static_cast<int64_t>(LayoutOfStage(fitted, s, stages, {0, owned}).size);
    memory.parameter_bytes.push_back(size * each.weights);
    memory.gradient_bytes.push_back(size * each.gradients);
    memory.optimizer_bytes.push_back(size * each.optimizer);
  }
  return memory;
}

}  // namespace contraflow
