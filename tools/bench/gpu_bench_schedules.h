#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "compiler/lower/interleave.h"
#include "compiler/plan/plan.h"
#include "compiler/plan/timeline.h"
#include "runtime/gpu/gpu.h"
#include "runtime/model/model.h"
#include "tools/bench/gpu_bench.h"

namespace contraflow {

/// Schedules to run on virtual ranks.
struct ScheduleSizes {
  struct Shape {
    int ranks, microbatches, expert_parallel;
  };
  Model model;
  std::vector<Shape> shapes;  ///< 1f1b, zb-1p and dualpipe each
  Shape overlap;              ///< for F&B with its all-to-all overlapped, and without
  int steps;                  ///< measured, behind the first

  static ScheduleSizes Full();
  static ScheduleSizes Tiny();
};

/// How far the all-to-all of one rank hides behind compute between the first and the last start of
/// a backward's first component, where the pipeline is full.
struct Hiding {
  Time window = 0, compute = 0, all_to_all = 0, exposed = 0;
};
Hiding HidingOf(const Program& program, const std::vector<Span>& spans);

/// The plan of a schedule on virtual ranks, with a layer of the model in each stage.
Plan BenchPlan(const std::string& schedule, const ScheduleSizes::Shape& shape, const Model& model,
               CostModel costs, Overlap overlap);
/// Costs of its components before any was measured: all take the same time.
CostModel AlikeCosts();

/// Runs every schedule twice, first to measure what its instructions cost, then as compiled with
/// those costs; adds efficiency (the share of the ranks' time that they compute) measured against
/// simulated, and the same of the makespan. A new GPU for each run. Returns what went wrong, one
/// line each: a run that failed must not take the others' figures with it.
std::vector<std::string> MeasureSchedules(const std::function<std::unique_ptr<Gpu>()>& new_gpu,
                                          const ScheduleSizes& sizes,
                                          const std::function<void(Figure)>& add);

}  // namespace contraflow
