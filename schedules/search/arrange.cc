// The order of micro-batches that differ. Some shapes to begin with, such as small ones at both
// ends, which fill and drain a pipeline soon, each with the policies that do best; then single
// micro-batches that move or change places, as long as that makes the list schedule of the best of
// these policies shorter.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "schedules/search/list_scheduler.h"
#include "schedules/search/policy.h"
#include "schedules/search/search.h"

namespace contraflow {
namespace {

/// Policies of the grid that each shape is tried with.
constexpr size_t kPolicies = 36;
/// Changes in a row that bring nothing, for each micro-batch, after which no more are tried.
constexpr int kMostInVain = 40;

class Arranging {
 public:
  Arranging(const SearchProblem& problem, Time bound, SearchWork* work)
      : problem_(problem), tried_(problem), bound_(bound), work_(*work) {}

  std::vector<int> Run() {
    std::vector<Policy> policies = PolicyGrid(problem_);
    policies.resize(std::min(policies.size(), kPolicies));
    for (const std::vector<int>& shape : Shapes()) Try(shape, policies);
    std::mt19937_64 random(1);
    const auto draw = [&](size_t count) { return static_cast<ptrdiff_t>(random() % count); };
    const size_t count = best_.size();
    const int most = kMostInVain * static_cast<int>(count);
    for (int vain = 0; vain < most && !Done() && count > 1; ++vain) {
      std::vector<int> changed = best_;
      const auto a = changed.begin() + draw(count), b = changed.begin() + draw(count);
      switch (draw(3)) {
        case 0:
          std::iter_swap(a, b);
          break;
        case 1:
          std::rotate(std::min(a, b), std::min(a, b) + 1, std::max(a, b) + 1);
          break;
        default:
          std::rotate(std::min(a, b), std::max(a, b), std::max(a, b) + 1);
      }
      const std::pair before = least_;
      Try(changed, {policy_});
      if (least_ < before) vain = 0;
    }
    return std::move(best_);
  }

 private:
  bool Done() const { return least_.first <= bound_ || work_.spent(); }

  /// Shapes: as numbered, by size both ways, and the largest or the smallest in the middle.
  std::vector<std::vector<int>> Shapes() const {
    const std::vector<double>& scale = problem_.costs.microbatch_scale;
    std::vector<int> numbered(scale.size());
    std::iota(numbered.begin(), numbered.end(), 0);
    std::vector<int> rising = numbered;
    std::ranges::stable_sort(rising, {}, [&](int m) { return scale[static_cast<size_t>(m)]; });
    const std::vector<int> falling(rising.rbegin(), rising.rend());
    return {numbered, rising, falling, FromBothEnds(rising), FromBothEnds(falling)};
  }

  static std::vector<int> FromBothEnds(const std::vector<int>& from) {
    std::vector<int> front, back;
    for (size_t i = 0; i < from.size(); ++i) (i % 2 == 0 ? front : back).push_back(from[i]);
    front.insert(front.end(), back.rbegin(), back.rend());
    return front;
  }

  void Try(const std::vector<int>& order, const std::vector<Policy>& policies) {
    tried_.costs.microbatch_scale = ScaleInOrder(problem_.costs, order);
    ListScheduler scheduler(tried_);
    for (const Policy& policy : policies) {
      if (!best_.empty() && Done()) return;
      const Time below = best_.empty() ? RankQueue::kNever : least_.first + 1;
      const std::optional<Time> makespan = scheduler.Run(RulesOf(tried_, policy), below);
      work_.Spend(scheduler.cost());
      if (!makespan) continue;
      const std::pair value(*makespan, scheduler.ends());
      if (!best_.empty() && value >= least_) continue;
      best_ = order;
      policy_ = policy;
      least_ = value;
    }
  }

  const SearchProblem& problem_;
  SearchProblem tried_;  ///< the same with another order
  const Time bound_;
  SearchWork& work_;
  std::vector<int> best_;
  Policy policy_;
  std::pair<Time, Time> least_;  ///< of the best: the end of the last rank, and of all
};

}  // namespace

std::vector<double> ScaleInOrder(const CostModel& costs, const std::vector<int>& order) {
  std::vector<double> scale;
  for (const int m : order) scale.push_back(costs.microbatch_scale[static_cast<size_t>(m)]);
  return scale;
}

std::vector<int> ArrangeMicrobatches(const SearchProblem& problem, Time bound, SearchWork* work) {
  work->Enter("micro-batches");
  return Arranging(problem, bound, work).Run();
}

}  // namespace contraflow
