#pragma once

#include <cstddef>
#include <cstdint>

#include "compiler/plan/cost.h"
#include "compiler/plan/error.h"
#include "compiler/plan/instruction.h"
#include "compiler/plan/value.h"
#include "runtime/model/model.h"

namespace contraflow {

/// Sizes that the values of a layer have on one device of an expert group.
struct LayerShape {
  int batch, sequence, heads, head_width;
  int tokens;  ///< T
  int width;   ///< d
  int experts, top_k, expert_width, vocabulary;
  int members;        ///< devices of the expert group
  int local_experts;  ///< experts that this device owns
  int capacity;       ///< rows that a member sends to each expert; 0: as many as there are
  int sent_rows;      ///< rows of `dispatched`
  int expert_rows;    ///< most rows of `rows`

  /// The model is checked (FitModel); `local_experts` divides its experts.
  LayerShape(const Model& model, int group_members, int owned_experts);

  /// Numbers of an activation, [T x d].
  size_t activation() const { return static_cast<size_t>(tokens) * static_cast<size_t>(width); }
};

/// Places of the values of one layer and micro-batch, part by part. The pointer to a part that the
/// instruction does not touch is stale or null. Counts are in elements; values are T, and S what is
/// computed with higher precision: float and float on the host (or double, in a proof), bf16 and
/// float on a GPU (GpuViews).
template <typename T, typename S = T>
struct LayerViews {
  T* x = nullptr;   ///< input
  T* z = nullptr;   ///< output, or input of the layer after
  T* dz = nullptr;  ///< doutput
  T* dx = nullptr;  ///< dinput, or doutput of the layer before

  // attention
  S *attention_rstd = nullptr, *expert_rstd = nullptr;  ///< [T]
  T *attention_xn = nullptr, *expert_xn = nullptr;      ///< [T x d]
  T* context = nullptr;                                 ///< [T x d] values by their probabilities
  T* y = nullptr;                                       ///< [T x d] residual after the attention
  // scores
  T* qkv = nullptr;            ///< [T x 3 d]
  T* probabilities = nullptr;  ///< [T x heads x sequence] on the host; on a GPU in their place:
  S* lse = nullptr;            ///< [batch x heads x sequence]
  S *router = nullptr, *weight = nullptr;  ///< [T x experts], [T x k]
  int32_t* expert = nullptr;               ///< [T x k] the experts a token visits
  int32_t* row_of = nullptr;               ///< [T x k] their rows of dispatched; -1: dropped
  int32_t* token_of = nullptr;             ///< [sent_rows] -1: an empty row
  int32_t* sent = nullptr;  ///< [experts + 1]: rows sent[e] .. sent[e + 1] go to expert e
  T* dispatched = nullptr;  ///< [sent_rows x d]
  // rows
  T* rows = nullptr;                     ///< [expert_rows x d] by expert, then member, then token
  int32_t* first = nullptr;              ///< [local_experts + 1] rows of each expert, as `sent`
  int32_t* received = nullptr;           ///< [members x local_experts] of them from each member
  T *gate = nullptr, *hidden = nullptr;  ///< [expert_rows x 2 i], [expert_rows x i]
  T *expert_out = nullptr, *combined = nullptr;  ///< [expert_rows x d], [sent_rows x d]
  // head
  S* final_rstd = nullptr;                      ///< [T]
  T *final_xn = nullptr, *dfinal_xn = nullptr;  ///< [T x d]
  T* logits = nullptr;    ///< [T x vocabulary]; probabilities; from the backward (on a GPU from the
                          ///< loss) on gradients
  S* row_loss = nullptr;  ///< [T], on a GPU

  T* dcombined = nullptr;                          ///< [sent_rows x d]
  S* dweight = nullptr;                            ///< [T x k]
  T *drows = nullptr, *dgate = nullptr;            ///< [expert_rows x d], [expert_rows x 2 i]
  T *dsorted = nullptr, *ddispatched = nullptr;    ///< [expert_rows x d], [sent_rows x d]
  T* dexpert = nullptr;                            ///< [T x d]
  T *dqkv = nullptr, *dy = nullptr;                ///< dattention: [T x 3 d], [T x d]
  T *dattention_xn = nullptr, *dlogits = nullptr;  ///< dattention: [T x d], [T x experts]
  T* dcontext = nullptr;                           ///< attention_work: [T x d]
  T* dscores = nullptr;  ///< attention_work: [sequence x sequence], on the host
};

/// Rows that an all-to-all component moves between the device that has a token and the one that
/// owns its expert, and which way.
template <typename T>
struct Ends {
  T *tokens, *experts;
  bool to_experts;
};
template <typename T, typename S>
Ends<T> EndsOf(Op op, const LayerViews<T, S>& v) {
  if (op == Op::DISPATCH_F) return {v.dispatched, v.rows, true};
  if (op == Op::COMBINE_F) return {v.combined, v.expert_out, false};
  if (op == Op::COMBINE_B) return {v.dcombined, v.drows, true};
  CF_ASSERT(op == Op::DISPATCH_B);
  return {v.ddispatched, v.dsorted, false};
}

/// Points the parts of a value at `base`, one after another, each at a multiple of 64 bytes
/// (kSlotAlignment). `input` is x, `output` z, `doutput` dz, `dinput` dx. Returns the bytes of the
/// value, a multiple of 64; with a null base that is all it does.
template <typename T, typename S>
int64_t PlaceValue(const LayerShape& shape, Value value, std::byte* base, LayerViews<T, S>* views);

/// Bytes of every value of one layer; 0 for those of opaque stages.
template <typename T, typename S = T>
ValueBytes BytesOfValues(const LayerShape& shape);

/// Memory of a model on each device of the host runtime, as the memory costs of a plan: the values
/// of a layer, to the byte; parameters, gradients and optimizer state (two moments) of each stage;
/// and of the chunks of a stage in the mean of its layers. `layers` are those of each stage; 0
/// stands for as many as the model's largest stage has. Throws Error if the model does not fit
/// (FitModel).
MemoryCost FootprintOf(const Model& model, int stages, int layers, int expert_parallel);

/// Like FootprintOf, for a model that is fitted already, values of these bytes, and this many bytes
/// for each weight.
MemoryCost FootprintWith(const Model& fitted, int stages, int expert_parallel,
                         const ValueBytes& values, int64_t weight_bytes = sizeof(float));

}  // namespace contraflow
