#include <algorithm>
#include <random>
#include <string>
#include <utility>

#include "schedules/search/evaluator.h"
#include "schedules/search/list_scheduler.h"
#include "schedules/search/policy.h"
#include "schedules/search/rule_changes.h"
#include "schedules/search/search.h"

namespace contraflow {
namespace {

/// Above this many instructions a policy is first asked whether it reaches the bound, which most
/// answer early.
constexpr int64_t kLarge = 40'000;

/// Changes the rules of single ranks and stages at random, as long as the schedule gets no longer:
/// stops at `bound`, after `rounds` schedules, or when no more than `leave` of the work is left.
/// `rules` are those of `best`, or any to begin with.
void SearchRules(const SearchProblem& problem, Time bound, int rounds, int64_t leave,
                 SearchWork* work, ListScheduler* scheduler, Rules rules,
                 std::optional<SearchResult>* best) {
  std::mt19937_64 random(2);
  RuleChanges changes(problem, &random);
  Time makespan = RankQueue::kNever - 1, ends = RankQueue::kNever;
  for (int round = 0; round < rounds; ++round) {
    Rules next = rules;
    if (round > 0) changes.Make(&next);
    const std::optional<Time> found = scheduler->Run(next, makespan + 1);
    work->Spend(scheduler->cost());
    if (work->left() <= leave) return;
    if (!found) continue;
    if (std::pair(*found, scheduler->ends()) > std::pair(makespan, ends)) continue;
    makespan = *found;
    ends = scheduler->ends();
    rules = std::move(next);
    if (*best && (*best)->makespan <= makespan) continue;
    *best =
        SearchResult{scheduler->TakeOrder(), makespan, "rules found in " + std::to_string(round)};
    work->Found(makespan, bound);
    if (makespan <= bound) return;
  }
}

/// The policies with the shortest schedules of the coarse problem first; of equals the first.
void SortByCoarse(const SearchProblem& coarse, SearchWork* work, std::vector<Policy>* policies) {
  ListScheduler scheduler(coarse);
  std::vector<std::pair<Time, size_t>> order;
  // Policies that the budget leaves untried come last, as they were.
  for (size_t i = 0; i < policies->size() && !work->spent(); ++i) {
    const Rules rules = RulesOf(coarse, (*policies)[i]);
    order.emplace_back(scheduler.Run(rules, RankQueue::kNever).value_or(RankQueue::kNever), i);
    work->Spend(scheduler.cost());
  }
  std::sort(order.begin(), order.end());
  for (size_t i = order.size(); i < policies->size(); ++i) order.emplace_back(RankQueue::kNever, i);
  std::vector<Policy> sorted;
  for (const auto& [makespan, i] : order) sorted.push_back((*policies)[i]);
  *policies = std::move(sorted);
}

class PolicySearch {
 public:
  PolicySearch(const SearchProblem& problem, Time bound, SearchWork* work, bool needed)
      : problem_(problem),
        bound_(bound),
        work_(*work),
        needed_(needed),
        left_for_others_(work->left() / 2),
        most_(work->done() + kNeeded * std::max(work->left(), kLeast)),
        scheduler_(problem),
        several_(problem.several()) {}

  std::optional<SearchResult> Run() {
    std::vector<Policy> grid = PolicyGrid(problem_);
    if (3 * problem_.chunks() > kLarge) {
      SortByCoarse(CoarseProblem(problem_, several_ ? 8 : 16), &work_, &grid);
      const int64_t least = (work_.left() + left_for_others_) / 2;
      for (const Policy& policy : grid) {
        if (Done() || work_.left() < least) break;
        Try(policy, bound_ + 1);
      }
    }
    for (const Policy& policy : grid) {
      if (Done()) break;
      Try(policy, below_);
    }
    if (!rules_.ahead.empty() && !Done()) {
      SearchRules(problem_, bound_, kRuleRounds, left_for_others_, &work_, &scheduler_, rules_,
                  &best_);
    }
    // If a rank has waited on purpose, the order alone may be shorter.
    if (best_) best_->makespan = Evaluate(problem_, best_->order).makespan;
    return std::move(best_);
  }

 private:
  /// Times the work, and at least this many instructions, that a first order is worth.
  static constexpr int64_t kNeeded = 4, kLeast = 2'000'000;
  static constexpr int kRuleRounds = 600;

  bool Done() const {
    if (!best_ && needed_) return work_.done() >= most_;
    return below_ <= bound_ || work_.left() <= left_for_others_;
  }

  void Try(const Policy& policy, Time below) {
    Rules rules = RulesOf(problem_, policy);
    const std::optional<Time> makespan = scheduler_.Run(rules, below);
    work_.Spend(scheduler_.cost());
    if (!makespan) return;
    rules_ = std::move(rules);
    Keep(*makespan, ToString(policy));
  }

  void Keep(Time makespan, std::string from) {
    if (makespan >= below_) return;
    below_ = makespan;
    best_ = SearchResult{scheduler_.TakeOrder(), makespan, std::move(from)};
    work_.Found(makespan, bound_);
  }

  const SearchProblem& problem_;
  const Time bound_;
  SearchWork& work_;
  const bool needed_;
  const int64_t left_for_others_;  // of the work
  const int64_t most_;             // done where there is no order yet
  ListScheduler scheduler_;
  const bool several_;
  Time below_ = RankQueue::kNever;
  Rules rules_;
  std::optional<SearchResult> best_;
};

}  // namespace

std::optional<SearchResult> SearchPolicies(const SearchProblem& problem, Time bound,
                                           SearchWork* work, bool needed) {
  work->Enter("policies");
  return PolicySearch(problem, bound, work, needed).Run();
}

}  // namespace contraflow
