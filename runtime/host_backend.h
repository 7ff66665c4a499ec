#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "compiler/plan.h"
#include "runtime/backend.h"
#include "runtime/stage.h"
#include "runtime/text.h"
#include "runtime/transport.h"

namespace contraflow {

/// Runs the instructions of one rank of one replica on the host's processor.
class HostBackend : public Backend {
 public:
  /// Makes a copy of every stage that the plan's routes put on this rank. `model` is fitted to the
  /// plan; the text must outlive the backend.
  HostBackend(const Plan& plan, const Model& model, const Text& text, uint64_t seed, int replica,
              int rank);

  void BeginStep(int step) override;
  void Compute(const Instruction& instruction) override;
  std::span<std::byte> Outgoing(const Instruction& send) override;
  void Sent(const Instruction& send) override;
  std::span<std::byte> Incoming(const Instruction& receive) override;
  std::span<float> Gradients(int stage) override;
  void OptimizerStep(int stage) override;
  void EndStep() override;

  /// This rank's copy of a stage. Throws Error if it holds none.
  Stage& StageAt(int stage);
  /// Losses of the micro-batches whose last stage ran here in this step.
  const std::map<int, float>& losses() const { return losses_; }

 private:
  struct Pending {
    StashPtr stash;
    bool backward = false;  // B has run, W has not
  };

  void Forward(int stage, int microbatch);
  void BackwardInput(int stage, int microbatch);
  void BackwardWeight(int stage, int microbatch);
  void Put(const Tag& tag, std::vector<float> value);
  std::vector<float> Take(const Tag& tag);
  bool IsLast(int stage) const { return stage == stages_ - 1; }

  const Model model_;
  const Text& text_;
  const uint64_t seed_;
  const int replica_, stages_;
  const float loss_scale_;
  std::map<int, Stage> copies_;                     // by stage
  std::map<Tag, std::vector<float>> values_;        // between stages, made and not used yet
  std::map<Tag, std::vector<float>> leaving_;       // being sent
  std::map<std::pair<int, int>, Pending> stashes_;  // by stage and micro-batch
  std::map<int, float> losses_;
  int step_ = 0;
};

}  // namespace contraflow
