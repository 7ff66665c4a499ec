#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/plan.h"
#include "runtime/backend.h"
#include "runtime/launch.h"
#include "runtime/model.h"
#include "runtime/text.h"
#include "runtime/thread_transport.h"

namespace contraflow {

/// 1F1B on two ranks, two micro-batches, with `data_parallel` replicas.
Plan TwoRankPlan(int data_parallel = 1);

/// One stage a rank, at most; everything small.
Model SmallModel(int stages);

/// A text without a period that a sequence could fall into.
Text SmallText();

/// Keeps a log of what it is asked to do and hands symbols on: each value is a number that tells
/// which stage and micro-batch made it. A value that is used must be the right one.
class FakeBackend : public Backend {
 public:
  explicit FakeBackend(const Plan& plan) : plan_(plan) {}

  void BeginStep(int step) override;
  void Compute(const Instruction& instruction) override;
  std::span<std::byte> Outgoing(const Instruction& send) override;
  void Sent(const Instruction& send) override;
  std::span<std::byte> Incoming(const Instruction& receive) override;
  std::span<float> Gradients(int stage) override;
  void OptimizerStep(int stage) override;
  void EndStep() override;

  std::vector<std::string> log;
  std::map<int, std::vector<float>> gradients;  // by stage
  size_t values() const { return values_.size() + leaving_.size(); }

 private:
  void Take(const Tag& tag);

  const Plan& plan_;
  std::map<Tag, float> values_, leaving_;
};

/// The devices of a plan over fake backends.
struct FakeRun {
  FakeRun(const Plan& plan, ThreadNetwork::Options options);

  /// One step, in threads of its own.
  void Step(const Plan& plan, int step = 1);

  std::vector<FakeBackend> backends;  // replica by replica
  ThreadNetwork network;
  std::vector<Worker> workers;
};

}  // namespace contraflow
