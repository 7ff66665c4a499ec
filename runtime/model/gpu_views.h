#pragma once

#include "kernels/host/bf16.h"
#include "runtime/model/model.h"
#include "runtime/model/views.h"

namespace contraflow {

/// Places of the values of one layer and micro-batch on a GPU.
using GpuViews = LayerViews<gpu::Bf16, float>;

inline ValueBytes BytesOfGpuValues(const LayerShape& shape) {
  return BytesOfValues<gpu::Bf16, float>(shape);
}

/// Like FitModel, for the GPU runtime. Throws Error too, with the remedy, if it cannot compute the
/// model: too large for any GPU, widths that are no multiples of 8, a head wider than 128, more
/// than 16 choices a token.
Model FitGpuModel(Model model, int stages, int layers, int members);
Model FitGpuModel(Model model, const Plan& plan);

/// Like FootprintOf (runtime/model/views.h), for the GPU runtime: values in bf16, parameters in
/// fp32 with a bf16 copy.
MemoryCost GpuFootprintOf(const Model& model, int stages, int layers, int expert_parallel);

}  // namespace contraflow
