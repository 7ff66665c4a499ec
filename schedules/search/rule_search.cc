#include "schedules/search/rule_search.h"

#include <algorithm>
#include <random>
#include <utility>

namespace contraflow {
namespace {

class Mutation {
 public:
  Mutation(const SearchProblem& problem, std::mt19937_64* random)
      : problem_(problem), random_(*random) {}

  void Change(Rules* rules) {
    const int changes = 1 + static_cast<int>(Draw(3));
    for (int i = 0; i < changes; ++i) {
      if (Draw(2) == 0) {
        ChangeStages(rules);
      } else {
        ChangeRanks(rules);
      }
    }
  }

 private:
  size_t Draw(size_t below) { return static_cast<size_t>(random_() % below); }

  /// A stretch of neighbours, more often than not a single one.
  std::pair<size_t, size_t> Stretch(size_t count) {
    const size_t first = Draw(count);
    const size_t length = Draw(2) == 0 ? 1 : 1 + Draw(count);
    return {first, std::min(count, first + length)};
  }

  void ChangeStages(Rules* rules) {
    const auto [first, end] = Stretch(problem_.stages.size());
    std::vector<int32_t>& ahead = Draw(2) == 0 ? rules->ahead : rules->ahead_first;
    const int32_t by = Draw(2) == 0 ? 1 : -1;
    const bool open = Draw(12) == 0;
    for (size_t i = first; i < end; ++i) {
      const int32_t count = std::max(problem_.stages[i].count, 1);
      ahead[i] = open ? count : std::clamp(ahead[i] + by, 1, count);
    }
  }

  void ChangeRanks(Rules* rules) {
    const auto [first, end] = Stretch(problem_.stages_of.size());
    const size_t what = Draw(8);
    const size_t value = Draw(12);
    for (size_t r = first; r < end; ++r) {
      RankRule& rule = rules->ranks[r];
      switch (what) {
        case 0:
          rule.fill = static_cast<int>(value % 5) * 25;
          break;
        case 1:
          rule.wait = static_cast<int>(value % 5) * 25;
          break;
        case 5:
          rule.wait_forward = static_cast<int>(value % 5) * 25;
          break;
        case 6:
          rule.wait_backward = static_cast<int>(value % 5) * 25;
          break;
        case 2:
          rule.turn = static_cast<Turn>(value % 3);
          break;
        case 3:
          rule.forward = static_cast<Pick>(value % 4);
          break;
        case 4:
          rule.backward = static_cast<Pick>(value % 4);
          break;
        default:
          rule.most_due = value < 8 ? 1 + static_cast<int32_t>(value) : RankRule::kMany;
      }
    }
  }

  const SearchProblem& problem_;
  std::mt19937_64& random_;
};

}  // namespace

void SearchRules(const SearchProblem& problem, Time bound, int rounds, int64_t leave,
                 SearchWork* work, ListScheduler* scheduler, Rules rules,
                 std::optional<SearchResult>* best) {
  std::mt19937_64 random(2);
  Mutation mutation(problem, &random);
  Time makespan = RankQueue::kNever - 1, ends = RankQueue::kNever;
  for (int round = 0; round < rounds; ++round) {
    Rules next = rules;
    if (round > 0) mutation.Change(&next);
    const std::optional<Time> found = scheduler->Run(next, makespan + 1);
    work->Spend(scheduler->cost());
    if (work->left() <= leave) return;
    if (!found) continue;
    if (std::pair(*found, scheduler->ends()) > std::pair(makespan, ends)) continue;
    makespan = *found;
    ends = scheduler->ends();
    rules = std::move(next);
    if (*best && (*best)->makespan <= makespan) continue;
    *best = SearchResult{scheduler->TakeOrder(), makespan, "rules found in " + std::to_string(round)};
    work->Found(makespan, bound);
    if (makespan <= bound) return;
  }
}

}  // namespace contraflow
