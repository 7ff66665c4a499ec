#include "runtime/model/views.h"

#include <type_traits>

#include "kernels/host/bf16.h"
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

template <typename T, typename S>
int64_t PlaceValue(const LayerShape& n, Value value, std::byte* base, LayerViews<T, S>* v) {
  constexpr bool kGpu = std::is_same_v<T, gpu::Bf16>;
  int64_t bytes = 0;
  // The next part of a value: rows x columns.
  const auto part = [&]<typename E>(Value of, int rows, int columns, E** place) {
    if (of != value) return;
    if (base != nullptr) *place = reinterpret_cast<E*>(base + bytes);
    const int64_t size = int64_t{rows} * columns * static_cast<int64_t>(sizeof(E));
    bytes += (size + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
  };
  const int t = n.tokens, d = n.width, f = n.expert_width;
  part(Value::input, t, d, &v->x);
  part(Value::output, t, d, &v->z);
  part(Value::attention, t, 1, &v->attention_rstd);
  part(Value::attention, t, d, &v->attention_xn);
  part(Value::attention, t, d, &v->context);
  part(Value::attention, t, d, &v->y);
  part(Value::attention, t, 1, &v->expert_rstd);
  part(Value::attention, t, d, &v->expert_xn);
  part(Value::scores, t, 3 * d, &v->qkv);
  if (kGpu) part(Value::scores, t, n.heads, &v->lse);
  if (!kGpu) part(Value::scores, t, n.heads * n.sequence, &v->probabilities);
  part(Value::scores, t, n.experts, &v->router);
  part(Value::scores, t, n.top_k, &v->weight);
  part(Value::scores, t, n.top_k, &v->expert);
  part(Value::scores, t, n.top_k, &v->row_of);
  part(Value::scores, n.sent_rows, 1, &v->token_of);
  part(Value::scores, n.experts + 1, 1, &v->sent);
  part(Value::dispatched, n.sent_rows, d, &v->dispatched);
  part(Value::rows, n.expert_rows, d, &v->rows);
  part(Value::rows, n.local_experts + 1, 1, &v->first);
  part(Value::rows, n.members, n.local_experts, &v->received);
  part(Value::gate, n.expert_rows, 2 * f, &v->gate);
  part(Value::hidden, n.expert_rows, f, &v->hidden);
  part(Value::expert_out, n.expert_rows, d, &v->expert_out);
  part(Value::combined, n.sent_rows, d, &v->combined);
  part(Value::head, t, 1, &v->final_rstd);
  part(Value::head, t, d, &v->final_xn);
  part(Value::head, t, n.vocabulary, &v->logits);
  if (kGpu) part(Value::head, t, 1, &v->row_loss);
  part(Value::head, t, d, &v->dfinal_xn);
  part(Value::doutput, t, d, &v->dz);
  part(Value::dcombined, n.sent_rows, d, &v->dcombined);
  part(Value::dweight, t, n.top_k, &v->dweight);
  part(Value::drows, n.expert_rows, d, &v->drows);
  part(Value::dgate, n.expert_rows, 2 * f, &v->dgate);
  part(Value::dsorted, n.expert_rows, d, &v->dsorted);
  part(Value::ddispatched, n.sent_rows, d, &v->ddispatched);
  part(Value::dexpert, t, d, &v->dexpert);
  part(Value::dattention, t, 3 * d, &v->dqkv);
  part(Value::dattention, t, d, &v->dy);
  part(Value::dattention, t, d, &v->dattention_xn);
  part(Value::dattention, t, n.experts, &v->dlogits);
  part(Value::attention_work, t, d, &v->dcontext);
  if (!kGpu) part(Value::attention_work, n.sequence, n.sequence, &v->dscores);
  part(Value::dinput, t, d, &v->dx);
  return bytes;
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
  return FootprintWith(fitted, stages, expert_parallel, BytesOfValues<float>(shape));
}

MemoryCost FootprintWith(const Model& fitted, int stages, int expert_parallel,
                         const ValueBytes& values, int64_t weight_bytes) {
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
    memory.parameter_bytes.push_back(size * weight_bytes);
    memory.gradient_bytes.push_back(size * int64_t{sizeof(float)});
    memory.optimizer_bytes.push_back(size * int64_t{2 * sizeof(float)});
  }
  return memory;
}

}  // namespace contraflow
