#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/plan/plan.h"
#include "runtime/core/executor.h"
#include "runtime/launch/threaded_run.h"
#include "runtime/model/dataset.h"
#include "runtime/model/model.h"
#include "runtime/transport/thread_transport.h"

namespace contraflow {

/// 1F1B on two ranks, two micro-batches, with `data_parallel` replicas.
Plan TwoRankPlan(int data_parallel = 1);

/// One stage a rank, at most; everything small.
Model SmallModel(int stages);

/// Model for which PlanFor makes plans: small, with as many layers as the plan has.
Model GroupModel(float capacity_factor = 0);

/// A plan of stages with 1 to 3 MoE layers each, drawn by `seed`.
Plan UnlikePlanFor(const Model& model, std::string_view schedule, int ranks, int microbatches,
                   Level level, uint64_t seed);

/// A plan for expert groups of this many members, with one or two layers a stage: the costs of
/// their components are drawn by `seed`, their memory is that of the model.
Plan PlanFor(const Model& model, std::string_view schedule, int ranks, int microbatches,
             int members, Level level, uint64_t seed, int data_parallel = 1);

/// A text without a period that a sequence could fall into.
Dataset SmallDataset();

/// Difference of a plan's training from a run without a pipeline.
struct BesideOptions {
  bool strict = true;  ///< sends wait for their receives
  int steps = 2;
  bool fill = kFillUnused;
  const Plan* like =
      nullptr;  ///< plan that the run without a pipeline follows; null: the plan itself
  std::function<void(StepResult&, ThreadedRun&)> spoil = {};  ///< after every step
};
struct TrainingOutcome {
  std::string difference;  ///< the first one, or why the training failed; "" if neither
  int64_t dropped = 0;     ///< tokens, up to there
};
TrainingOutcome TrainBesideReference(const Plan& plan, const Model& model,
                                     const BesideOptions& options = {});

/// Keeps a log of what it is asked to do and hands symbols on: each value is a number that tells
/// which stage and micro-batch made it. A value that is used must be the right one. All-to-all
/// components really exchange, and check what they get.
class FakeBackend : public Backend {
 public:
  FakeBackend(const Plan& plan, Device device, Transport* the_transport)
      : transport(the_transport), plan_(plan), device_(device) {}

  void BeginStep(int step) override;
  void Compute(const Instruction& instruction) override;
  std::span<std::byte> Outgoing(const Instruction& send) override;
  void Sent(const Instruction& send) override;
  std::span<std::byte> Incoming(const Instruction& receive) override;
  std::span<float> Gradients(int stage) override;
  std::span<float> ExpertGradients(int stage) override;
  void OptimizerStep(int stage) override;

  Transport* transport;  // for all-to-all components
  std::vector<std::string> log;
  std::map<int, std::vector<float>> gradients, experts;  // by stage
  size_t values() const { return values_.size() + leaving_.size(); }

 private:
  void Take(const Tag& tag);
  void Forward(int stage, int microbatch, bool begins, bool ends);
  void Backward(int stage, int microbatch, bool begins, bool ends);
  void Exchange(const Instruction& instruction);

  const Plan& plan_;
  const Device device_;
  std::map<Tag, float> values_, leaving_;
};

/// The devices of a plan over fake backends.
struct FakeRun {
  FakeRun(const Plan& plan, ThreadNetwork::Options options);

  /// One step, in threads of its own.
  void Step(const Plan& plan, int step = 1);

  ThreadNetwork network;
  std::vector<FakeBackend> backends;  // replica by replica
  std::vector<Worker> workers;
};

}  // namespace contraflow
