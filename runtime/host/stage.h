#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "compiler/plan/error.h"
#include "kernels/host/buffer.h"
#include "runtime/model/model.h"
#include "runtime/model/parameters.h"
#include "runtime/model/state.h"
#include "runtime/model/views.h"

namespace contraflow {

struct Dataset;
struct MicroBatch;
class PartTimes;

/// One copy of one stage on one device: parameters, gradients and optimizer state, and what the
/// components of its layers compute, the same code whichever stage they are in, with the embedding
/// before the first layer of stage 0 and the head after the last one of the last stage. The
/// exchanges between the tokens' devices and the experts' (DISPATCH_F all of it; COMBINE_F and
/// DISPATCH_B before, COMBINE_B after what is here) are not its business (runtime/host/backend.h).
/// `layer` counts inside the stage. Not thread safe; no hidden global state; the same inputs give
/// the same bits, whichever thread or device runs it. The runtime uses float; double is for the
/// proof that the gradients are those of the loss, by finite differences.
template <typename T>
class BasicStage {
 public:
  /// Owns the experts of member `member` of the expert group. Parameters are drawn from (seed,
  /// layer), so every copy of a stage, every partition of the model into stages and of its experts
  /// over a group starts from the same weights. Without a seed they are 0, for the caller to fill.
  BasicStage(const Model& model, const LayerShape& shape, int member, int stage, int stages,
             std::optional<uint64_t> seed);
  BasicStage(const BasicStage&) = delete;
  BasicStage& operator=(const BasicStage&) = delete;

  /// The embedding's part of ATTN_F of the first layer, before the attention: the tokens to x.
  void Embed(const MicroBatch& micro, const LayerViews<T>& v) const;
  /// ATTN_F: x to y, and the tokens' rows for the experts. Returns how many (token, expert) pairs
  /// got no row.
  int AttentionForward(int layer, const LayerViews<T>& v) const;
  /// MLP_F: rows to expert_out.
  void ExpertsForward(int layer, const LayerViews<T>& v) const;
  /// COMBINE_F, after its exchange: combined and y to z.
  void CombineForward(const LayerViews<T>& v) const;
  /// The head's part of COMBINE_F of the last layer, after it: returns the mean cross-entropy of
  /// the micro-batch.
  T HeadForward(const MicroBatch& micro, const LayerViews<T>& v) const;
  /// The head's part of COMBINE_B of the last layer, before it: makes dz, the gradient of
  /// `loss_scale` times the loss.
  void HeadBackward(const MicroBatch& micro, T loss_scale, const LayerViews<T>& v) const;
  /// COMBINE_B, before its exchange: dz to dcombined and dweight.
  void CombineBackward(const LayerViews<T>& v) const;
  /// MLP_B: drows to dsorted.
  void ExpertsBackward(int layer, const LayerViews<T>& v) const;
  /// DISPATCH_B, after its exchange: ddispatched to dexpert.
  void DispatchBackward(const LayerViews<T>& v) const;
  /// ATTN_B: dz, dexpert, dweight and `loss_scale` times the load-balancing loss to dx.
  void AttentionBackward(int layer, T loss_scale, const LayerViews<T>& v) const;
  /// The experts' part of MLP_W: adds to gradients laid out as expert_gradients().
  void ExpertsWeight(int layer, const LayerViews<T>& v, T* experts) const;
  /// The head's part of MLP_W of the last layer: adds to gradients laid out as dense_gradients().
  void HeadWeight(const LayerViews<T>& v, T* dense) const;
  /// ATTN_W.
  void AttentionWeight(int layer, const LayerViews<T>& v, T* dense) const;
  /// The embedding's part of ATTN_W of the first layer, after it.
  void EmbeddingWeight(const MicroBatch& micro, const LayerViews<T>& v, T* dense) const;

  void ZeroGradients() { std::fill(gradients_.begin(), gradients_.end(), T{0}); }
  /// Sets the sum of the squares of each block's gradients, by name.
  void AddSquares(std::map<std::string, double>* squares) const;
  /// AdamW; `step` counts from 1. If the model has a limit to the norm of all gradients, which is
  /// `norm`, they are scaled down to it first.
  void OptimizerStep(int step, double norm = 0);

  int layers() const { return static_cast<int>(layout_.layers.size()); }
  bool HasEmbedding(int layer) const { return stage_ == 0 && layer == 0; }
  bool HasHead(int layer) const { return stage_ == stages_ - 1 && layer == layers() - 1; }

  std::span<T> parameters() { return parameters_; }  ///< one flat, 64-byte aligned block
  std::span<T> gradients() { return gradients_; }    ///< same layout
  /// The gradients that all members of an expert group have, and those of the owned experts.
  std::span<T> dense_gradients() { return gradients().first(layout_.dense); }
  std::span<T> expert_gradients() { return gradients().subspan(layout_.dense); }
  /// First and second moments of the optimizer, in the same layout.
  std::span<T> first_moments() { return m_; }
  std::span<T> second_moments() { return v_; }
  std::span<const ParameterBlock> blocks() const { return layout_.blocks; }

 private:
  const LayerOffsets& At(int layer) const { return layout_.layers[static_cast<size_t>(layer)]; }
  const T* dense() const { return parameters_.data(); }
  const T* experts() const { return parameters_.data() + layout_.dense; }
  void CheckTokens(const std::vector<int32_t>& tokens) const;

  const Model model_;
  const LayerShape shape_;
  const int stage_, stages_;
  ParameterLayout layout_;
  Buffer<T> cosine_, sine_;  // angles of the rotary position embedding
  Buffer<T> parameters_, gradients_, m_, v_;
};

using Stage = BasicStage<float>;

/// The state of a copy of a stage.
struct StageState {
  std::vector<StateBlock> blocks;
  size_t dense;  ///< the first n every member of an expert group has; then come the owned
                 ///< experts
};

/// Holder of one device of a plan while it trains: its copies of stages, and their memory.
class StageHolder {
 public:
  virtual ~StageHolder() = default;

  /// Its copy of a stage, as of the last step: parameters, gradients, moments. The same object
  /// every time, valid as long as the holder, and what it says until the next step. Throws Error if
  /// the device holds none.
  virtual Stage& StageAt(int stage) = 0;
  /// Makes changes to StageAt(stage) hold from now on.
  virtual void Put(int stage) = 0;
  /// State that StageAt has to keep to go on, where it is: on the host, or in the memory of a
  /// device, for StateCopies. Valid as long as the holder.
  virtual StageState StateAt(int stage);
  /// From the next step on it only goes forward, and changes no weights: on micro-batches of batch
  /// number `batch`, 1 or more, of a text held out; null: it trains again. Throws Error if the
  /// device cannot.
  virtual void ReadText(const Dataset* /*text*/, int /*batch*/) {
    throw Error("validation is for the CPU only; leave out `validation`");
  }
  /// From the next step on it measures how long the parts of the model take, too. Returns the
  /// times, which live as long as the holder; null: it cannot tell.
  virtual PartTimes* MeasureParts() { return nullptr; }
  /// Bytes that it has allocated for each arena.
  virtual const std::array<int64_t, kArenaCount>& arena_bytes() const = 0;
};

/// All that a stage must keep to go on later: its blocks, with those of the experts it owns. Valid
/// as long as the stage.
std::vector<StateBlock> StateOf(Stage& stage);

}  // namespace contraflow
