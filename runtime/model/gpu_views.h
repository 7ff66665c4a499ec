#pragma once

#include <cstddef>
#include <cstdint>

#include "compiler/plan/cost.h"
#include "compiler/plan/value.h"
#include "kernels/host/bf16.h"
#include "runtime/model/model.h"
#include "runtime/model/views.h"

namespace contraflow {

/// Where the values of one layer and micro-batch lie on a GPU, part by part; as LayerViews, in the
/// types they are stored in there. Of a part that the instruction at hand does not touch the
/// pointer is null.
struct GpuViews {
  using Bf16 = gpu::Bf16;

  Bf16* x = nullptr;   ///< input [T x d]
  Bf16* z = nullptr;   ///< output, or input of the layer behind
  Bf16* dz = nullptr;  ///< doutput
  Bf16* dx = nullptr;  ///< dinput, or doutput of the layer before

  // attention
  float *attention_rstd = nullptr, *expert_rstd = nullptr;  ///< [T]
  Bf16 *attention_xn = nullptr, *context = nullptr, *y = nullptr,
       *expert_xn = nullptr;  ///< [T x d]
  // scores
  Bf16* qkv = nullptr;                           ///< [T x 3 d]
  float* lse = nullptr;                          ///< [batch x heads x sequence]
  float *router = nullptr, *weight = nullptr;    ///< [T x experts], [T x k]
  int32_t *expert = nullptr, *row_of = nullptr;  ///< [T x k]
  int32_t* token_of = nullptr;                   ///< [sent_rows]
  int32_t* sent = nullptr;                       ///< [experts + 1]
  Bf16* dispatched = nullptr;                    ///< [sent_rows x d]
  // rows
  Bf16* rows = nullptr;  ///< [expert_rows x d]
  int32_t *first = nullptr,
          *received = nullptr;              ///< [local_experts + 1], [members x local_experts]
  Bf16 *gate = nullptr, *hidden = nullptr;  ///< [expert_rows x 2 i], [expert_rows x i]
  Bf16 *expert_out = nullptr, *combined = nullptr;  ///< [expert_rows x d], [sent_rows x d]
  // head
  float* final_rstd = nullptr;                     ///< [T]
  Bf16 *final_xn = nullptr, *dfinal_xn = nullptr;  ///< [T x d]
  Bf16* logits = nullptr;     ///< [T x vocabulary]; from the loss on their gradients
  float* row_loss = nullptr;  ///< [T]

  Bf16* dcombined = nullptr;                        ///< [sent_rows x d]
  float* dweight = nullptr;                         ///< [T x k]
  Bf16 *drows = nullptr, *dgate = nullptr;          ///< [expert_rows x d], [expert_rows x 2 i]
  Bf16 *dsorted = nullptr, *ddispatched = nullptr;  ///< [expert_rows x d], [sent_rows x d]
  Bf16* dexpert = nullptr;                          ///< [T x d]
  // dattention
  Bf16 *dqkv = nullptr, *dy = nullptr;                ///< [T x 3 d], [T x d]
  Bf16 *dattention_xn = nullptr, *dlogits = nullptr;  ///< [T x d], [T x experts]
  Bf16* dcontext = nullptr;                           ///< attention_work: [T x d]
};

/// As PlaceValue (runtime/views.h), for a GPU: points the parts of a value at `base`, one behind
/// the other, each at a multiple of kSlotAlignment, and returns the bytes of the value.
int64_t PlaceGpuValue(const LayerShape& shape, Value value, std::byte* base, GpuViews* views);

/// Bytes of every value of one layer on a GPU; 0 for those of opaque stages.
ValueBytes BytesOfGpuValues(const LayerShape& shape);

/// As FootprintOf (runtime/model/views.h), for the GPU runtime: values in bf16, parameters in fp32
/// with a bf16 copy.
MemoryCost GpuFootprintOf(const Model& model, int stages, int layers, int expert_parallel);

/// Throws Error, with the remedy, if the GPU runtime cannot compute the model: widths that are no
/// multiples of 8, a head wider than 128, more than 16 choices a token.
void CheckGpuModel(const Model& model);

}  // namespace contraflow
