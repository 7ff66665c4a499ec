#include "schedules/local/noise.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <utility>

#include "schedules/search/evaluator.h"
#include "schedules/search/list_scheduler.h"
#include "schedules/search/policy.h"

namespace contraflow {
namespace {

/// Draws that compare orders here, and how many orders are returned.
constexpr int kDraws = 10;
constexpr uint64_t kSeed = 4'000'000;
constexpr size_t kReturned = 3;
/// Delays of messages, in standard deviations of the longest instruction.
constexpr int kLater[] = {2, 0, 4, 1, 8};

class Pool {
 public:
  Pool(const SearchProblem& problem, const SearchOptions& options, Time makespan, SearchWork* work)
      : problem_(problem),
        options_(options),
        makespan_(makespan),
        work_(work),
        evaluator_(problem) {}

  /// Takes in an order, which need not be as short as the others.
  void Offer(Order order, const std::string& from) {
    const Evaluation& evaluation = evaluator_.Run(order);
    Spend(order, 1);
    if (!evaluation.runs || !evaluation.fits || evaluation.makespan > makespan_) return;
    const auto same = [&](const Kept& kept) { return kept.found.order == order; };
    if (std::any_of(kept_.begin(), kept_.end(), same)) return;
    const Time mean =
        ExpectedMakespan(problem_, order, options_.noise, options_.seed + kSeed, kDraws);
    Spend(order, kDraws);
    if (kept_.size() == kReturned && mean >= kept_.back().mean) return;
    const auto place = std::find_if(kept_.begin(), kept_.end(),
                                    [&](const Kept& kept) { return mean < kept.mean; });
    kept_.insert(place, Kept{SearchResult{std::move(order), evaluation.makespan, from}, mean});
    if (kept_.size() > kReturned) kept_.pop_back();
  }

  int64_t spent() const { return spent_; }
  void Count(int64_t instructions) {
    spent_ += instructions;
    work_->Spend(instructions);
  }

  std::vector<SearchResult> Take() {
    std::vector<SearchResult> orders;
    for (Kept& kept : kept_) orders.push_back(std::move(kept.found));
    return orders;
  }

 private:
  struct Kept {
    SearchResult found;
    Time mean = 0;
  };

  void Spend(const Order& order, int64_t times) { Count(times * ActionCount(order)); }

  const SearchProblem& problem_;
  const SearchOptions& options_;
  const Time makespan_;
  SearchWork* const work_;
  Evaluator evaluator_;
  int64_t spent_ = 0;
  std::vector<Kept> kept_;  // by mean
};

}  // namespace

std::vector<SearchResult> RobustCandidates(const SearchProblem& problem,
                                           std::span<const Plan> seeds, const SearchResult& best,
                                           const SearchOptions& options, int64_t budget,
                                           SearchWork* work) {
  Pool pool(problem, options, best.makespan, work);
  pool.Offer(best.order, best.from);
  for (const Plan& seed : seeds) {
    std::optional<Order> order = ToOrder(problem, seed);
    if (order) pool.Offer(std::move(*order), seed.schedule);
  }
  Time longest = 0;
  for (const RouteStage& stage : problem.stages) {
    longest = std::max({longest, stage.cost.f, stage.cost.b, stage.cost.w});
  }
  int64_t share = 0;
  for (const int later : kLater) {
    share += budget / static_cast<int64_t>(std::size(kLater));
    CostModel costs = problem.costs;
    costs.comm.latency += static_cast<Time>(options.noise * static_cast<double>(longest)) * later;
    SearchProblem late = MakeProblem(problem.frame, costs, problem.limit);
    late.rooms = problem.rooms;
    ListScheduler scheduler(late);
    for (const Policy& policy : PolicyGrid(late)) {
      if (pool.spent() >= share || work->spent()) break;
      const bool ends = scheduler.Run(RulesOf(late, policy), RankQueue::kNever).has_value();
      pool.Count(scheduler.cost());
      if (ends) pool.Offer(scheduler.TakeOrder(), ToString(policy));
    }
  }
  return pool.Take();
}

}  // namespace contraflow
