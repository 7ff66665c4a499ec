#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "compiler/plan/plan.h"
#include "runtime/core/serial_order.h"
#include "runtime/host/stage.h"
#include "runtime/model/dataset.h"

namespace contraflow {

/// A model without any partition: one stage with all layers and all experts, which work on the
/// tokens of all members of an expert group at once. The members' tokens go through everything else
/// one member after the other, as matrix products depend on their shapes in the last bits. It knows
/// nothing of exchanges, rows on their way and arenas: it is what those must equal.
template <typename T>
class WholeModel {
 public:
  WholeModel(const Model& model, int members, uint64_t seed);

  /// After a router, which has chosen experts and weights; may change them.
  using Routed = std::function<void(int layer, int member, const LayerViews<T>& v)>;

  /// F of a micro-batch of each member. Returns their mean cross-entropies, and keeps what B needs
  /// until the next call.
  std::vector<T> Forward(std::span<const MicroBatch> micros, const Routed& routed = {});
  /// B, from the losses times `loss_scale`. Does not touch weight gradients.
  void BackwardInput(T loss_scale);
  /// W of some layers: adds to the gradients of every member, dense[member], and of the experts.
  void BackwardWeight(LayerRange layers, std::span<T* const> dense, T* experts) const;

  /// (token, expert) pairs of the last forward that found the expert's rows taken.
  int64_t dropped() const { return dropped_; }
  /// Its load-balancing losses, of all layers and members, without their coefficient.
  T balance() const { return balance_; }
  BasicStage<T>& stage() { return stage_; }

 private:
  struct Layer {
    LayerViews<T> experts;               // work of these for all members
    std::vector<LayerViews<T>> members;  // work of these alone
  };

  LayerViews<T> Allocate(const LayerShape& shape, std::span<const Value> values);
  void Route(const Layer& layer);

  const LayerShape alone_;    // of one member, and without a limit to the rows of an expert
  const LayerShape experts_;  // of all experts and members
  BasicStage<T> stage_;
  std::vector<Layer> layers_;
  std::vector<Buffer<std::byte>> memory_;  // of all views
  std::vector<MicroBatch> micros_;
  int64_t dropped_ = 0;
  T balance_ = 0;
};

/// The same training without a pipeline: the whole model, one micro-batch after the other, and for
/// each F, then B, then W. A plan's execution must equal it, bit for bit. It uses only these facts
/// of the plan: where stages live and in which order each copy of a stage adds micro-batches to its
/// gradients (SerialOrder): they are summed in that order for each copy (replica, member of the
/// expert group and rank; of an expert, which only one member has, replica and rank), then over the
/// copies, replica by replica, member by member and in route order.
class ReferenceRun {
 public:
  /// The plan is sound (Verify). Plan and dataset must outlive the run. Throws Error if the model
  /// does not fit the plan.
  ReferenceRun(const Plan& plan, const Model& model, const Dataset& dataset, uint64_t seed);

  /// Called whenever a micro-batch is done, for who waits; may be empty.
  void OnMove(std::function<void()> moved) { moved_ = std::move(moved); }
  /// Called after every router, from now on, with the place of the micro-batch (MicrobatchPlace);
  /// may change what it has chosen: where the run to compare with computes in less precision, that
  /// decides what is nearly a tie. May be empty.
  using Routed = std::function<void(int layer, size_t place, const LayerViews<float>& v)>;
  void OnRouted(Routed routed) { routed_ = std::move(routed); }
  /// One step; steps count from 1. Returns the losses, [replica][member][micro-batch].
  std::vector<float> Step(int step);

  const Model& model() const { return model_; }  ///< settled
  /// The whole model, with the gradients and the updated parameters of the last step.
  Stage& stage() { return whole_.stage(); }
  /// (token, expert) pairs of the last step that an expert had no capacity left for.
  int64_t dropped() const { return dropped_; }

 private:
  void TrainOn(int step, int replica, const SerialOrder::Pass& pass, std::vector<float>* losses);

  const Plan& plan_;
  const Model model_;
  const Dataset& dataset_;
  const uint64_t seed_;
  const SerialOrder order_;
  WholeModel<float> whole_;
  // Sums over micro-batches (SerialOrder), each as large as the whole model's: stages with fewer
  // copies than others leave some of them zero.
  std::vector<std::vector<float>> dense_, experts_;
  int64_t dropped_ = 0;
  std::function<void()> moved_;
  Routed routed_;
};

}  // namespace contraflow
