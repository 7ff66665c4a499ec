#pragma once

#include "kernels/host/buffer.h"
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
/// are not its business (runtime/exchange.h). `dense` and `experts` point at the two parts of the
/// parameters, or of the gradients to add to, of the layer's stage (ParameterLayout).
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

}  // namespace contraflow
