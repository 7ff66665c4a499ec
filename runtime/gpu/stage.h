#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "kernels/gpu/clip.h"
#include "kernels/gpu/elementwise.h"
#include "kernels/host/bf16.h"
#include "runtime/exec/gpu.h"
#include "runtime/gpu/products.h"
#include "runtime/host/stage.h"
#include "runtime/model/gpu_views.h"
#include "runtime/model/model.h"
#include "runtime/model/parameters.h"

namespace contraflow {

/// Step size of the optimizer of BasicStage in this step, counted from 1.
gpu::AdamWStepSize StepSizeOf(const Model& model, int step);

/// How many blocks of parameters the model has.
int BlocksOfModel(const Model& model);

/// Like BasicStage, on a GPU: one copy of one stage, with parameters, gradients and moments in
/// fp32, a block each in the order of ParameterLayout, and a copy of the parameters in bf16, which
/// matrix products read. Components are given to a stream and use the work memory of its lane; the
/// exchanges are not its business. Pointers of the views and of what else is passed are the
/// device's.
class GpuStage {
 public:
  /// Owns the experts of member `member`; draws the parameters that BasicStage draws. Kit and gpu
  /// must outlive it. Returns once all is in place.
  GpuStage(const Model& model, const GpuProducts& products, int member, int stage, int stages,
           uint64_t seed, Gpu& gpu, gpu::Stream setup);
  GpuStage(const GpuStage&) = delete;
  GpuStage& operator=(const GpuStage&) = delete;

  /// ATTN_F. `tokens` [T], read by the embedding only. *dropped += (token, expert) pairs that got
  /// no row. If `dispatched` is null its rows are left to Dispatch.
  void AttentionForward(int layer, const int32_t* tokens, int32_t* dropped, const GpuViews& v,
                        GpuLane at) const;
  /// The rows of the tokens to their places in `dispatched`.
  void Dispatch(const GpuViews& v, gpu::Stream stream) const;
  /// MLP_F.
  void ExpertsForward(int layer, const GpuViews& v, gpu::Stream stream) const;
  /// COMBINE_F, after its exchange. With the head, *loss becomes the mean cross-entropy of the
  /// micro-batch and the logits become the gradient of `loss_scale` times it; `targets` [T].
  /// `came`, if not null, are the rows that `combined` becomes as they are read.
  void CombineForward(int layer, const int32_t* targets, float loss_scale, float* loss,
                      const GpuViews& v, GpuLane at, const gpu::Bf16* came = nullptr) const;
  /// COMBINE_B, before its exchange. The head makes dz.
  void CombineBackward(int layer, const GpuViews& v, GpuLane at) const;
  /// MLP_B.
  void ExpertsBackward(int layer, const GpuViews& v, gpu::Stream stream) const;
  /// DISPATCH_B, after its exchange.
  void DispatchBackward(const GpuViews& v, gpu::Stream stream) const;
  /// ATTN_B.
  void AttentionBackward(int layer, const GpuViews& v, GpuLane at) const;
  /// The experts' part of MLP_W: adds to gradients laid out as expert_gradients().
  void ExpertsWeight(int layer, const GpuViews& v, float* experts, gpu::Stream stream) const;
  /// The head's part of MLP_W of the last layer: adds to gradients laid out as dense_gradients().
  void HeadWeight(const GpuViews& v, float* dense, GpuLane at) const;
  /// ATTN_W.
  void AttentionWeight(int layer, const int32_t* tokens, const GpuViews& v, float* dense,
                       GpuLane at) const;

  void ZeroGradients(gpu::Stream stream);
  /// Sets the sum of the squares of each block of gradients, squares[its number among all blocks of
  /// the model in the order of their names]; may be null. *not_finite becomes a note of the first
  /// block that has one that is not finite, if there is one; NotFinite is its name.
  void SumSquares(double* squares, int32_t* not_finite, gpu::Stream stream) const;
  const std::string& NotFinite(int32_t note) const;
  /// Scales the gradients down to that limit.
  void ClipGradients(const gpu::Clip* clip, gpu::Stream stream);
  /// AdamW with the gradients as they are; refreshes the bf16 copy. Changes no value if one of the
  /// two flags is not 0; `failed` may be null.
  void OptimizerStep(const gpu::AdamWStepSize* step, const int32_t* not_finite,
                     const int32_t* failed, gpu::Stream stream);

  /// Copies parameters, gradients and moments to a stage of the same layout on the host, or from
  /// it. Both wait for the GPU.
  void Get(Stage* mirror, gpu::Stream stream) const;
  void Put(Stage& mirror, gpu::Stream stream);
  /// Its blocks, in device memory.
  StageState State() const;

  int layers() const { return static_cast<int>(layout_.layers.size()); }
  bool HasEmbedding(int layer) const { return stage_ == 0 && layer == 0; }
  bool HasHead(int layer) const { return stage_ == stages_ - 1 && layer == layers() - 1; }

  /// In device memory, as those of BasicStage.
  std::span<float> dense_gradients() { return {gradients_, layout_.dense}; }
  std::span<float> expert_gradients() {
    return {gradients_ + layout_.dense, layout_.size - layout_.dense};
  }

 private:
  const LayerOffsets& At(int layer) const { return layout_.layers[static_cast<size_t>(layer)]; }
  size_t bytes() const { return layout_.size * sizeof(float); }
  void PlaceSquares(gpu::Stream setup);
  const gpu::Bf16* experts() const { return copy_ + layout_.dense; }

  const Model model_;
  const GpuProducts& products_;
  const LayerShape& shape_;
  const int stage_, stages_;
  Gpu& gpu_;
  const ParameterLayout layout_;
  float *parameters_, *gradients_, *m_, *v_;  // [layout_.size]
  gpu::Bf16* copy_;                           // [layout_.size]
  // How the squares of gradients are added up.
  int tile_count_ = 0;
  gpu::SquareTile* tiles_ = nullptr;
  gpu::SquareBlock* square_blocks_ = nullptr;  // as layout_.blocks
  double* partial_ = nullptr;                  // [tile_count_]
};

}  // namespace contraflow
