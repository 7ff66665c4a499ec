#include "schedules/search/rule_changes.h"

#include <algorithm>
#include <vector>

namespace contraflow {

RuleChanges::RuleChanges(const SearchProblem& problem, std::mt19937_64* random)
    : problem_(problem), random_(*random) {}

void RuleChanges::Make(Rules* rules) {
  const int changes = 1 + static_cast<int>(Draw(3));
  for (int i = 0; i < changes; ++i) {
    if (Draw(2) == 0) {
      ChangeStages(rules);
    } else {
      ChangeRanks(rules);
    }
  }
}

void RuleChanges::ChangeStages(Rules* rules) {
  const auto [first, end] = DrawStretch(problem_.stages.size(), &random_);
  std::vector<int32_t>& ahead = Draw(2) == 0 ? rules->ahead : rules->ahead_first;
  const int32_t by = Draw(2) == 0 ? 1 : -1;
  const bool open = Draw(12) == 0;
  for (size_t i = first; i < end; ++i) {
    const int32_t count = std::max(problem_.stages[i].count, 1);
    ahead[i] = open ? count : std::clamp(ahead[i] + by, 1, count);
  }
}

void RuleChanges::ChangeRanks(Rules* rules) {
  const auto [first, end] = DrawStretch(problem_.stages_of.size(), &random_);
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

std::pair<size_t, size_t> DrawStretch(size_t count, std::mt19937_64* random) {
  const auto draw = [&](size_t below) { return static_cast<size_t>((*random)() % below); };
  const size_t first = draw(count);
  const size_t length = draw(2) == 0 ? 1 : 1 + draw(count);
  return {first, std::min(count, first + length)};
}

}  // namespace contraflow
