#include "tools/planner/row_compiler.h"

#include <algorithm>
#include <utility>

#include "compiler/plan/error.h"
#include "compiler/simulate/simulate.h"
#include "schedules/compile.h"
#include "schedules/published/rows.h"
#include "schedules/registry.h"
#include "tools/cli/compile_flags.h"
#include "tools/interop/launch.h"

namespace contraflow {
namespace {

/// Activations up to which a searched schedule may gain by recompute, as a multiple of 1F1B's.
constexpr double kHeldBySearched = 1.5;
/// Share of the work after which a compilation ends that does not fit.
constexpr double kRefused = 0.25;

/// Approximate processor time of a compilation without its search, for each layer with components,
/// each layer without (twice with recompute) and each cell, in nanoseconds.
struct CompileWork {
  int64_t moe, dense, cell;
};
constexpr CompileWork kOneStage = {3'000'000, 600'000, 12'000};      // a stage a rank
constexpr CompileWork kMoreStages = {6'000'000, 6'000'000, 20'000};  // several
constexpr CompileWork kTuned = {6'000'000, 6'000'000, 30'000};   // partitions are tried on orders
constexpr CompileWork kSearched = {1'000'000, 200'000, 30'000};  // auto

/// Other stages per rank to try, if a framework has few schedules.
constexpr int kDepths[] = {3, 4, 6, 8};

int64_t CellsOf(const Configuration& configuration) {
  return int64_t{configuration.pp} * configuration.microbatches;
}

const CompileWork& CompileWorkOf(std::string_view schedule) {
  if (schedule == kAuto.name) return kSearched;
  if (schedule == kZbV.name) return kTuned;
  const bool one = schedule == kGpipe.name || schedule == kOneFOneB.name || schedule == kZb1p.name;
  return one ? kOneStage : kMoreStages;
}

/// Processor time of a search that took this share of the row's budget.
int64_t SearchTime(double share, const PlannerRow& row) {
  return static_cast<int64_t>(share * static_cast<double>(row.budget));
}

}  // namespace

bool HidesInPairs(std::string_view schedule) {
  return schedule == kCombined.name || schedule == kDualPipe.name || schedule == kDualPipeV.name;
}

CompileFlags CompileFlagsOf(const PlannerRow& row, const CostModel& costs) {
  const Configuration& configuration = row.configuration;
  CompileFlags flags;
  flags.schedule = ScheduleName(row.schedule);
  flags.ranks = configuration.pp;
  flags.chunks = row.chunks;
  if (!row.target.empty()) flags.target = row.target;
  flags.microbatches = configuration.microbatches;
  flags.data_parallel = configuration.replicas();
  flags.costs.read = costs;
  if (!row.overlap.empty()) flags.costs.overlap = row.overlap;
  flags.recompute = row.recompute;
  if (configuration.zero > 0) flags.device_memory.zero = configuration.zero;
  if (row.schedule == "auto") flags.search.budget = std::to_string(row.budget / 1'000'000) + "ms";
  return flags;
}

bool RowCompiler::searches() const {
  return std::ranges::count(request_.schedules, kAuto.name) > 0;
}

bool RowCompiler::Takes(const Configuration& configuration, const std::string& schedule) {
  const std::string flaw =
      FlawFor(request_.LaunchOf(configuration), configuration.parallel(), schedule);
  if (!flaw.empty()) flaws_.configuration = flaw;
  return flaw.empty();
}

void RowCompiler::CheckDepth() const {
  const bool takes = std::ranges::any_of(request_.schedules, [](const std::string& name) {
    return FindSchedule(name).takes_chunks && name != kAuto.name;
  });
  if (std::cmp_greater(FixedDepth(), request_.model.layers.size())) {
    throw Error("`fix`: vpp=" + std::to_string(FixedDepth()) + " is more than the " +
                std::to_string(request_.model.layers.size()) + " layers");
  }
  if (FixedDepth() <= 1 || takes) return;
  throw Error(
      "`fix`: vpp is for schedules that take a number of stages a rank; add `only` "
      "interleaved-1f1b, or `for` megatron");
}

// Stages that each rank must have; 0: any number.
int RowCompiler::FixedDepth() const {
  const auto fixed = request_.fixed.find("vpp");
  return fixed == request_.fixed.end() ? 0 : fixed->second;
}

// Values of `chunks` to try: 0 is the schedule's own.
std::vector<int> RowCompiler::DepthsOf(const Configuration& configuration,
                                       const std::string& schedule) {
  std::vector<int> depths = {0};
  const bool takes = FindSchedule(schedule).takes_chunks;
  if (const int fixed = FixedDepth(); fixed > 0 && takes) return {fixed};
  if (!takes || searches()) return depths;
  // The embedding, the head and the layers of multi-token prediction may be stages, too.
  const int deepest = costs_.Of(configuration).LayerCount() / configuration.pp;
  for (const int depth : kDepths) {
    if (depth <= deepest) depths.push_back(depth);
  }
  return depths;
}

std::optional<PlannerRow> RowCompiler::BestOf(const Configuration& configuration,
                                              const Estimate& estimate,
                                              const std::vector<std::string>& schedules,
                                              int64_t budget) {
  const bool whole = request_.recomputes_all();
  const double times = deep_ && searches() ? kHeldBySearched : 1;
  const bool tight = !whole && estimate.Tight(configuration, request_.room(), times);
  made_.emplace();
  flaws_.last_of_plans = false;
  std::optional<PlannerRow> best;
  for (const std::string& schedule : schedules) {
    if (!Takes(configuration, schedule)) continue;
    for (const int chunks : DepthsOf(configuration, schedule)) {
      // Deeper pipelines where the schedule's own depth does not fit, and in the second look.
      const bool own = chunks > 0 && FixedDepth() == 0;
      if (own && best && !deep_) break;
      if (own && spent_ >= request_.budget) break;
      PlannerRow row = {.configuration = configuration,
                        .schedule = schedule,
                        .recompute = tight ? "auto" : "none",
                        .target = CompileTarget(request_.framework, schedule),
                        .overlap = request_.overlap(),
                        .chunks = chunks,
                        .budget = schedule == kAuto.name ? budget : 0};
      bool made = Made(estimate, &row);
      if (!made && !tight) {
        row.recompute = whole ? "full" : "auto";
        // R then stays inside the backward.
        if (request_.framework == Framework::kMegatron) row.target = "megatron";
        made = Made(estimate, &row);
      }
      if (made && (!best || row.step < best->step)) best = std::move(row);
    }
  }
  return best;
}

void RowCompiler::Remake(const Estimate& estimate, PlannerRow* row) {
  made_.emplace();
  const bool made = Made(estimate, row);
  CF_ASSERT(made);
}

// Makes the plan of a row. False if the schedule does not take the configuration, it does not fit,
// or the framework does not run it.
bool RowCompiler::Made(const Estimate& estimate, PlannerRow* row) {
  const int64_t work = WorkOf(row->configuration, row->schedule, row->recompute != "none");
  double search = 0;  // share of its budget that it took
  try {
    CompileRequest request = ResolveCompile(CompileFlagsOf(*row, costs_.Of(row->configuration)));
    const Schedule& schedule = FindSchedule(row->schedule);
    if (const std::string why = schedule.reject(request.spec); !why.empty()) {
      flaws_.schedule = std::string(schedule.name) + " " + why;
      return false;
    }
    const int stages = FixedDepth() * row->configuration.pp;
    if (stages > 0 && &schedule != &kAuto && schedule.stages(request.spec) != stages) return false;
    flaws_.taken = true;
    request.options.control = {
        .stop = stop_,
        .report = [&](const SearchState& state) { search = std::max(search, state.spent); },
        .made = &*made_};
    row->plan = Compile(request.spec, request.options);
  } catch (const Error&) {
    const bool soon = row->recompute != "auto" && row->schedule != kAuto.name;
    const double share = soon ? kRefused : 1;
    spent_ += static_cast<int64_t>(share * static_cast<double>(work)) + SearchTime(search, *row);
    return false;
  }
  spent_ += work + SearchTime(search, *row);
  if (FixedDepth() > 0 && row->plan.stages != FixedDepth() * row->plan.ranks) return false;
  if (const std::string flaw = FlawFor(request_.LaunchOf(row->configuration), row->plan);
      !flaw.empty()) {
    flaws_.plan = flaw;
    flaws_.last_of_plans = true;
    return false;
  }
  row->step = Simulate(row->plan, *row->plan.costs, Keep::kFigures).makespan;
  row->bound = estimate.bound;
  if (row->plan.provenance) row->bound = std::max(row->bound, row->plan.provenance->bound);
  return true;
}

int64_t RowCompiler::WorkOf(const Configuration& configuration, std::string_view schedule,
                            bool recompute) const {
  const CompileWork& work = CompileWorkOf(schedule);
  const bool components = request_.model.has_experts() && !request_.waits();
  const auto layers = static_cast<int64_t>(request_.model.layers.size());
  const bool twice = recompute && schedule != kAuto.name;
  return (components ? work.moe : work.dense) * layers * (twice ? 2 : 1) +
         work.cell * CellsOf(configuration);
}

}  // namespace contraflow
