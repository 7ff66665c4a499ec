#include "runtime/views.h"

namespace contraflow {
namespace {

/// Hands out the parts of a value.
class Cut {
 public:
  explicit Cut(std::byte* base) : base_(base) {}

  /// The next rows x columns elements.
  template <typename U>
  void Take(int rows, int columns, U** part) {
    if (base_ != nullptr) *part = reinterpret_cast<U*>(base_ + bytes_);
    const int64_t bytes = int64_t{rows} * columns * static_cast<int64_t>(sizeof(U));
    bytes_ += (bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
  }
  int64_t bytes() const { return bytes_; }

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

template <typename T>
int64_t PlaceValue(const LayerShape& n, Value value, std::byte* base, LayerViews<T>* v) {
  Cut cut(base);
  const int d = n.width, f = n.expert_width;
  switch (value) {
    case Value::input:
      cut.Take(n.tokens, d, &v->x);
      break;
    case Value::output:
      cut.Take(n.tokens, d, &v->z);
      break;
    case Value::attention:
      cut.Take(n.tokens, 1, &v->attention_rstd);
      cut.Take(n.tokens, d, &v->attention_xn);
      cut.Take(n.tokens, d, &v->context);
      cut.Take(n.tokens, d, &v->y);
      cut.Take(n.tokens, 1, &v->expert_rstd);
      cut.Take(n.tokens, d, &v->expert_xn);
      break;
    case Value::scores:
      cut.Take(n.tokens, 3 * d, &v->qkv);
      cut.Take(n.tokens, n.heads * n.sequence, &v->probabilities);
      cut.Take(n.tokens, n.experts, &v->router);
      cut.Take(n.tokens, n.top_k, &v->weight);
      cut.Take(n.tokens, n.top_k, &v->expert);
      cut.Take(n.tokens, n.top_k, &v->row_of);
      cut.Take(n.sent_rows, 1, &v->token_of);
      cut.Take(n.experts + 1, 1, &v->sent);
      break;
    case Value::dispatched:
      cut.Take(n.sent_rows, d, &v->dispatched);
      break;
    case Value::rows:
      cut.Take(n.expert_rows, d, &v->rows);
      cut.Take(n.local_experts + 1, 1, &v->first);
      cut.Take(n.members, n.local_experts, &v->received);
      break;
    case Value::gate:
      cut.Take(n.expert_rows, 2 * f, &v->gate);
      break;
    case Value::hidden:
      cut.Take(n.expert_rows, f, &v->hidden);
      break;
    case Value::expert_out:
      cut.Take(n.expert_rows, d, &v->expert_out);
      break;
    case Value::combined:
      cut.Take(n.sent_rows, d, &v->combined);
      break;
    case Value::head:
      cut.Take(n.tokens, 1, &v->final_rstd);
      cut.Take(n.tokens, d, &v->final_xn);
      cut.Take(n.tokens, n.vocabulary, &v->logits);
      cut.Take(n.tokens, d, &v->dfinal_xn);
      break;
    case Value::doutput:
      cut.Take(n.tokens, d, &v->dz);
      break;
    case Value::dcombined:
      cut.Take(n.sent_rows, d, &v->dcombined);
      break;
    case Value::dweight:
      cut.Take(n.tokens, n.top_k, &v->dweight);
      break;
    case Value::drows:
      cut.Take(n.expert_rows, d, &v->drows);
      break;
    case Value::dgate:
      cut.Take(n.expert_rows, 2 * f, &v->dgate);
      break;
    case Value::dsorted:
      cut.Take(n.expert_rows, d, &v->dsorted);
      break;
    case Value::ddispatched:
      cut.Take(n.sent_rows, d, &v->ddispatched);
      break;
    case Value::dexpert:
      cut.Take(n.tokens, d, &v->dexpert);
      break;
    case Value::dattention:
      cut.Take(n.tokens, 3 * d, &v->dqkv);
      cut.Take(n.tokens, d, &v->dy);
      cut.Take(n.tokens, d, &v->dattention_xn);
      cut.Take(n.tokens, n.experts, &v->dlogits);
      break;
    case Value::attention_work:
      cut.Take(n.tokens, d, &v->dcontext);
      cut.Take(n.sequence, n.sequence, &v->dscores);
      break;
    case Value::dinput:
      cut.Take(n.tokens, d, &v->dx);
      break;
    case Value::activation:
    case Value::stash:
      break;
  }
  return cut.bytes();
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

}  // namespace contraflow
