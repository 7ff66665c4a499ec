#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "compiler/plan/instruction.h"
#include "compiler/plan/plan.h"
#include "runtime/core/executor.h"
#include "runtime/core/transport.h"
#include "runtime/core/walk.h"
#include "runtime/host/stage.h"
#include "runtime/host/value_store.h"
#include "runtime/model/dataset.h"
#include "runtime/model/views.h"

namespace contraflow {

/// The exchanges of routed rows inside an expert group, from the device that has a token to the one
/// that owns its expert and back. One part goes each way between two members for every expert of
/// the receiver, so that rows arrive where they are needed, by expert, then member, then token, and
/// nothing is sorted or copied twice. Without a limit to the rows of an expert their counts go
/// first. Used by one thread.
class Exchange {
 public:
  /// The transport must outlive it.
  Exchange(const LayerShape& shape, Transport& transport);

  /// DISPATCH_F: dispatched to the owners' rows; sets `first` and `received`.
  void Dispatch(const Instruction& instruction, const LayerViews<float>& v);
  /// COMBINE_F: expert_out back to combined.
  void Combine(const Instruction& instruction, const LayerViews<float>& v);
  /// COMBINE_B: dcombined to the owners' drows.
  void CombineBackward(const Instruction& instruction, const LayerViews<float>& v);
  /// DISPATCH_B: dsorted back to ddispatched.
  void DispatchBackward(const Instruction& instruction, const LayerViews<float>& v);

 private:
  void Count(const Instruction& instruction, const LayerViews<float>& v);
  enum class Way : bool { kToExperts, kToTokens };
  void Move(const Instruction& instruction, const LayerViews<float>& v, Way way, float* tokens,
            float* experts);
  void Swap(const Instruction& instruction);
  void FindParts(const LayerViews<float>& v, size_t local, float* tokens, float* experts);

  const LayerShape shape_;
  const size_t members_, owned_;  // experts of each member
  Transport& transport_;
  // By member: the rows that this device's tokens send to one expert there, and those that one
  // expert here has of that member's tokens.
  std::vector<std::span<float>> of_tokens_, of_experts_;
  std::vector<int32_t> counts_;  // of the rows sent, by expert
  std::vector<std::span<const std::byte>> send_;
  std::vector<std::span<std::byte>> receive_;
};

/// Runs the instructions of one device on the host's processor. At level buffer the values of a
/// step lie in arenas as the plan says, and once a first step has been done nothing is allocated
/// any more; at other levels they come from the heap.
class HostBackend : public Backend, public StageHolder {
 public:
  /// Makes a copy of every stage that the plan's routes put on this rank, with this member's share
  /// of the experts. Plan, dataset and transport must outlive the backend. With `fill` memory
  /// without a value is full of NaN. Throws Error if the model does not fit the plan.
  HostBackend(const Plan& plan, const Model& model, const Dataset& dataset, uint64_t seed,
              Device device, Transport& transport, bool fill = kFillUnused);

  void BeginStep(int step) override;
  void Compute(const Instruction& instruction) override;
  std::span<std::byte> Outgoing(const Instruction& send) override;
  void Sent(const Instruction& send) override;
  std::span<std::byte> Incoming(const Instruction& receive) override;
  std::span<float> Gradients(int stage) override;
  std::span<float> ExpertGradients(int stage) override;
  /// Like Compute of a loss, throws Error if something is not finite; nothing is updated then.
  void OptimizerStep(int stage) override;
  void EndStep() override;

  Stage& StageAt(int stage) override;
  void Put(int) override {}  // StageAt is the stage itself.
  /// Losses of the micro-batches whose last stage ran here in this step.
  const std::map<int, float>& losses() const { return losses_; }
  /// (token, expert) pairs of this step that an expert had no capacity left for.
  int64_t dropped() const { return dropped_; }
  const std::array<int64_t, kArenaCount>& arena_bytes() const override {
    return values_.arena_bytes();
  }

 private:
  void CountUses(const Program& program);
  LayerViews<float> Touch(const Instruction& component);
  void Leave();
  void Run(const Instruction& component);
  const MicroBatch& Draw(const Instruction& component);
  std::span<std::byte> Message(const Instruction& message);
  [[noreturn]] void FailNotFinite(const char* what, int number) const;

  const Model model_;
  const Dataset& dataset_;
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
