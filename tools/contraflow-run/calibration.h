#pragma once

#include <map>
#include <string>
#include <vector>

#include "compiler/plan/cost.h"
#include "compiler/plan/plan.h"
#include "compiler/plan/timeline.h"

namespace contraflow {

/// What the instructions of a plan cost, from measured timelines: a plan's own figures for the
/// machine it runs on. Components are told apart by layer, chunks, REDUCE and STEP by stage. Of
/// what computes the median counts; of messages, exchanges and REDUCE, which also wait for others,
/// the lower quartile.
class Calibration {
 public:
  explicit Calibration(const Plan& plan) : plan_(plan) {}

  /// Adds a step.
  void Add(const Timeline& timeline);
  /// Forgets all steps.
  void Clear() { times_.clear(); }

  /// Costs that fit the plan, to simulate it with: what did not occur apart is a share of what did.
  /// In microseconds, with the plan's memory costs. At least one step was added.
  CostModel CostsOfPlan() const;
  /// Throws Error, with a schedule that has it, if something that a cost file needs does not occur
  /// in the plan.
  static void CheckPlan(const Plan& plan);
  /// Costs to compile plans with, of such a plan. `source` says where they are from.
  CostModel CostsForCompiler(const std::string& source) const;

 private:
  struct Key {
    Op op;
    int stage, layer;  // -1: all alike

    auto operator<=>(const Key&) const = default;
  };

  Key KeyOf(const Instruction& instruction) const;
  /// 0 if it did not occur.
  Time Of(Op op, int stage, int layer) const;
  StageCost ChunkCosts(int stage) const;
  MoeCost ComponentCosts() const;
  Time LargestOf(Op op) const;

  const Plan& plan_;
  /// However long a training is, it remembers so many times of each instruction.
  static constexpr size_t kMostTimes = 4096;
  struct Times {
    std::vector<Time> newest;
    size_t seen = 0;
  };
  std::map<Key, Times> times_;
};

}  // namespace contraflow
