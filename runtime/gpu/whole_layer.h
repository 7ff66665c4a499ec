#pragma once

#include <span>
#include <vector>

#include "kernels/gpu/stream.h"
#include "runtime/gpu/gpu.h"
#include "runtime/model/gpu_views.h"

namespace contraflow {

/// The values of one layer of the model for one micro-batch of all members of an expert group: as
/// WholeStash, on a GPU.
struct WholeLayer {
  int stage, layer;
  GpuViews experts;               ///< what the experts do for all members at once
  std::vector<GpuViews> members;  ///< what the members do alone
};

/// All layers of a model whose stages have so many each, in one allocation without anything in it;
/// every value has memory of its own, but what a layer gives is what the next one gets. The shape
/// is of an expert group where one device has all experts.
std::vector<WholeLayer> PlaceWholeLayers(const LayerShape& shape, std::span<const int> layers,
                                         Gpu& gpu, gpu::Stream stream);

}  // namespace contraflow
