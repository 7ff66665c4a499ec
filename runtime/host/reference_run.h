#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "compiler/plan/plan.h"
#include "runtime/core/walk.h"
#include "runtime/host/stage.h"
#include "runtime/model/dataset.h"

namespace contraflow {

template <typename T>
class WholeStage;

/// What F leaves for B, and B for W, of one stage and one micro-batch of every member.
template <typename T>
class WholeStash {
 public:
  WholeStash() = default;

 private:
  friend class WholeStage<T>;
  /// What has been done with it; each of B and W happens once, in this order.
  enum class Phase : uint8_t { kNone, kForward, kBackward } phase_ = Phase::kNone;
  struct Part {
    Buffer<std::byte> memory;
    LayerViews<T> views;
  };
  std::vector<MicroBatch> micros_;         // by member
  std::vector<std::vector<Part>> tokens_;  // by layer and member: what the members do alone
  std::vector<Part> experts_;              // by layer: what the experts do for all of them
  std::vector<std::vector<Buffer<int32_t>>> row_of_;  // by layer and member
  int64_t dropped_ = 0;
  double strayed_ = 0;
};

/// A stage without any partition: all of its experts in one place, which work on the tokens of all
/// members of an expert group at once. The members' tokens go through everything else one member
/// after the other, as matrix products depend on their shapes in the last bits. It knows nothing of
/// exchanges, rows on their way and arenas: it is what those must equal.
template <typename T>
class WholeStage {
 public:
  WholeStage(const Model& model, int stage, int stages, int members, uint64_t seed);

  /// The experts that a member's tokens visit in a layer, [T x k].
  using Choices = std::function<const int32_t*(int layer, size_t member)>;

  /// F. `input` is the output of the stage before, [members x T x d] (empty for stage 0, which
  /// reads the tokens). Returns the activation for the next stage; the last stage returns nothing
  /// and leaves the members' mean cross-entropies in `losses`. With `choices`, tokens visit those.
  std::vector<T> Forward(std::span<const MicroBatch> micros, const std::vector<T>& input,
                         WholeStash<T>* stash, std::vector<T>* losses,
                         const Choices& choices = {}) const;
  /// B. Turns the gradient of the output (empty for the last stage, which starts from its losses
  /// times `loss_scale`) into that of the input (empty for stage 0). Leaves in the stash what W
  /// needs; does not touch weight gradients.
  std::vector<T> BackwardInput(const std::vector<T>& output_gradient, T loss_scale,
                               WholeStash<T>* stash) const;
  /// W. Adds to the gradients of every member, dense[member], and of the experts, and empties the
  /// stash.
  void BackwardWeight(std::span<T* const> dense, T* experts, WholeStash<T>* stash) const;
  /// W, all members into stage().gradients().
  void BackwardWeight(WholeStash<T>* stash);

  /// (token, expert) pairs that found the expert's rows taken, of this stash.
  static int64_t Dropped(const WholeStash<T>& stash) { return stash.dropped_; }
  /// How far the choices were from the router's: the largest difference of a chosen expert's
  /// probability from that of the one the router prefers in its place, relative to the latter.
  static double Strayed(const WholeStash<T>& stash) { return stash.strayed_; }
  BasicStage<T>& stage() { return *stage_; }

 private:
  using Part = typename WholeStash<T>::Part;

  Part Allocate(const LayerShape& shape, std::span<const Value> values) const;
  void Choose(const int32_t* choice, const LayerViews<T>& v, WholeStash<T>* stash) const;
  void Route(int layer, WholeStash<T>* stash) const;

  const LayerShape alone_;    // of one member, and without a limit to the rows of an expert
  const LayerShape experts_;  // of all experts and members
  std::unique_ptr<BasicStage<T>> stage_;
};

/// The same training without a pipeline: one copy of every stage, with all of its experts, one
/// micro-batch after the other, and for each its stages' F, then B, then W. What a plan's execution
/// must equal, bit for bit. Of the plan it uses only where stages live and in which order each copy
/// of a stage adds micro-batches to its gradients (SerialOrder): they are summed in that order for
/// each copy (replica, member of the expert group and rank; of an expert, which only one member
/// has, replica and rank), then over the copies, replica by replica, member by member and in route
/// order.
class ReferenceRun {
 public:
  /// The plan is sound (Verify). Plan and dataset must outlive the run. Throws Error if the model
  /// does not fit the plan.
  ReferenceRun(const Plan& plan, const Model& model, const Dataset& dataset, uint64_t seed);

  /// Called whenever a micro-batch is done, for who waits; may be empty.
  void OnMove(std::function<void()> moved) { moved_ = std::move(moved); }
  /// The experts that tokens of a micro-batch visit, [T x k], in place of those the router prefers:
  /// where the run to compare with computes in less precision, it decides what is nearly a tie.
  using Choices =
      std::function<const int32_t*(int stage, int layer, int replica, int member, int microbatch)>;
  /// From now on; may be empty.
  void ChooseBy(Choices choices) { choices_ = std::move(choices); }
  /// WholeStage::Strayed, the largest of the last step.
  double strayed() const { return strayed_; }
  /// One step; steps count from 1. Returns the losses, [replica][member][micro-batch].
  std::vector<float> Step(int step);

  /// With the gradients and the updated parameters of the last step.
  Stage& StageAt(int stage) { return stages_[static_cast<size_t>(stage)].stage(); }
  /// (token, expert) pairs of the last step that an expert had no capacity left for.
  int64_t dropped() const { return dropped_; }

 private:
  void TrainOn(int step, int replica, const SerialOrder::Pass& pass, std::vector<float>* losses);

  const Plan& plan_;
  const Model model_;
  const Dataset& dataset_;
  const uint64_t seed_;
  const SerialOrder order_;
  std::vector<WholeStage<float>> stages_;
  // Sums over micro-batches, by stage (SerialOrder).
  std::vector<std::vector<std::vector<float>>> dense_, experts_;
  int64_t dropped_ = 0;
  double strayed_ = 0;
  std::function<void()> moved_;
  Choices choices_;
};

}  // namespace contraflow
