#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/bound/bound.h"
#include "compiler/plan/plan.h"
#include "compiler/simulate/memory.h"
#include "compiler/simulate/simulate.h"

namespace contraflow {

/// A schedule's published bubble next to the simulated one.
struct FormulaFigures {
  std::string_view text;    ///< "(PP/2-1)(F&B+B-3W)"
  Time published = 0;       ///< its value for these costs
  std::vector<Time> exact;  ///< the true closed form of each rank; empty where it is not known
  bool holds = false;       ///< every rank's simulated bubble equals `published`
};

/// Prediction of a plan's run: times in ticks of `unit` (TicksPerUnit), memory in bytes.
struct Report {
  std::string schedule;
  Unit unit = Unit::kUnit;
  Level level = Level::kComm;
  bool components = false;  ///< the all-to-all lanes are busy, too
  Partition partition;      ///< layers of each stage, where stages were made of layers
  Simulation simulation;
  std::vector<MemoryFigures> memory;  ///< of each rank; empty where the costs have no figures
  Bound bound;                        ///< on the makespan, for this partition
  /// For stages that were made of layers together with a searched order: on the makespan of any
  /// partition.
  std::optional<Time> any_partition;
  /// There are replicas, and the makespan has neither the sum of their gradients nor the optimizer.
  bool without_updates = false;
  /// Absent where none is published, or the plan or its costs are not what it is published for
  /// (another shape than the schedule makes, stages or micro-batches that differ, chunks that are
  /// taken apart into components).
  std::optional<FormulaFigures> formula;

  /// CriticalPath; empty where only the figures are kept.
  std::vector<InstructionRef> critical_path;

  /// (makespan - bound) / bound; 0 where both are 0.
  double gap() const;
  double gap_to_any_partition() const;  ///< the same over `any_partition`, which must be there
  int peak_activations() const;         ///< of the rank that has most
  int64_t peak_bytes() const;
  Time largest_bubble() const;
  Time largest_exposed() const;
};

/// Activations of a run's fullest rank: bytes or, where the costs give none, those of a rank's
/// whole share of the model.
double ActivationsHeld(const Plan& plan, const CostModel& costs, const Simulation& run);

/// Like ActivationsHeld, as a multiple of what 1F1B's fullest rank holds with the same stages,
/// neighbours merged to one a rank.
double MemoryOf1F1B(const Plan& plan, const CostModel& costs, const Simulation& run);

/// Report::without_updates
bool LeavesOutUpdates(const Plan& plan, const CostModel& costs);

/// Simulates a sound plan (Verify), proves a lower bound on its makespan and looks up the published
/// formula. The bound is that of every schedule with this placement which holds at
/// most `memory_limit` on a rank (ProveBound); by default what a searched plan was made for. Throws
/// Error if the costs are not those of a plan of its shape (CheckCosts).
Report MakeReport(const Plan& plan, const CostModel& costs,
                  std::optional<int64_t> memory_limit = std::nullopt, Keep keep = Keep::kTimeline);

}  // namespace contraflow
