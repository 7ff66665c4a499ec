#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compiler/files/json.h"
#include "compiler/plan/plan.h"
#include "compiler/simulate/simulate.h"

namespace contraflow {

/// Figures of a plan, with the costs it has.
struct PlanFigures {
  Unit unit = Unit::kUnit;
  bool components = false;  ///< a bubble is idle compute, below all-to-alls too
  Time makespan = 0;
  double bubble_ratio = 0;
  int activations = 0;           ///< of the rank that holds most, like the bytes
  int64_t bytes = 0, total = 0;  ///< 0 where the costs have none
  int stages = 0;
  Time work = 0;  ///< busy time of all compute lanes
};

/// Figures of a simulated plan, without its total bytes.
PlanFigures FiguresOf(const Plan& plan, Unit unit, const Simulation& run);

/// Says that the second plan computes longer or shorter since it has another number of stages, each
/// with the same costs; "" if their work is alike.
std::string UnlikeWork(const std::string& was_name, const PlanFigures& was,
                       const std::string& is_name, const PlanFigures& is);

/// Differences between two plans, line by line, as edits (FormatEdits).
struct Difference {
  struct Rank {
    int rank = 0;
    std::string instructions, slots;
  };

  bool equal = true;
  std::optional<PlanFigures> was, is;  ///< nothing of a plan that is not sound
  std::string fields = {};             ///< above the programs
  std::vector<Rank> ranks = {};        ///< those that differ
};
Difference Differ(const Plan& left, const Plan& right);

/// The figures side by side, and the edits or, with `stat`, how many there are on each rank.
std::string WriteDifference(const Difference& difference, bool stat);

/// The object of `diff --json`; with `edits` also the lines of the edits: "fields" and, of each
/// rank, "edits".
Json DifferenceToJson(const Difference& difference, bool edits = false);

}  // namespace contraflow
