#include "tools/planner/planner.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "compiler/plan/error.h"
#include "compiler/plan/text.h"
#include "compiler/simulate/simulate.h"
#include "schedules/compile.h"
#include "schedules/partition/made_plans.h"
#include "schedules/published/rows.h"
#include "schedules/registry.h"
#include "tools/cli/compile_flags.h"
#include "tools/planner/estimate.h"
#include "tools/report/explanation.h"

namespace contraflow {
namespace {

/// Shares of the budget up to the end of the scan and of the first searches, where orders are
/// searched; the rest is for the best again.
constexpr double kScan = 0.3, kFirst = 0.6;
/// The same for named schedules, whose plans are made once and for all.
constexpr double kScanNamed = 0.6, kFirstNamed = 0.9;
/// Shortest first search, and the share of the budget that it takes.
constexpr int64_t kLeastLook = 20'000'000, kLooks = 200;
/// Configurations that are searched again where none of the others fits.
constexpr size_t kHarder = 3;
/// Times the budget of the scan that are spent where there are fewer rows than asked for.
constexpr int64_t kMostOver = 3;

/// Rows that are searched to the end, if fewer are asked for, too: `top` changes no row.
constexpr size_t kSearchedRows = 5;

/// Activations up to which a searched schedule may gain by recompute, as a multiple of 1F1B's.
constexpr double kHeldBySearched = 1.5;
/// Activations of combined 1F1B with two stages a rank, as a multiple of 1F1B's.
constexpr double kHeldByPairs = 1.5;
/// Share of the work after which a compilation ends that does not fit.
constexpr double kRefused = 0.25;

/// Approximate processor time of a compilation without its search, for each layer with components,
/// each layer without (twice with recompute) and each cell, in nanoseconds.
struct CompileWork {
  int64_t moe, dense, cell;
};
constexpr CompileWork kOneStage = {3'000'000, 600'000, 12'000};      // a stage a rank
constexpr CompileWork kMoreStages = {6'000'000, 6'000'000, 20'000};  // several
constexpr CompileWork kTuned = {6'000'000, 6'000'000, 30'000};    // partitions are tried on orders
constexpr CompileWork kSearched = {3'000'000, 600'000, 130'000};  // auto

/// A first search takes at most 1/2 of the budget that is left for all of them.
constexpr int64_t kLookPart = 2;

struct Candidate {
  Configuration configuration;
  Estimate estimate;
  int row = -1;                       ///< its row, while no row is sorted
  int Rejected::*rejected = nullptr;  ///< why it has none

  /// Keeps the weightiest reason of all schedules: an unfinished search, then a bound.
  void Reject(int Rejected::*reason) {
    const auto weight = [](int Rejected::*r) {
      return r == &Rejected::budget ? 3 : r == &Rejected::bound ? 2 : r != nullptr ? 1 : 0;
    };
    if (weight(reason) > weight(rejected)) rejected = reason;
  }
};

int64_t CellsOf(const Configuration& configuration) {
  return int64_t{configuration.pp} * configuration.microbatches;
}

const CompileWork& CompileWorkOf(std::string_view schedule) {
  if (schedule == kAuto.name) return kSearched;
  if (schedule == kZbV.name) return kTuned;
  const bool one = schedule == kGpipe.name || schedule == kOneFOneB.name || schedule == kZb1p.name;
  return one ? kOneStage : kMoreStages;
}

/// True if the schedule hides all-to-alls in F&B pairs.
bool HidesInPairs(std::string_view schedule) {
  return schedule == kCombined.name || schedule == kDualPipe.name || schedule == kDualPipeV.name;
}

/// Other stages per rank to try, if a framework has few schedules.
constexpr int kDepths[] = {3, 4, 6, 8};

class PlanSearch {
 public:
  PlanSearch(const PlanRequest& request, PlanReport report, const std::atomic<bool>* stop)
      : request_(request), report_(std::move(report)), stop_(stop), costs_(request) {}

  PlannerResult Run() {
    CheckDepth();
    Collect();
    Scan(ShareOf(searches() ? kScan : kScanNamed));
    if (rows_.empty()) SearchLonger();
    if (rows_.empty()) RefuseAll();
    result_.compiled = static_cast<int>(rows_.size());
    // One named schedule has been tried everywhere.
    if (searches() || request_.schedules.size() > 1)
      SearchFirst(ShareOf(searches() ? kFirst : kFirstNamed));
    SortRows();
    SearchBest();
    SortRows();
    if (rows_.size() > request_.top) rows_.resize(request_.top);
    for (PlannerRow& row : rows_) Describe(&row);
    result_.interrupted = stopped();
    result_.rows = std::move(rows_);
    return std::move(result_);
  }

 private:
  int64_t memory() const { return request_.room(); }
  bool stopped() const { return stop_ != nullptr && stop_->load(); }

  void Report(double done) const {
    if (!report_) return;
    const auto best = std::ranges::min_element(rows_, {}, &PlannerRow::step);
    report_(done, best == rows_.end() ? nullptr : &*best);
  }

  int64_t ShareOf(double share) const {
    return static_cast<int64_t>(share * static_cast<double>(request_.budget));
  }
  /// True if orders are searched, not only those of named schedules made.
  bool searches() const { return std::ranges::count(request_.schedules, kAuto.name) > 0; }

  /// Candidates whose parameters fit, the most promising first.
  void Collect() {
    for (const Configuration& each : ConfigurationsOf(request_, &result_.rejected)) {
      if (std::ranges::none_of(request_.schedules, [&](const std::string& schedule) {
            return Takes(each, schedule);
          })) {
        ++result_.rejected.framework;
        continue;
      }
      std::optional<Estimate> estimate;
      try {
        estimate = costs_.EstimateOf(each);
      } catch (const Error&) {  // more bytes or time than a cost file may say
        ++result_.rejected.shape;
        continue;
      }
      least_ = std::min(least_, estimate->fixed);
      if (estimate->fixed > memory()) {
        ++result_.rejected.memory;
        continue;
      }
      candidates_.push_back({each, *estimate});
    }
    std::ranges::stable_sort(candidates_, {}, [](const Candidate& c) { return c.estimate.guess; });
  }

  /// Makes a row of each configuration with 1F1B, or with each of the named schedules.
  void Scan(int64_t budget) {
    std::vector<std::string> schedules = request_.schedules;
    if (searches()) schedules = {std::string(kOneFOneB.name)};
    // The soonest steps first, for they prove more of the others longer.
    std::stable_partition(schedules.begin(), schedules.end(), HidesInPairs);
    for (size_t i = 0; i < schedules.size(); ++i) {
      const auto part = static_cast<double>(i + 1) / static_cast<double>(schedules.size());
      const auto most = static_cast<int64_t>(part * static_cast<double>(budget));
      ScanWith(schedules[i], most, i + 1 < schedules.size() ? most : kMostOver * most);
    }
    for (const Candidate& candidate : candidates_) {
      if (candidate.row < 0 && candidate.rejected != nullptr)
        ++(result_.rejected.*candidate.rejected);
    }
  }

  /// Makes rows with a schedule, the most promising first, until `budget` is spent in all, or
  /// `most` while there are few rows. Plans are not kept, for they are many and large.
  void ScanWith(const std::string& schedule, int64_t budget, int64_t most) {
    std::ranges::stable_sort(candidates_, {}, [&](const Candidate& c) {
      return searches() || HidesInPairs(schedule) ? c.estimate.guess : c.estimate.exposed;
    });
    for (Candidate& candidate : candidates_) {
      if (stopped() && !rows_.empty()) {
        candidate.Reject(&Rejected::budget);
        continue;
      }
      if (!searches() && !Takes(candidate.configuration, schedule)) continue;
      if (!rows_.empty() && candidate.estimate.bound > best_) {
        candidate.Reject(&Rejected::bound);
        continue;
      }
      // Megatron runs no pairs with recompute.
      if (request_.framework == Framework::kMegatron && HidesInPairs(schedule) &&
          candidate.estimate.Tight(candidate.configuration, memory(), kHeldByPairs)) {
        candidate.Reject(&Rejected::memory);
        continue;
      }
      if (spent_ >= (rows_.size() >= kSearchedRows ? budget : most)) {
        candidate.Reject(&Rejected::budget);
        continue;
      }
      Report(kScan * std::min(1.0, static_cast<double>(spent_) / static_cast<double>(budget)));
      made_.emplace();
      if (std::optional<PlannerRow> row = BestOf(candidate, {schedule}, 0)) {
        best_ = std::min(best_, row->step);
        row->plan = {};
        Keep(*std::move(row), &candidate);
      } else {
        candidate.Reject(flawed_ ? &Rejected::framework : &Rejected::memory);
      }
    }
  }

  /// Keeps the shortest row of a candidate.
  void Keep(PlannerRow row, Candidate* candidate) {
    if (candidate->row < 0) {
      candidate->row = static_cast<int>(rows_.size());
      rows_.push_back(std::move(row));
    } else if (PlannerRow& kept = rows_[static_cast<size_t>(candidate->row)];
               row.step < kept.step) {
      kept = std::move(row);
    }
  }

  /// A step of a searched schedule, about: that of 1F1B, less the all-to-alls that it would hide.
  double Promise(const PlannerRow& row) {
    const Estimate estimate = costs_.EstimateOf(row.configuration);
    return static_cast<double>(row.step) * static_cast<double>(estimate.guess) /
           static_cast<double>(std::max<Time>(1, estimate.exposed));
  }

  /// Searches rows for a short while, in the order of the mean of their promise and their bound.
  void SearchFirst(int64_t budget) {
    std::ranges::stable_sort(rows_, {}, [&](const PlannerRow& row) {
      return Promise(row) + static_cast<double>(row.bound);
    });
    const int64_t look = std::max(kLeastLook, request_.budget / kLooks);
    for (PlannerRow& row : rows_) {
      if (stopped() || spent_ >= budget) return;
      if (row.bound > best_) continue;
      const int64_t work = WorkOf(row, kAuto.name);
      if (work > (budget - spent_) / kLookPart) continue;
      Report(std::min(kFirst, static_cast<double>(spent_) / static_cast<double>(request_.budget)));
      SearchRow(std::max(look, work), &row);
      best_ = std::min(best_, row.step);
    }
  }

  /// Replaces a row by the shortest that the schedules of the request have, if that is shorter.
  void SearchRow(int64_t budget, PlannerRow* row) {
    made_.emplace();
    const Candidate candidate = {row->configuration, costs_.EstimateOf(row->configuration)};
    std::optional<PlannerRow> found = BestOf(candidate, request_.schedules, budget);
    if (found && found->step < row->step) *row = *std::move(found);
  }

  /// Searches the configurations that need least memory, whether 1F1B fits or not.
  void SearchLonger() {
    std::ranges::stable_sort(candidates_, {}, [](const Candidate& candidate) {
      return candidate.estimate.fixed + candidate.estimate.one_batch;
    });
    for (size_t i = 0; i < std::min(kHarder, candidates_.size()) && !stopped(); ++i) {
      if (!rows_.empty() && spent_ >= request_.budget) return;
      made_.emplace();
      if (std::optional<PlannerRow> row = BestOf(candidates_[i], request_.schedules, kLeastLook)) {
        rows_.push_back(*std::move(row));
      }
    }
  }

  /// Searches the best rows again, with all that is left of the budget.
  void SearchBest() {
    deep_ = true;
    const size_t count = std::min(rows_.size(), std::max(request_.top, kSearchedRows));
    for (size_t i = 0; i < count; ++i) {
      Report(kFirst + (1 - kFirst) * static_cast<double>(i) / static_cast<double>(count));
      PlannerRow& row = rows_[i];
      if (!stopped()) {
        const auto shares = static_cast<int64_t>((count - i) * request_.schedules.size());
        const int64_t left = std::max<int64_t>(0, request_.budget - spent_) / shares;
        const int64_t search = left - WorkOf(row, kAuto.name);
        // A large shape may take longer than its share only to begin.
        if (search > 0 || !searches()) SearchRow(std::max(row.budget, search), &row);
      }
      if (!row.plan.programs.empty()) continue;
      made_.emplace();
      const bool made = Compiled(costs_.EstimateOf(row.configuration), &row);
      CF_ASSERT(made);
    }
  }

  /// True if the framework trains with the schedule so.
  bool Takes(const Configuration& configuration, const std::string& schedule) {
    const std::string flaw =
        FlawFor(request_.LaunchOf(configuration), configuration.parallel(), schedule);
    if (!flaw.empty()) flaw_ = flaw;
    return flaw.empty();
  }

  /// Throws Error if stages a rank are fixed and no schedule takes their number.
  void CheckDepth() const {
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

  /// Stages that each rank must have; 0: any number.
  int FixedDepth() const {
    const auto fixed = request_.fixed.find("vpp");
    return fixed == request_.fixed.end() ? 0 : fixed->second;
  }

  /// Values of `chunks` to try: 0 is the schedule's own.
  std::vector<int> DepthsOf(const Configuration& configuration, const std::string& schedule) const {
    std::vector<int> depths = {0};
    const bool takes = FindSchedule(schedule).takes_chunks;
    if (const int fixed = FixedDepth(); fixed > 0 && takes) return {fixed};
    if (!takes || searches()) return depths;
    for (const int depth : kDepths) {
      const int64_t stages = int64_t{depth} * configuration.pp;
      if (std::cmp_less_equal(stages, request_.model.layers.size())) depths.push_back(depth);
    }
    return depths;
  }

  /// The shortest of the schedules and, where memory is tight, with and without recompute.
  std::optional<PlannerRow> BestOf(const Candidate& candidate,
                                   const std::vector<std::string>& schedules, int64_t budget) {
    const bool whole = request_.recomputes_all();
    const double times = deep_ && searches() ? kHeldBySearched : 1;
    const bool tight = !whole && candidate.estimate.Tight(candidate.configuration, memory(), times);
    flawed_ = false;
    std::optional<PlannerRow> best;
    for (const std::string& schedule : schedules) {
      if (!Takes(candidate.configuration, schedule)) continue;
      for (const int chunks : DepthsOf(candidate.configuration, schedule)) {
        // Deeper pipelines where the schedule's own depth does not fit, and in the second look.
        const bool own = chunks > 0 && FixedDepth() == 0;
        if (own && best && !deep_) break;
        if (own && spent_ >= request_.budget) break;
        PlannerRow row = {.configuration = candidate.configuration,
                          .schedule = schedule,
                          .recompute = tight ? "auto" : "none",
                          .target = CompileTarget(request_.framework, schedule),
                          .overlap = request_.overlap(),
                          .chunks = chunks,
                          .budget = schedule == kAuto.name ? budget : 0};
        bool made = Compiled(candidate.estimate, &row);
        if (!made && !tight) {
          row.recompute = whole ? "full" : "auto";
          // R then stays inside the backward.
          if (request_.framework == Framework::kMegatron) row.target = "megatron";
          made = Compiled(candidate.estimate, &row);
        }
        if (made && (!best || row.step < best->step)) best = std::move(row);
      }
    }
    return best;
  }

  /// Makes the plan of a row. False if the schedule does not take the configuration, it does not
  /// fit, or the framework does not run it.
  bool Compiled(const Estimate& estimate, PlannerRow* row) {
    const int64_t work = WorkOf(*row, row->schedule);
    double search = 0;  // share of its budget that it took
    try {
      CompileRequest request = ResolveCompile(CompileFlagsOf(*row, costs_.Of(row->configuration)));
      const Schedule& schedule = FindSchedule(row->schedule);
      if (const std::string why = schedule.reject(request.spec); !why.empty()) {
        schedule_flaw_ = std::string(schedule.name) + " " + why;
        return false;
      }
      const int stages = FixedDepth() * row->configuration.pp;
      if (stages > 0 && &schedule != &kAuto && schedule.stages(request.spec) != stages)
        return false;
      taken_ = true;
      request.options.control = {
          .stop = stop_,
          .report = [&](const SearchState& state) { search = std::max(search, state.spent); },
          .made = &*made_};
      row->plan = Compile(request.spec, request.options);
    } catch (const Error&) {
      const bool soon = row->recompute != "auto" && row->schedule != kAuto.name;
      const double share = soon ? kRefused : 1;
      spent_ += static_cast<int64_t>(share * static_cast<double>(work)) + Spent(search, *row);
      return false;
    }
    spent_ += work + Spent(search, *row);
    if (FixedDepth() > 0 && row->plan.stages != FixedDepth() * row->plan.ranks) return false;
    if (const std::string flaw = FlawFor(request_.LaunchOf(row->configuration), row->plan);
        !flaw.empty()) {
      plan_flaw_ = flaw;
      flawed_ = true;
      return false;
    }
    row->step = Simulate(row->plan, *row->plan.costs, Keep::kFigures).makespan;
    row->bound = estimate.bound;
    if (row->plan.provenance) row->bound = std::max(row->bound, row->plan.provenance->bound);
    return true;
  }

  /// Processor time of compiling a row with that schedule, about, without its search.
  int64_t WorkOf(const PlannerRow& row, std::string_view schedule) const {
    const CompileWork& work = CompileWorkOf(schedule);
    const bool components = request_.model.has_experts() && !request_.waits();
    const auto layers = static_cast<int64_t>(request_.model.layers.size());
    const bool twice = row.recompute != "none" && schedule != kAuto.name;
    return (components ? work.moe : work.dense) * layers * (twice ? 2 : 1) +
           work.cell * CellsOf(row.configuration);
  }

  static int64_t Spent(double share, const PlannerRow& row) {
    return static_cast<int64_t>(share * static_cast<double>(row.budget));
  }

  void SortRows() {
    std::ranges::stable_sort(rows_, {}, [](const PlannerRow& row) { return row.step; });
  }

  /// Fills in the figures that are shown.
  void Describe(PlannerRow* row) const {
    const Plan& plan = row->plan;
    const double seconds = static_cast<double>(row->step) / 1e9;
    const double gpus = request_.gpus;
    const double peak = request_.fp8 ? request_.gpu.fp8 : request_.gpu.bf16;
    row->tokens_per_second_per_gpu = static_cast<double>(request_.global_batch) *
                                     static_cast<double>(request_.sequence) / seconds / gpus;
    row->mfu = ModelFlops(request_) / (seconds * gpus * peak);
    row->memory = std::ranges::max(MemoryOf(plan, *plan.costs), {}, &MemoryFigures::total);
    const Explanation explanation = ExplainRun(plan, *plan.costs, Simulate(plan, *plan.costs));
    const double all = static_cast<double>(row->step) * plan.ranks;
    std::vector<Time> idle(kIdleCauses);
    Time busy = 0;
    for (int r = 0; r < plan.ranks; ++r) {
      busy += explanation.simulation.ranks[static_cast<size_t>(r)].busy;
      const std::vector<Time> causes = explanation.ByCause(r);
      for (size_t i = 0; i < causes.size(); ++i) idle[i] += causes[i];
    }
    row->parts = {{"compute", static_cast<double>(busy) / all}};
    for (size_t i = 0; i < idle.size(); ++i) {
      if (idle[i] == 0) continue;
      row->parts.emplace_back(Name(static_cast<IdleCause>(i)), static_cast<double>(idle[i]) / all);
    }
    std::ranges::stable_sort(row->parts, std::greater(),
                             [](const auto& part) { return part.second; });
  }

  /// GPUs among which the states of the smallest configuration would fit, if they divided so.
  int64_t LeastGpus() const {
    return static_cast<int64_t>(
        std::ceil(static_cast<double>(least_) * request_.gpus / static_cast<double>(memory())));
  }

  [[noreturn]] void RefuseAll() const {
    const std::string framework = "`for`: " + std::string(Name(request_.framework)) + " runs none ";
    if (!plan_flaw_.empty()) throw Error(framework + "of the plans that fit: " + plan_flaw_);
    if (result_.rejected.framework > 0 && result_.rejected.memory == 0) {
      throw Error(framework + "of the configurations: " + flaw_);
    }
    if (!taken_ && !schedule_flaw_.empty()) {
      throw Error("`only`: no configuration suits the schedules: " + schedule_flaw_ +
                  "; give another `global_batch`, `fix` other values or name more schedules");
    }
    if (candidates_.empty()) {
      throw Error("`gpus`: no configuration of " + std::to_string(request_.gpus) + " GPUs fits " +
                  FormatBytes(memory()) +
                  "; parameters, gradients and optimizer state alone take " + FormatBytes(least_) +
                  " of each at least; these alone need " + FormatCount(LeastGpus()) +
                  " GPUs, and activations more; give more `gpus`, `fix` less, or take a "
                  "smaller `optimizer`");
    }
    const size_t left = static_cast<size_t>(result_.rejected.budget);
    throw Error("`gpus`: " +
                (left == 0 ? std::string("no configuration")
                           : "none of the " + std::to_string(candidates_.size() - left) +
                                 " configurations that `budget` had time for") +
                " of " + std::to_string(request_.gpus) + " GPUs has a plan that fits " +
                FormatBytes(memory()) + "; parameters, gradients and optimizer state take " +
                FormatBytes(least_) +
                " of each at least, activations the rest; give more `gpus`, " +
                (request_.fixed.contains("zero") ? "" : "`fix` zero=2, ") +
                "another schedule or a shorter `seq`");
  }

  const PlanRequest& request_;
  const PlanReport report_;
  const std::atomic<bool>* const stop_;
  PlannerCosts costs_;
  std::optional<MadePlans> made_;  // of one configuration
  std::vector<Candidate> candidates_;
  std::vector<PlannerRow> rows_;
  PlannerResult result_;
  bool deep_ = false;          // more stages a rank are tried
  std::string flaw_;           // why the framework does not run a configuration
  std::string plan_flaw_;      // reason why the framework does not run a plan
  std::string schedule_flaw_;  // reason why a schedule does not take a configuration
  bool taken_ = false;         // a schedule takes a configuration
  bool flawed_ = false;        // it does not run a plan of this configuration
  Time best_ = INT64_MAX;
  int64_t spent_ = 0;          // of the budget
  int64_t least_ = INT64_MAX;  // bytes of parameters and their states on a GPU
};

}  // namespace

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

PlannerResult FindPlans(const PlanRequest& request, const PlanReport& report,
                        const std::atomic<bool>* stop) {
  return PlanSearch(request, report, stop).Run();
}

}  // namespace contraflow
