#include <algorithm>
#include <string>
#include <utility>

#include "schedules/search/evaluator.h"
#include "schedules/search/list_scheduler.h"
#include "schedules/search/policy.h"
#include "schedules/search/search.h"

namespace contraflow {
namespace {

class PolicySearch {
 public:
  PolicySearch(const SearchProblem& problem, Time bound, SearchWork* work, bool needed)
      : problem_(problem),
        bound_(bound),
        work_(*work),
        needed_(needed),
        left_for_others_(work->left() / 2),
        most_(work->done() + kNeeded * std::max(work->left(), kLeast)),
        scheduler_(problem) {}

  std::optional<SearchResult> Run() {
    for (const Policy& policy : PolicyGrid(problem_)) {
      if (Done()) break;
      Try(policy);
    }
    // If a rank has waited on purpose, the order alone may be shorter.
    if (best_) best_->makespan = Evaluate(problem_, best_->order).makespan;
    return std::move(best_);
  }

 private:
  /// Times the work, and at least this many instructions, that a first order is worth.
  static constexpr int64_t kNeeded = 4, kLeast = 2'000'000;

  bool Done() const {
    if (!best_ && needed_) return work_.done() >= most_;
    return below_ <= bound_ || work_.left() <= left_for_others_;
  }

  void Try(const Policy& policy) {
    const std::optional<Time> makespan = scheduler_.Run(RulesOf(problem_, policy), below_);
    work_.Spend(scheduler_.cost());
    if (!makespan || *makespan >= below_) return;
    below_ = *makespan;
    best_ = SearchResult{scheduler_.TakeOrder(), *makespan, ToString(policy)};
    work_.Found(*makespan, bound_);
  }

  const SearchProblem& problem_;
  const Time bound_;
  SearchWork& work_;
  const bool needed_;
  const int64_t left_for_others_;  // of the work
  const int64_t most_;             // done where there is no order yet
  ListScheduler scheduler_;
  Time below_ = RankQueue::kNever;
  std::optional<SearchResult> best_;
};

}  // namespace

std::optional<SearchResult> SearchPolicies(const SearchProblem& problem, Time bound,
                                           SearchWork* work, bool needed) {
  work->Enter("policies");
  return PolicySearch(problem, bound, work, needed).Run();
}

}  // namespace contraflow
