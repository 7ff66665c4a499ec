#include <algorithm>
#include <exception>

#include "compiler/simulate/simulate.h"
#include "runtime/gpu/run.h"
#include "runtime/model/dataset.h"
#include "runtime/model/gpu_views.h"
#include "schedules/compile.h"
#include "tools/bench/gpu_bench.h"
#include "tools/contraflow-run/calibration.h"
#include "tools/contraflow-run/times.h"

namespace contraflow {
namespace {

constexpr int kLayersOfStage = 1;

/// A run's own figures, and its costs for the next.
struct Measured {
  RunTimes times, simulated;
  CostModel costs;
  Plan plan;
  Timeline last;
};

Measured Run(const std::function<std::unique_ptr<Gpu>()>& new_gpu, Plan plan,
             const ScheduleSizes& sizes) {
  Measured measured;
  measured.plan = std::move(plan);
  const Model model = FitModel(sizes.model, measured.plan.stages, kLayersOfStage,
                               measured.plan.expert_parallel, Hardware::kGpus);
  const Dataset dataset = ReadDataset("", model);
  const std::unique_ptr<Gpu> gpu = new_gpu();
  GpuRun run(measured.plan, model, dataset, 1, *gpu);
  run.Step(1);
  Calibration calibration(measured.plan);
  for (int step = 2; step <= sizes.steps + 1; ++step) {
    StepResult result = run.Step(step);
    AddTimes(measured.plan, result.timeline, &measured.times);
    calibration.Add(result.timeline);
    measured.last = std::move(result.timeline);
  }
  measured.simulated = SimulatedTimes(measured.plan, calibration.CostsOfPlan());
  measured.costs = calibration.CostsForCompiler("measured on virtual ranks");
  return measured;
}

std::string NameOf(const std::string& schedule, const ScheduleSizes::Shape& shape) {
  std::string name =
      schedule + " P=" + std::to_string(shape.ranks) + " M=" + std::to_string(shape.microbatches);
  if (shape.expert_parallel > 1) name += " EP=" + std::to_string(shape.expert_parallel);
  return name;
}

void AddSchedule(const std::function<std::unique_ptr<Gpu>()>& new_gpu, const std::string& schedule,
                 const ScheduleSizes::Shape& shape, const ScheduleSizes& sizes,
                 const std::function<void(Figure)>& add) {
  const auto plan = [&](const CostModel& costs) {
    return BenchPlan(schedule, shape, sizes.model, costs, Overlap::kAll);
  };
  const CostModel costs = Run(new_gpu, plan(AlikeCosts()), sizes).costs;
  const Measured run = Run(new_gpu, plan(costs), sizes);
  const std::string name = NameOf(schedule, shape);
  add({name + ": efficiency", 100 * (1 - run.times.bubble_ratio()), "%",
       100 * (1 - run.simulated.bubble_ratio()) - 2});
  const auto makespan = [&](const RunTimes& times) {
    return static_cast<double>(times.makespan(run.plan));
  };
  add({name + ": makespan, measured / simulated", makespan(run.times) / makespan(run.simulated), "",
       1.03, true});
}

void AddOverlap(const std::function<std::unique_ptr<Gpu>()>& new_gpu, const ScheduleSizes& sizes,
                const std::function<void(Figure)>& add) {
  const auto plan = [&](const std::string& schedule, const CostModel& costs, Overlap overlap) {
    return BenchPlan(schedule, sizes.overlap, sizes.model, costs, overlap);
  };
  const CostModel costs = Run(new_gpu, plan("dualpipe", AlikeCosts(), Overlap::kAll), sizes).costs;
  // 1F1B as published overlaps nothing.
  for (const bool on : {false, true}) {
    const std::string schedule = on ? "dualpipe" : "1f1b";
    const Measured run =
        Run(new_gpu, plan(schedule, costs, on ? Overlap::kAll : Overlap::kPublished), sizes);
    Hiding sum;
    for (size_t r = 0; r < run.last.ranks.size(); ++r) {
      const Hiding rank = HidingOf(run.plan.programs[r], run.last.ranks[r]);
      sum.window += rank.window;
      sum.compute += rank.compute;
      sum.all_to_all += rank.all_to_all;
      sum.exposed += rank.exposed;
    }
    const auto part = [](Time a, Time b) {
      return b == 0 ? 0 : 100 * static_cast<double>(a) / static_cast<double>(b);
    };
    const std::string name =
        NameOf(schedule, sizes.overlap) + (on ? ", overlapped: " : ", not overlapped: ");
    add({name + "all-to-all hidden", part(sum.all_to_all - sum.exposed, sum.all_to_all), "%",
         on ? 90.0 : 0.0});
    add({name + "compute lane busy", part(sum.compute, sum.window), "%", on ? 95.0 : 0.0});
  }
}

}  // namespace

ScheduleSizes ScheduleSizes::Full() {
  Model model;
  model.name = "bench";
  model.width = 2048;
  model.heads = 16;
  model.experts = 8;
  model.top_k = 2;
  model.expert_width = 2048;
  model.sequence = 2048;
  model.batch = 2;
  return {model, {{4, 8, 1}, {4, 16, 1}, {8, 16, 1}}, {4, 16, 2}, 5};
}

ScheduleSizes ScheduleSizes::Tiny() {
  Model model;
  model.name = "tiny bench";
  model.width = 8;
  model.heads = 1;
  model.experts = 2;
  model.top_k = 1;
  model.expert_width = 8;
  model.sequence = 4;
  model.batch = 1;
  return {model, {{2, 4, 1}}, {2, 4, 2}, 1};
}

CostModel AlikeCosts() {
  CostModel costs;
  costs.unit = Unit::kMicroseconds;
  costs.moe.emplace().layers_per_stage = kLayersOfStage;
  for (const ComponentCost& component : kComponentCosts) {
    (*costs.moe).*component.times = {TicksPerUnit(Unit::kMicroseconds)};
  }
  return costs;
}

Plan BenchPlan(const std::string& schedule, const ScheduleSizes::Shape& shape, const Model& model,
               CostModel costs, Overlap overlap) {
  Spec spec;
  spec.schedule = schedule;
  spec.ranks = shape.ranks;
  spec.microbatches = shape.microbatches;
  spec.expert_parallel = shape.expert_parallel;
  costs.stages.clear();
  DeriveChunkCosts(&costs, overlap);
  costs.memory = GpuFootprintOf(model, shape.ranks, kLayersOfStage, shape.expert_parallel);
  spec.costs = std::move(costs);
  return Compile(spec, {.level = Level::kBuffer, .overlap = overlap});
}

Hiding HidingOf(const Program& program, const std::vector<Span>& spans) {
  Hiding hiding;
  Time begin = 0, end = 0;
  bool found = false;
  for (size_t i = 0; i < program.size(); ++i) {
    if (program[i].op != Op::COMBINE_B) continue;
    begin = found ? std::min(begin, spans[i].start) : spans[i].start;
    end = found ? std::max(end, spans[i].start) : spans[i].start;
    found = true;
  }
  hiding.window = end - begin;
  // Of a lane in the window, without overlaps (a lane is in order), ascending.
  const auto lane = [&](Lane wanted) {
    std::vector<Span> busy;
    for (size_t i = 0; i < program.size(); ++i) {
      if (LaneOf(program[i].op) != wanted) continue;
      const Span span = {std::max(spans[i].start, begin), std::min(spans[i].end, end)};
      if (span.start < span.end) busy.push_back(span);
    }
    std::sort(busy.begin(), busy.end(),
              [](const Span& a, const Span& b) { return a.start < b.start; });
    return busy;
  };
  const std::vector<Span> compute = lane(Lane::kCompute), exchange = lane(Lane::kAllToAll);
  for (const Span& span : compute) hiding.compute += span.end - span.start;
  for (const Span& span : exchange) {
    Time hidden = 0;
    for (const Span& over : compute) {
      hidden += std::max<Time>(0, std::min(over.end, span.end) - std::max(over.start, span.start));
    }
    hiding.all_to_all += span.end - span.start;
    hiding.exposed += span.end - span.start - hidden;
  }
  return hiding;
}

std::vector<std::string> MeasureSchedules(const std::function<std::unique_ptr<Gpu>()>& new_gpu,
                                          const ScheduleSizes& sizes,
                                          const std::function<void(Figure)>& add) {
  std::vector<std::string> failures;
  const auto attempt = [&](const std::string& what, const auto& measure) {
    try {
      measure();
    } catch (const std::exception& error) {
      failures.push_back(what + ": " + error.what());
    }
  };
  for (const ScheduleSizes::Shape& shape : sizes.shapes) {
    for (const char* schedule : {"1f1b", "zb-1p", "dualpipe"}) {
      attempt(NameOf(schedule, shape), [&] { AddSchedule(new_gpu, schedule, shape, sizes, add); });
    }
  }
  attempt("F&B overlap", [&] { AddOverlap(new_gpu, sizes, add); });
  return failures;
}

}  // namespace contraflow
