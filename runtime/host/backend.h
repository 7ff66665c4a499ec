#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "compiler/plan/plan.h"
#include "runtime/core/backend.h"
#include "runtime/core/component_walk.h"
#include "runtime/core/transport.h"
#include "runtime/host/exchange.h"
#include "runtime/host/poison.h"
#include "runtime/host/stage.h"
#include "runtime/host/value_store.h"
#include "runtime/model/dataset.h"

namespace contraflow {

/// Runs the instructions of one device on the host's processor. At level buffer the values of a
/// step lie in arenas as the plan says, and once a first step has been done nothing is allocated
/// any more; at other levels they come from the heap.
class HostBackend : public Backend {
 public:
  /// Makes a copy of every stage that the plan's routes put on this rank, with this member's share
  /// of the experts. Plan, text and transport must outlive the backend. With `fill` memory without
  /// a value is full of NaN. Throws Error if the model does not fit the plan.
  HostBackend(const Plan& plan, const Model& model, const Text& text, uint64_t seed, Device device,
              Transport& transport, bool fill = kFillUnused);

  void BeginStep(int step) override;
  void Compute(const Instruction& instruction) override;
  std::span<std::byte> Outgoing(const Instruction& send) override;
  void Sent(const Instruction& send) override;
  std::span<std::byte> Incoming(const Instruction& receive) override;
  std::span<float> Gradients(int stage) override;
  std::span<float> ExpertGradients(int stage) override;
  void OptimizerStep(int stage) override;
  void EndStep() override;

  /// This device's copy of a stage. Throws Error if it holds none.
  Stage& StageAt(int stage);
  /// Losses of the micro-batches whose last stage ran here in this step.
  const std::map<int, float>& losses() const { return losses_; }
  /// (token, expert) pairs of this step that an expert had no capacity left for.
  int64_t dropped() const { return dropped_; }
  /// Bytes allocated for each arena; 0 below level buffer.
  const std::array<int64_t, kArenaCount>& arena_bytes() const { return values_.arena_bytes(); }

 private:
  void CountUses(const Program& program);
  LayerViews<float> Touch(const Instruction& component);
  void Leave();
  void Run(const Instruction& component);
  const MicroBatch& Draw(const Instruction& component);
  std::span<std::byte> Message(const Instruction& message);

  const Model model_;
  const Text& text_;
  const uint64_t seed_;
  const int device_number_;  // over replicas and members
  const int stages_;
  const LayerShape shape_;
  const float loss_scale_;
  const ComponentWalk walk_;
  ValueStore values_;
  Exchange exchange_;
  std::map<int, std::unique_ptr<Stage>> copies_;  // by stage
  // Losses of this step; nodes for those to come, so that none is allocated.
  std::map<int, float> losses_, no_losses_;
  std::vector<Access> accesses_;  // of the component or message at hand
  MicroBatch micro_;              // the one drawn last, of step drawn_step_
  int drawn_step_ = 0, drawn_microbatch_ = -1;
  int64_t dropped_ = 0;
  int step_ = 0;
};

}  // namespace contraflow
