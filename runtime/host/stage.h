#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/host/buffer.h"
#include "runtime/model/model.h"
#include "runtime/model/parameters.h"
#include "runtime/model/views.h"

namespace contraflow {

/// Angles of the rotary position embedding; the same for every layer.
template <typename T>
struct RopeTable {
  explicit RopeTable(const LayerShape& shape);
  Buffer<T> cosine, sine;
};

/// One layer of the model, the same code whichever stage it is in: what its components compute, on
/// views and without any memory of their own. The exchanges between the tokens' devices and the
/// experts' (DISPATCH_F all of it; COMBINE_F and DISPATCH_B before, COMBINE_B behind what is here)
/// are not its business (runtime/host/backend.h). `dense` and `experts` point at the two parts of
/// the parameters, or of the gradients to add to, of the layer's stage (ParameterLayout).
template <typename T>
struct Layer {
  const LayerShape* shape;
  const RopeTable<T>* rope;
  LayerOffsets offsets;

  /// ATTN_F: x to y, and the tokens' rows for the experts. Returns how many (token, expert) pairs
  /// got no row.
  int AttentionForward(const T* dense, const LayerViews<T>& v) const;
  /// MLP_F: rows to expert_out.
  void ExpertsForward(const T* experts, const LayerViews<T>& v) const;
  /// COMBINE_F: combined and y to z.
  void CombineForward(const LayerViews<T>& v) const;

  /// COMBINE_B: dz to dcombined and dweight.
  void CombineBackward(const LayerViews<T>& v) const;
  /// MLP_B: drows to dsorted.
  void ExpertsBackward(const T* experts, const LayerViews<T>& v) const;
  /// DISPATCH_B: ddispatched to dexpert.
  void DispatchBackward(const LayerViews<T>& v) const;
  /// ATTN_B: dz, dexpert and dweight to dx.
  void AttentionBackward(const T* dense, const LayerViews<T>& v) const;

  /// MLP_W.
  void ExpertsWeight(const LayerViews<T>& v, T* experts) const;
  /// ATTN_W.
  void AttentionWeight(const LayerViews<T>& v, T* dense) const;
};

struct StateBlock;

/// The bytes one micro-batch trains on: batch * sequence each; target t is the byte after token t.
struct MicroBatch {
  std::vector<int32_t> tokens, targets;
};

/// One copy of one stage on one device: parameters, gradients and optimizer state, and what the
/// components of its layers compute (Layer), with the embedding before the first layer of stage 0
/// and the head behind the last one of the last stage. `layer` counts inside the stage; `micro` is
/// read by the embedding and the head only. Not thread safe; no hidden global state; the same
/// inputs give the same bits, whichever thread or device runs it. The runtime uses float; double is
/// for the proof that the gradients are those of the loss, by finite differences.
template <typename T>
class BasicStage {
 public:
  /// Owns the experts of member `member` of the expert group. Parameters are drawn from (seed,
  /// layer), so every copy of a stage, every partition of the model into stages and of its experts
  /// over a group starts from the same weights.
  BasicStage(const Model& model, const LayerShape& shape, int member, int stage, int stages,
             uint64_t seed);
  BasicStage(const BasicStage&) = delete;
  BasicStage& operator=(const BasicStage&) = delete;

  /// ATTN_F. Returns how many (token, expert) pairs were dropped.
  int AttentionForward(int layer, const MicroBatch& micro, const LayerViews<T>& v) const;
  /// MLP_F.
  void ExpertsForward(int layer, const LayerViews<T>& v) const;
  /// COMBINE_F, behind its exchange. With the head, returns the mean cross-entropy of the
  /// micro-batch, else 0.
  T CombineForward(int layer, const MicroBatch& micro, const LayerViews<T>& v) const;
  /// COMBINE_B, before its exchange. The head makes dz, the gradient of `loss_scale` times its
  /// loss.
  void CombineBackward(int layer, const MicroBatch& micro, T loss_scale,
                       const LayerViews<T>& v) const;
  /// MLP_B.
  void ExpertsBackward(int layer, const LayerViews<T>& v) const;
  /// DISPATCH_B, behind its exchange.
  void DispatchBackward(int layer, const LayerViews<T>& v) const;
  /// ATTN_B.
  void AttentionBackward(int layer, const LayerViews<T>& v) const;
  /// The experts' part of MLP_W: adds to gradients laid out as expert_gradients().
  void ExpertsWeight(int layer, const LayerViews<T>& v, T* experts) const;
  /// The head's part of MLP_W of the last layer: adds to gradients laid out as dense_gradients().
  void HeadWeight(const LayerViews<T>& v, T* dense) const;
  /// ATTN_W.
  void AttentionWeight(int layer, const MicroBatch& micro, const LayerViews<T>& v, T* dense) const;

  void ZeroGradients();
  /// AdamW with the gradients as they are; `step` counts from 1.
  void OptimizerStep(int step);

  int layers() const { return static_cast<int>(layers_.size()); }
  bool HasEmbedding(int layer) const { return stage_ == 0 && layer == 0; }
  bool HasHead(int layer) const { return stage_ == stages_ - 1 && layer == layers() - 1; }

  std::span<T> parameters() { return parameters_; }  ///< one flat, 64-byte aligned block
  std::span<T> gradients() { return gradients_; }    ///< same layout
  /// The gradients that all members of an expert group have, and those of the owned experts.
  std::span<T> dense_gradients() { return gradients().first(layout_.dense); }
  std::span<T> expert_gradients() { return gradients().subspan(layout_.dense); }
  /// The optimizer's first and second moments, likewise.
  std::span<T> first_moments() { return m_; }
  std::span<T> second_moments() { return v_; }
  std::span<const ParameterBlock> blocks() const { return layout_.blocks; }

 private:
  const Layer<T>& At(int layer) const { return layers_[static_cast<size_t>(layer)]; }
  const T* dense() const { return parameters_.data(); }
  const T* experts() const { return parameters_.data() + layout_.dense; }
  void CheckTokens(const std::vector<int32_t>& tokens) const;

  const Model model_;
  const LayerShape shape_;
  const int stage_, stages_;
  ParameterLayout layout_;
  RopeTable<T> rope_;
  std::vector<Layer<T>> layers_;
  Buffer<T> parameters_, gradients_, m_, v_;
};

using Stage = BasicStage<float>;

/// All that a stage must keep to go on later: its blocks, with those of the experts it owns. Valid
/// as long as the stage.
std::vector<StateBlock> StateOf(Stage& stage);

}  // namespace contraflow
