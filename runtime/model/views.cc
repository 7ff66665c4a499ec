#include "runtime/model/views.h"

#include <algorithm>

#include "runtime/model/parameters.h"

namespace contraflow {

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

template <typename T>
int64_t PlaceValue(const LayerShape& n, Value value, std::byte* base, LayerViews<T>* v) {
  ValueParts parts(base);
  const int d = n.width, f = n.expert_width;
  switch (value) {
    case Value::input:
      parts.Take(n.tokens, d, &v->x);
      break;
    case Value::output:
      parts.Take(n.tokens, d, &v->z);
      break;
    case Value::attention:
      parts.Take(n.tokens, 1, &v->attention_rstd);
      parts.Take(n.tokens, d, &v->attention_xn);
      parts.Take(n.tokens, d, &v->context);
      parts.Take(n.tokens, d, &v->y);
      parts.Take(n.tokens, 1, &v->expert_rstd);
      parts.Take(n.tokens, d, &v->expert_xn);
      break;
    case Value::scores:
      parts.Take(n.tokens, 3 * d, &v->qkv);
      parts.Take(n.tokens, n.heads * n.sequence, &v->probabilities);
      parts.Take(n.tokens, n.experts, &v->router);
      parts.Take(n.tokens, n.top_k, &v->weight);
      parts.Take(n.tokens, n.top_k, &v->expert);
      parts.Take(n.tokens, n.top_k, &v->row_of);
      parts.Take(n.sent_rows, 1, &v->token_of);
      parts.Take(n.experts + 1, 1, &v->sent);
      break;
    case Value::dispatched:
      parts.Take(n.sent_rows, d, &v->dispatched);
      break;
    case Value::rows:
      parts.Take(n.expert_rows, d, &v->rows);
      parts.Take(n.local_experts + 1, 1, &v->first);
      parts.Take(n.members, n.local_experts, &v->received);
      break;
    case Value::gate:
      parts.Take(n.expert_rows, 2 * f, &v->gate);
      break;
    case Value::hidden:
      parts.Take(n.expert_rows, f, &v->hidden);
      break;
    case Value::expert_out:
      parts.Take(n.expert_rows, d, &v->expert_out);
      break;
    case Value::combined:
      parts.Take(n.sent_rows, d, &v->combined);
      break;
    case Value::head:
      parts.Take(n.tokens, 1, &v->final_rstd);
      parts.Take(n.tokens, d, &v->final_xn);
      parts.Take(n.tokens, n.vocabulary, &v->logits);
      parts.Take(n.tokens, d, &v->dfinal_xn);
      break;
    case Value::doutput:
      parts.Take(n.tokens, d, &v->dz);
      break;
    case Value::dcombined:
      parts.Take(n.sent_rows, d, &v->dcombined);
      break;
    case Value::dweight:
      parts.Take(n.tokens, n.top_k, &v->dweight);
      break;
    case Value::drows:
      parts.Take(n.expert_rows, d, &v->drows);
      break;
    case Value::dgate:
      parts.Take(n.expert_rows, 2 * f, &v->dgate);
      break;
    case Value::dsorted:
      parts.Take(n.expert_rows, d, &v->dsorted);
      break;
    case Value::ddispatched:
      parts.Take(n.sent_rows, d, &v->ddispatched);
      break;
    case Value::dexpert:
      parts.Take(n.tokens, d, &v->dexpert);
      break;
    case Value::dattention:
      parts.Take(n.tokens, 3 * d, &v->dqkv);
      parts.Take(n.tokens, d, &v->dy);
      parts.Take(n.tokens, d, &v->dattention_xn);
      parts.Take(n.tokens, n.experts, &v->dlogits);
      break;
    case Value::attention_work:
      parts.Take(n.tokens, d, &v->dcontext);
      parts.Take(n.sequence, n.sequence, &v->dscores);
      break;
    case Value::dinput:
      parts.Take(n.tokens, d, &v->dx);
      break;
    case Value::activation:
    case Value::stash:
      break;
  }
  return parts.bytes();
}

template <typename T>
ValueBytes BytesOfValues(const LayerShape& shape) {
  ValueBytes bytes{};
  LayerViews<T> nowhere;
  for (size_t v = 0; v < kValueCount; ++v) {
    bytes[v] = PlaceValue<T>(shape, static_cast<Value>(v), nullptr, &nowhere);
  }
  return bytes;
}

#define CF_INSTANTIATE(T)                                                            \
  template int64_t PlaceValue(const LayerShape&, Value, std::byte*, LayerViews<T>*); \
  template ValueBytes BytesOfValues<T>(const LayerShape&);
CF_INSTANTIATE(float)
CF_INSTANTIATE(double)
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
