#pragma once

#include <map>
#include <string>
#include <vector>

#include "compiler/plan/cost.h"
#include "compiler/plan/plan.h"
#include "compiler/plan/timeline.h"

namespace contraflow {

/// The mean of the middle half: like a mean it adds up, like a median it does not mind outliers.
/// 0 of none.
Time MiddleMean(std::vector<Time> times);
/// Value that `part` (0 to 1, less than 1) of the times are below; 0 of none.
Time Quantile(std::vector<Time> times, double part);

/// Costs of the instructions of a plan, from measured timelines: a plan's own figures for the
/// machine it runs on. Components are told apart by layer, chunks, REDUCE and STEP by stage.
/// Compute counts by the mean of its middle half; exchanges and REDUCE, which also wait for others,
/// by the lower quartile. Messages count only if they found their receiver waiting: from the end of
/// what made them to the start of what needed them.
class Calibration {
 public:
  explicit Calibration(const Plan& plan) : plan_(plan) {}

  /// Adds a step.
  void Add(const Timeline& timeline);
  /// Forgets all steps.
  void Clear() {
    times_.clear();
    delays_ = {};
  }

  /// Costs of the plan for a simulation. Parts that were not measured apart get a share of the
  /// whole. In microseconds, with the plan's memory costs. At least one step was added.
  CostModel CostsOfPlan() const;
  /// Throws Error, with a schedule that has it, if something that a cost file needs does not occur
  /// in the plan.
  static void CheckPlan(const Plan& plan);
  /// Costs to compile plans with, of such a plan. `source` says where they are from.
  CostModel CostsForCompiler(const std::string& source) const;
  /// STEP or REDUCE of a stage; 0 if the plan has none.
  Time OfStage(Op op, int stage) const { return Of(op, stage, -1); }
  /// A message of this many bytes: how long it fills its link, by the shortest that were copied,
  /// and what else passes until who waits for it goes on.
  CommCost Messages(int64_t bytes) const;

 private:
  struct Key {
    Op op;
    int stage, layer;  // -1: all alike

    auto operator<=>(const Key&) const = default;
  };

  /// However long a training is, it remembers this many times of each instruction.
  static constexpr size_t kMostTimes = 4096;
  struct Times {
    std::vector<Time> newest;
    size_t seen = 0;
  };

  Key KeyOf(const Instruction& instruction) const;
  static void Remember(Time time, Times* times);
  void AddMessages(const Timeline& timeline);
  Time Shortest() const;
  Time Delay() const;
  /// 0 if it did not occur.
  Time Of(Op op, int stage, int layer) const;
  StageCost ChunkCosts(int stage) const;
  MoeCost ComponentCosts(int layers) const;
  Time LargestOf(Op op) const;

  const Plan& plan_;
  std::map<Key, Times> times_;
  Times delays_;  // of messages
};

}  // namespace contraflow
