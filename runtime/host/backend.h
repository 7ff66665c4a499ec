#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "compiler/plan/instruction.h"
#include "compiler/plan/plan.h"
#include "runtime/core/devices.h"
#include "runtime/core/executor.h"
#include "runtime/core/part_times.h"
#include "runtime/core/step.h"
#include "runtime/core/transport.h"
#include "runtime/core/value_places.h"
#include "runtime/core/walk.h"
#include "runtime/host/arenas.h"
#include "runtime/host/host_copies.h"
#include "runtime/host/stage.h"
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

  /// Moves the rows of an all-to-all component (EndsOf). DISPATCH_F sets `first` and `received`.
  void Run(const Instruction& instruction, const LayerViews<float>& v);

 private:
  void Count(const Instruction& instruction, const LayerViews<float>& v);
  void Move(const Instruction& instruction, const LayerViews<float>& v, bool to_experts,
            float* tokens, float* experts);
  void Swap(const Instruction& instruction);

  const LayerShape shape_;
  const size_t members_, owned_;  // experts of each member
  Transport& transport_;
  std::vector<int32_t> counts_;  // of the rows sent, by expert
  std::vector<std::span<const std::byte>> send_;
  std::vector<std::span<std::byte>> receive_;
};

bool AllFinite(std::span<const float> values);

/// Takes what the matrix products of this many ranks of this process work in. Throws Error where
/// there is not enough.
void ReserveForRanks(size_t ranks);

/// Runs the instructions of one device on the host's processor, with the values of a step in
/// arenas; once a first step has been done nothing is allocated any more.
class HostBackend : public Backend, public StageHolder {
 public:
  /// Makes a copy of every stage that the plan's routes put on this rank, with this member's share
  /// of the experts. Plan, dataset and transport must outlive the backend. With `fill` memory
  /// without a value is full of NaN. Throws Error if the model does not fit the plan.
  HostBackend(const Plan& plan, const Model& model, const Dataset& dataset, uint64_t seed,
              Device device, Transport& transport, bool fill = kFillUnused);

  void BeginStep(int step) override;
  void Compute(const Instruction& instruction) override;
  std::span<std::byte> Outgoing(const Instruction& send) override { return Message(send); }
  void Sent(const Instruction& send) override { arenas_.Leave(places_.Of(send)); }
  std::span<std::byte> Incoming(const Instruction& receive) override { return Message(receive); }
  void StartCopy(const Instruction& copy, size_t offloads) override {
    host_copies_.Start(copy, offloads);
  }
  void AwaitCopies(Op op, size_t count) override { host_copies_.Await(op, count); }
  CopyTimes TimesOfCopy(Op op, size_t number) const override {
    return host_copies_.TimesOf(op, number);
  }
  std::span<float> Gradients(int stage) override;
  std::span<float> ExpertGradients(int stage) override;
  /// Like Compute of a loss, throws Error if something is not finite; nothing is updated then.
  /// If the model has a limit to the norm of all gradients it only takes notes for ClippedStep.
  void OptimizerStep(int stage) override;

  /// After a step of all devices: clips the gradients, whose norm is given, and updates every
  /// stage that has come to its STEP.
  void ClippedStep(double norm);

  Stage& StageAt(int stage) override;
  void ReadText(const Dataset* text, int batch) override;
  void Put(int) override {}  // StageAt is the stage itself.
  /// Results of a step that has ended; `squares` are of the stages that have come to their STEP.
  DeviceStep Results(std::vector<Span> spans) const {
    return {losses_, dropped_, squares_, std::move(spans)};
  }
  const std::array<int64_t, kArenaCount>& arena_bytes() const override {
    return places_.arena_bytes();
  }
  PartTimes* MeasureParts() override { return parts_ ? &*parts_ : &parts_.emplace(); }

 private:
  void Run(const Instruction& component);
  void Do(const Instruction& component, Stage* stage, const LayerViews<float>& v);
  const MicroBatch& Draw(const Instruction& component);
  std::span<std::byte> Message(const Instruction& message);
  void EnterValues(const HostArenas::Uses& uses);
  [[noreturn]] void FailNotFinite(const std::string& what, int number) const;

  const Model model_;
  const Dataset& dataset_;
  const Dataset* text_ = nullptr;  // of a validation
  const uint64_t seed_;
  const int device_number_;  // over replicas and members
  const int stages_;
  const LayerShape shape_;
  const float loss_scale_;
  const ComponentWalk walk_;
  const ValueBytes bytes_;
  const ValuePlaces places_;
  HostArenas arenas_;
  HostCopies host_copies_;
  Exchange exchange_;
  std::map<int, std::unique_ptr<Stage>> copies_;  // by stage
  std::vector<std::pair<int, float>> losses_;     // of this step
  MicroBatch micro_;                              // the one drawn last:
  std::pair<int, int> drawn_;                     // its step, or batch, and number
  int batch_ = 0;
  std::map<std::string, double> squares_;
  std::optional<PartTimes> parts_;
  std::vector<Stage*> stepping_;
  int64_t dropped_ = 0;
  int step_ = 0;
};

}  // namespace contraflow
