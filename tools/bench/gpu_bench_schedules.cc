#include <algorithm>
#include <random>

#include "compiler/plan/error.h"
#include "compiler/simulate/simulate.h"
#include "runtime/gpu/run.h"
#include "runtime/model/dataset.h"
#include "runtime/model/gpu_views.h"
#include "schedules/compile.h"
#include "tools/bench/gpu_bench.h"
#include "tools/contraflow-run/calibration.h"

namespace contraflow {
namespace {

constexpr int kLayersOfStage = 1;
constexpr const char* kOverlap = "overlap";

using NewGpu = std::function<std::unique_ptr<Gpu>()>;
using Shape = ScheduleSizes::Shape;

/// From the first start to the last end of what a layer is made of: without the optimizer step.
Time PipelineTime(const Plan& plan, const Timeline& timeline) {
  Time begin = 0, end = 0;
  bool found = false;
  for (size_t r = 0; r < plan.programs.size(); ++r) {
    for (size_t i = 0; i < plan.programs[r].size(); ++i) {
      if (OperandsOf(plan.programs[r][i].op) != Operands::kLayer) continue;
      const Span& span = timeline.ranks[r][i];
      begin = found ? std::min(begin, span.start) : span.start;
      end = found ? std::max(end, span.end) : span.end;
      found = true;
    }
  }
  return end - begin;
}

/// A run's own figures, and its costs for others.
struct Measured {
  Plan plan;
  CostModel plan_costs, compiler_costs;
  std::vector<Time> times;  ///< PipelineTime of the steps, ascending
  Timeline last;

  double time() const { return static_cast<double>(times[times.size() / 2]); }
};

/// The text need not be on the machine.
Dataset RandomBytes() {
  Dataset dataset;
  dataset.name = "random bytes";
  std::minstd_rand random;
  for (int i = 0; i < 1 << 16; ++i) dataset.bytes.push_back(static_cast<char>(random() >> 16));
  return dataset;
}

Measured Run(const NewGpu& new_gpu, Plan plan, const ScheduleSizes& sizes, bool graph = true) {
  Measured measured;
  measured.plan = std::move(plan);
  const Model model =
      SettleModel(sizes.model, measured.plan.stages, kLayersOfStage, measured.plan.expert_parallel);
  const Dataset dataset = RandomBytes();
  const std::unique_ptr<Gpu> gpu = new_gpu();
  GpuRun run(measured.plan, model, dataset, 1, *gpu, {{.graph = graph, .stamps = 1}});
  run.Step(1);
  Calibration calibration(measured.plan);
  for (int step = 2; step <= sizes.steps + 1; ++step) {
    measured.last = run.Step(step).timeline;
    measured.times.push_back(PipelineTime(measured.plan, measured.last));
    calibration.Add(measured.last);
  }
  std::sort(measured.times.begin(), measured.times.end());
  measured.plan_costs = calibration.CostsOfPlan();
  measured.compiler_costs = calibration.CostsForCompiler("measured on virtual ranks");
  return measured;
}

/// How much longer a step takes without stamps where the host waits for it before it gives the next
/// one to the GPU.
double WaitedOverAhead(const NewGpu& new_gpu, const Plan& plan, const ScheduleSizes& sizes) {
  const Model model = SettleModel(sizes.model, plan.stages, kLayersOfStage, plan.expert_parallel);
  const Dataset dataset = RandomBytes();
  const std::unique_ptr<Gpu> gpu = new_gpu();
  GpuRun run(plan, model, dataset, 1, *gpu, {{.graph = true, .stamps = 0}});
  int step = 0;
  run.Step(++step);
  const auto median = [&](bool ahead) {
    std::vector<Time> times;
    while (times.size() < static_cast<size_t>(sizes.steps)) {
      ++step;
      if (ahead && times.size() + 1 < static_cast<size_t>(sizes.steps)) run.BeginAhead(step + 1);
      times.push_back(run.Step(step).duration);
    }
    std::sort(times.begin(), times.end());
    return static_cast<double>(times[times.size() / 2]);
  };
  const double waited = median(false);
  return waited / median(true);
}

/// Hardly more than one partition has work at a time: there is one micro-batch, and a stage's
/// results leave when all of it is done.
CostModel CostsAlone(const NewGpu& new_gpu, const Shape& shape, const ScheduleSizes& sizes) {
  const Shape alone = {shape.ranks, 1, shape.expert_parallel};
  return Run(new_gpu, BenchPlan("1f1b", alone, sizes.model, AlikeCosts(), Overlap::kPublished),
             sizes)
      .compiler_costs;
}

ComputeTimes ChunkOf(const CostModel& costs) {
  ComputeTimes chunk;
  for (int layer = 0; layer < costs.moe->layers_per_stage; ++layer) {
    const auto time = [&](Op a, Op b) {
      return static_cast<double>(costs.moe->Of(a, layer) + costs.moe->Of(b, layer));
    };
    chunk.f += time(Op::ATTN_F, Op::MLP_F);
    chunk.b += time(Op::ATTN_B, Op::MLP_B);
    chunk.w += time(Op::ATTN_W, Op::MLP_W);
  }
  return chunk;
}

double Sum(const ComputeTimes& chunk) { return chunk.f + chunk.b + chunk.w; }

std::string TitleOf(const std::string& schedule, const Shape& shape) {
  std::string name =
      schedule + " P=" + std::to_string(shape.ranks) + " M=" + std::to_string(shape.microbatches);
  if (shape.expert_parallel > 1) name += " EP=" + std::to_string(shape.expert_parallel);
  return name;
}

void MeasureOne(const NewGpu& new_gpu, const ScheduleSizes::Run& what, const ScheduleSizes& sizes,
                const std::function<void(Figure)>& add) {
  const auto& [schedule, shape] = what;
  const std::string title = TitleOf(schedule, shape) + ": ";
  const auto plan = [&, &schedule = schedule, &shape = shape](const CostModel& costs) {
    return BenchPlan(schedule, shape, sizes.model, costs, Overlap::kAll);
  };
  const CostModel alone = CostsAlone(new_gpu, shape, sizes);
  const Measured busy = Run(new_gpu, plan(alone), sizes);
  const ComputeTimes chunk = ChunkOf(busy.compiler_costs);
  add({title + "kernels, all partitions busy / alone", Sum(chunk) / Sum(ChunkOf(alone)), "", 1.03,
       true});

  const Measured run = Run(new_gpu, plan(busy.compiler_costs), sizes);
  const auto simulated = [&](const CostModel& costs) {
    return static_cast<double>(PipelineTime(run.plan, Simulate(run.plan, costs).timeline));
  };
  const double with_busy = simulated(busy.plan_costs);
  const auto efficiency = [&, &shape = shape](double time) {
    return 100 * shape.microbatches * Sum(chunk) / time;
  };
  add({title + "efficiency", efficiency(run.time()), "%",
       100 * PublishedEfficiency(schedule, shape, chunk) - 2});
  add({title + "efficiency, simulated", efficiency(with_busy), "%"});
  add({title + "makespan, measured / simulated with busy kernels", run.time() / with_busy, "", 1.03,
       true});
  add({title + "makespan, measured / simulated with kernels alone", run.time() / simulated(alone),
       ""});
  add({title + "makespan", run.time() * 1e-6, "ms"});
  add({title + "spread of repeats",
       100 * static_cast<double>(run.times.back() - run.times.front()) / run.time(), "%"});
  add({title + "makespan, in streams / as a graph",
       Run(new_gpu, run.plan, sizes, false).time() / run.time(), ""});
  add({title + "step, waited for / the next one begun ahead",
       WaitedOverAhead(new_gpu, run.plan, sizes), ""});
}

/// Each expert gets its even share of the rows, as in the trace from which the targets are: routers
/// that have learnt nothing send most rows to few experts, and exchanges would be timed that wait.
void MeasureOverlap(const NewGpu& new_gpu, ScheduleSizes sizes,
                    const std::function<void(Figure)>& add) {
  sizes.model.capacity_factor = 1;
  const auto plan = [&](const std::string& schedule, const CostModel& costs, Overlap overlap) {
    return BenchPlan(schedule, sizes.overlap, sizes.model, costs, overlap);
  };
  const CostModel costs =
      Run(new_gpu, plan("dualpipe", AlikeCosts(), Overlap::kAll), sizes).compiler_costs;
  // 1F1B as published overlaps nothing.
  double before = 0;
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
    const std::string title =
        TitleOf(schedule, sizes.overlap) + (on ? ", overlapped: " : ", not overlapped: ");
    add({title + "all-to-all hidden", part(sum.all_to_all - sum.exposed, sum.all_to_all), "%",
         on ? 90.0 : 0.0});
    add({title + "compute lane busy", part(sum.compute, sum.window), "%", on ? 95.0 : 0.0});
    add({title + "makespan", run.time() * 1e-6, "ms"});
    if (on) add({title + "makespan, not overlapped / overlapped", before / run.time(), ""});
    before = run.time();
  }
}

}  // namespace

ScheduleSizes ScheduleSizes::Full() {
  Model model = {.name = "bench",
                 .width = 2048,
                 .heads = 16,
                 .experts = 8,
                 .top_k = 2,
                 .expert_width = 2048,
                 .sequence = 2048,
                 .batch = 2};
  std::vector<Run> runs;
  for (const Shape& shape : {Shape{4, 16, 1}, Shape{8, 16, 1}, Shape{4, 8, 1}}) {
    for (const char* schedule : {"dualpipe", "zb-1p", "1f1b"}) runs.push_back({schedule, shape});
  }
  return {model, std::move(runs), {4, 16, 2}, 5};
}

ScheduleSizes ScheduleSizes::Tiny() {
  Model model = {.name = "tiny bench",
                 .width = 8,
                 .heads = 1,
                 .experts = 2,
                 .top_k = 1,
                 .expert_width = 8,
                 .sequence = 4,
                 .batch = 1};
  return {model, {{"dualpipe", {2, 4, 1}}}, {2, 4, 2}, 1};
}

std::vector<std::string> ScheduleSizes::Names() const {
  std::vector<std::string> names;
  for (const auto& [schedule, shape] : runs) {
    names.push_back(schedule + "-" + std::to_string(shape.ranks) + "-" +
                    std::to_string(shape.microbatches));
    if (names.size() == 1) names.push_back(kOverlap);
  }
  return names;
}

double PublishedEfficiency(const std::string& schedule, const Shape& shape,
                           const ComputeTimes& chunk) {
  const auto& [f, b, w] = chunk;
  const double others = shape.ranks - 1, work = shape.microbatches * Sum(chunk);
  const int pairs = shape.ranks / 2;
  const double bubble = schedule == "dualpipe" ? (pairs - 1) * (f + 2 * b - w)
                        : schedule == "zb-1p"  ? others * (f + b - w)
                                               : others * Sum(chunk);
  return work / (work + bubble);
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
  // Spans of a lane in the window, without overlaps (a lane is in order), ascending.
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

void MeasureSchedule(const std::string& name, const NewGpu& new_gpu, const ScheduleSizes& sizes,
                     const std::function<void(Figure)>& add) {
  if (name == kOverlap) return MeasureOverlap(new_gpu, sizes, add);
  const std::vector<std::string> names = sizes.Names();
  auto at = static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
  if (at == names.size()) throw Error("there is no schedule \"" + name + "\" to measure");
  if (at > 0) --at;  // after the overlap
  MeasureOne(new_gpu, sizes.runs[at], sizes, add);
}

}  // namespace contraflow
