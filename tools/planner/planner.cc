#include "tools/planner/planner.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "compiler/plan/error.h"
#include "compiler/plan/text.h"
#include "compiler/simulate/simulate.h"
#include "schedules/published/rows.h"
#include "schedules/registry.h"
#include "tools/planner/row_compiler.h"
#include "tools/report/explanation.h"

namespace contraflow {
namespace {

/// Shares of the budget up to the end of the scan and of the first searches, where orders are
/// searched; the rest is for the best again.
constexpr double kScan = 0.3, kFirst = 0.68;
/// The same for named schedules, whose plans are made once and for all.
constexpr double kScanNamed = 0.6, kFirstNamed = 0.9;
/// Shortest first search, and the share of the budget that it takes.
constexpr int64_t kLeastLook = 20'000'000, kLooks = 100;
/// Configurations that are searched again where none of the others fits.
constexpr size_t kHarder = 3;
/// Times the budget of the scan that are spent where there are fewer rows than asked for.
constexpr int64_t kMostOver = 3;

/// Rows that are searched to the end, if fewer are asked for, too: `top` changes no row.
constexpr size_t kSearchedRows = 5;

/// Activations of combined 1F1B with two stages a rank, as a multiple of 1F1B's.
constexpr double kHeldByPairs = 1.5;
/// A first search takes at most 1/2 of the budget that is left for all of them.
constexpr int64_t kLookPart = 2;
/// Budget of a first search, as a multiple of the work around it.
constexpr int64_t kWorkOfLook = 4;

struct Candidate {
  Configuration configuration;
  Estimate estimate;
  std::optional<PlannerRow> row = {};
  int Rejected::*rejected = nullptr;  ///< why it has no row

  Time step() const { return row ? row->step : INT64_MAX; }

  /// Takes a row in place of a longer one.
  void Keep(PlannerRow other) {
    if (other.step < step()) row = std::move(other);
  }

  /// Keeps the weightiest reason of all schedules: an unfinished search, then a bound.
  void Reject(int Rejected::*reason) {
    const auto weight = [](int Rejected::*r) {
      return r == &Rejected::budget ? 3 : r == &Rejected::bound ? 2 : r != nullptr ? 1 : 0;
    };
    if (weight(reason) > weight(rejected)) rejected = reason;
  }
};

class PlanSearch {
 public:
  PlanSearch(const PlanRequest& request, PlanReport report, const std::atomic<bool>* stop)
      : request_(request), report_(std::move(report)), stop_(stop), compiler_(request, stop) {}

  PlannerResult Run() {
    compiler_.CheckDepth();
    Collect();
    Scan(ShareOf(searches() ? kScan : kScanNamed));
    if (best_ == INT64_MAX) SearchLonger();
    if (best_ == INT64_MAX) RefuseAll();
    std::erase_if(candidates_, [](const Candidate& candidate) { return !candidate.row; });
    result_.compiled = static_cast<int>(candidates_.size());
    // One named schedule has been tried everywhere.
    if (searches() || request_.schedules.size() > 1)
      SearchFirst(ShareOf(searches() ? kFirst : kFirstNamed));
    SortByStep();
    SearchBest();
    SortByStep();
    if (candidates_.size() > request_.top) candidates_.resize(request_.top);
    for (Candidate& candidate : candidates_) {
      Describe(&*candidate.row);
      result_.rows.push_back(*std::move(candidate.row));
    }
    result_.interrupted = stopped();
    return std::move(result_);
  }

 private:
  int64_t memory() const { return request_.room(); }
  int64_t spent() const { return compiler_.spent(); }
  bool stopped() const { return stop_ != nullptr && stop_->load(); }

  void Report(double done) const {
    if (!report_) return;
    const auto best = std::ranges::min_element(candidates_, {}, &Candidate::step);
    report_(done, best == candidates_.end() || !best->row ? nullptr : &*best->row);
  }

  int64_t ShareOf(double share) const {
    return static_cast<int64_t>(share * static_cast<double>(request_.budget));
  }
  bool searches() const { return compiler_.searches(); }

  /// Candidates whose parameters fit, the most promising first.
  void Collect() {
    for (const Configuration& each : ConfigurationsOf(request_, &result_.rejected)) {
      if (std::ranges::none_of(request_.schedules, [&](const std::string& schedule) {
            return compiler_.Takes(each, schedule);
          })) {
        ++result_.rejected.framework;
        continue;
      }
      std::optional<Estimate> estimate;
      try {
        estimate = compiler_.costs().EstimateOf(each);
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

  /// Makes a row of each configuration with 1F1B or, where that holds too much, interleaved; or
  /// with each of the named schedules.
  void Scan(int64_t budget) {
    if (searches()) {
      ScanWith(std::string(kOneFOneB.name), budget, budget);
      // Chunks that run again hold less than stages that do.
      ScanWith(std::string(kInterleaved.name), budget, kMostOver * budget);
      CountRejected();
      return;
    }
    std::vector<std::string> schedules = request_.schedules;
    // The soonest steps first, for they prove more of the others longer.
    std::stable_partition(schedules.begin(), schedules.end(), HidesInPairs);
    for (size_t i = 0; i < schedules.size(); ++i) {
      const auto part = static_cast<double>(i + 1) / static_cast<double>(schedules.size());
      const auto most = static_cast<int64_t>(part * static_cast<double>(budget));
      ScanWith(schedules[i], most, i + 1 < schedules.size() ? most : kMostOver * most);
    }
    CountRejected();
  }

  void CountRejected() {
    for (const Candidate& candidate : candidates_) {
      if (!candidate.row && candidate.rejected != nullptr) ++(result_.rejected.*candidate.rejected);
    }
  }

  /// Makes rows with a schedule, the most promising first, until `budget` is spent in all, or
  /// `most` while there are few rows. Plans are not kept, for they are many and large.
  void ScanWith(const std::string& schedule, int64_t budget, int64_t most) {
    std::ranges::stable_sort(candidates_, {}, [&](const Candidate& c) {
      return searches() || HidesInPairs(schedule) ? c.estimate.guess : c.estimate.exposed;
    });
    auto rows = static_cast<size_t>(std::ranges::count_if(
        candidates_, [](const Candidate& candidate) { return candidate.row.has_value(); }));
    for (Candidate& candidate : candidates_) {
      if (stopped() && rows > 0) {
        candidate.Reject(&Rejected::budget);
        continue;
      }
      if (searches() ? candidate.row.has_value()
                     : !compiler_.Takes(candidate.configuration, schedule)) {
        continue;
      }
      if (candidate.estimate.bound > best_) {
        candidate.Reject(&Rejected::bound);
        continue;
      }
      // Megatron runs no pairs with recompute.
      if (request_.framework == Framework::kMegatron && HidesInPairs(schedule) &&
          candidate.estimate.Tight(candidate.configuration, memory(), kHeldByPairs)) {
        candidate.Reject(&Rejected::memory);
        continue;
      }
      if (spent() >= (rows >= kSearchedRows ? budget : most)) {
        candidate.Reject(&Rejected::budget);
        continue;
      }
      Report(kScan * std::min(1.0, static_cast<double>(spent()) / static_cast<double>(budget)));
      const bool first = !candidate.row;
      if (Search({schedule}, 0, &candidate)) {
        candidate.row->plan = {};
        rows += first ? 1 : 0;
      } else {
        candidate.Reject(compiler_.flaws().last_of_plans ? &Rejected::framework
                                                         : &Rejected::memory);
      }
    }
  }

  /// Searches rows for a short while, in the order of the mean of their bound and their promise:
  /// about the step of a searched schedule, which is that of 1F1B less the all-to-alls hidden.
  void SearchFirst(int64_t budget) {
    std::ranges::stable_sort(candidates_, {}, [](const Candidate& candidate) {
      const Estimate& estimate = candidate.estimate;
      const double hidden = static_cast<double>(estimate.guess) /
                            static_cast<double>(std::max<Time>(1, estimate.exposed));
      return static_cast<double>(candidate.row->step) * hidden +
             static_cast<double>(candidate.row->bound);
    });
    const int64_t look = std::max(kLeastLook, request_.budget / kLooks);
    for (Candidate& candidate : candidates_) {
      if (stopped() || spent() >= budget) return;
      if (candidate.row->bound > best_) continue;
      const int64_t work = compiler_.WorkOf(candidate.configuration, kAuto.name);
      const int64_t budget_of_look = std::max(look, kWorkOfLook * work);
      if (work + budget_of_look > (budget - spent()) / kLookPart) continue;
      Report(std::min(kFirst, static_cast<double>(spent()) / static_cast<double>(request_.budget)));
      Search(request_.schedules, budget_of_look, &candidate);
    }
  }

  /// Compiles a candidate with these schedules and keeps the shortest row. False if none fits.
  bool Search(const std::vector<std::string>& schedules, int64_t budget, Candidate* candidate) {
    std::optional<PlannerRow> found =
        compiler_.BestOf(candidate->configuration, candidate->estimate, schedules, budget);
    if (!found) return false;
    best_ = std::min(best_, found->step);
    candidate->Keep(*std::move(found));
    return true;
  }

  /// Searches the configurations that need least memory, whether 1F1B fits or not.
  void SearchLonger() {
    std::ranges::stable_sort(candidates_, {}, [](const Candidate& candidate) {
      return candidate.estimate.fixed + candidate.estimate.one_batch;
    });
    for (size_t i = 0; i < std::min(kHarder, candidates_.size()) && !stopped(); ++i) {
      if (best_ < INT64_MAX && spent() >= request_.budget) return;
      Search(request_.schedules, kLeastLook, &candidates_[i]);
    }
  }

  /// Searches the best rows again, with all that is left of the budget.
  void SearchBest() {
    compiler_.Deepen();
    const size_t count = std::min(candidates_.size(), std::max(request_.top, kSearchedRows));
    for (size_t i = 0; i < count; ++i) {
      Report(kFirst + (1 - kFirst) * static_cast<double>(i) / static_cast<double>(count));
      Candidate& candidate = candidates_[i];
      if (!stopped()) {
        const auto shares = static_cast<int64_t>((count - i) * request_.schedules.size());
        const int64_t left = std::max<int64_t>(0, request_.budget - spent()) / shares;
        const int64_t search = left - compiler_.WorkOf(candidate.configuration, kAuto.name);
        // A large shape may take longer than its share only to begin.
        if (search > 0 || !searches())
          Search(request_.schedules, std::max(candidate.row->budget, search), &candidate);
      }
      if (candidate.row->plan.programs.empty())
        compiler_.Remake(candidate.estimate, &*candidate.row);
    }
  }

  void SortByStep() { std::ranges::stable_sort(candidates_, {}, &Candidate::step); }

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
    const RowFlaws& flaws = compiler_.flaws();
    if (!flaws.plan.empty()) throw Error(framework + "of the plans that fit: " + flaws.plan);
    if (result_.rejected.framework > 0 && result_.rejected.memory == 0) {
      throw Error(framework + "of the configurations: " + flaws.configuration);
    }
    if (!flaws.taken && !flaws.schedule.empty()) {
      throw Error("`only`: no configuration suits the schedules: " + flaws.schedule +
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
                (searches() ? "`only` interleaved-1f1b, which tries more stages a rank,"
                            : "another schedule") +
                " or a shorter `seq`");
  }

  const PlanRequest& request_;
  const PlanReport report_;
  const std::atomic<bool>* const stop_;
  RowCompiler compiler_;
  std::vector<Candidate> candidates_;
  PlannerResult result_;
  Time best_ = INT64_MAX;      // step of the shortest row
  int64_t least_ = INT64_MAX;  // bytes of parameters and their states on a GPU
};

}  // namespace

PlannerResult FindPlans(const PlanRequest& request, const PlanReport& report,
                        const std::atomic<bool>* stop) {
  return PlanSearch(request, report, stop).Run();
}

}  // namespace contraflow
