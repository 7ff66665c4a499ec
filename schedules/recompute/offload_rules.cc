// Which rules suit an instance nobody knows beforehand. First all ranks have the same, drawn field
// by field; then the best so far is changed in a field or a few, of one rank or of all.

#include "schedules/recompute/offload_rules.h"

#include <algorithm>
#include <array>
#include <optional>
#include <random>

#include "schedules/recompute/offload_list.h"

namespace contraflow {
namespace {

constexpr int kFields = 8;
/// More than there ever are.
constexpr int kAny = 1 << 20;
/// Share of the work for which rules are drawn anew.
constexpr int64_t kDrawnShare = 3;
/// Changes that do not help, after which it goes back to the best.
constexpr int kPatience = 400;
/// Rules that are drawn until one gives a plan, whatever the budget.
constexpr int kLeastDrawn = 64;

class RuleDraw {
 public:
  RuleDraw(const Plan& frame, uint64_t seed)
      : random_(seed), ranks_(frame.ranks), chunks_(std::max(1, frame.stages / frame.ranks)) {}

  int Below(int count) { return static_cast<int>(random_() % static_cast<uint64_t>(count)); }

  /// The same for all ranks but for `ahead`, which may grow towards the first as in 1F1B.
  std::vector<OffloadRule> All() {
    OffloadRule rule;
    for (int field = 0; field < kFields; ++field) Draw(field, &rule);
    std::vector<OffloadRule> rules(static_cast<size_t>(ranks_), rule);
    if (Below(2) == 0) return rules;
    const int times = 1 + Below(2), more = chunks_ > 1 ? ranks_ : 0;
    for (int r = 0; r < ranks_; ++r) {
      rules[static_cast<size_t>(r)].ahead = times * (ranks_ - r) + more;
    }
    return rules;
  }

  void Change(std::vector<OffloadRule>* rules) {
    for (int left = 1 + Below(3); left > 0; --left) {
      const int field = Below(kFields);
      OffloadRule drawn;
      Draw(field, &drawn);
      const bool all = Below(4) == 0;
      const auto one = static_cast<size_t>(Below(ranks_));
      for (size_t r = 0; r < rules->size(); ++r) {
        if (all || r == one) Take(field, drawn, &(*rules)[r]);
      }
    }
  }

 private:
  template <size_t size>
  int Of(const std::array<int, size>& values) {
    return values[static_cast<size_t>(Below(size))];
  }

  void Draw(int field, OffloadRule* rule) {
    switch (field) {
      case 0:
        rule->ahead = Below(3) == 0 ? kAny : 1 + Below(2 * ranks_ * chunks_ + 2);
        break;
      case 1:
        rule->kept = Below(3);
        break;
      case 2:
        rule->waiting = Of(std::array{1, 2, 3, 4, kAny});
        break;
      case 3:
        rule->waiting_f = Of(std::array{1, 2, 3, kAny});
        break;
      case 4:
        rule->lead = Of(std::array{4, 5, 6, 8, 12, 1000});
        break;
      case 5:
        rule->patience = Below(5);
        break;
      case 6:
        rule->reserves = Below(2) == 0;
        break;
      default:
        rule->sure = Below(2) == 0;
    }
  }

  static void Take(int field, const OffloadRule& from, OffloadRule* rule) {
    if (field == 0) rule->ahead = from.ahead;
    if (field == 1) rule->kept = from.kept;
    if (field == 2) rule->waiting = from.waiting;
    if (field == 3) rule->waiting_f = from.waiting_f;
    if (field == 4) rule->lead = from.lead;
    if (field == 5) rule->patience = from.patience;
    if (field == 6) rule->reserves = from.reserves;
    if (field == 7) rule->sure = from.sure;
  }

  std::mt19937_64 random_;
  int ranks_, chunks_;
};

}  // namespace

Plan SearchOffloadRules(const Plan& frame, const CostModel& costs,
                        const std::vector<int64_t>& limits, Time bound, uint64_t seed,
                        SearchWork* work) {
  OffloadList list(frame, costs, limits);
  RuleDraw draw(frame, seed);
  std::vector<OffloadRule> best_rules, current_rules;
  std::optional<Time> best, current;
  Plan plan = frame;
  plan.programs.clear();
  const int64_t all = work->left();
  int in_vain = 0, drawn_at_least = kLeastDrawn;
  do {
    const bool drawn = !best || work->left() > all - all / kDrawnShare;
    std::vector<OffloadRule> rules = drawn ? draw.All() : current_rules;
    if (!drawn) draw.Change(&rules);
    if (!list.Run(rules)) continue;
    const Time time = list.makespan();
    if (!best || time < *best) {
      best = time;
      best_rules = rules;
      plan.programs = list.programs();
      in_vain = 0;
      if (time <= bound) break;
    } else if (!drawn && ++in_vain > kPatience) {
      in_vain = 0;
      current = best;
      current_rules = best_rules;
      continue;
    }
    const Time slack = draw.Below(8) == 0 && !drawn ? *best / 400 : 0;
    if (current && time > *current + slack) continue;
    current = time;
    current_rules = std::move(rules);
  } while (work->Spend(list.work()) || (!best && --drawn_at_least > 0));
  return plan;
}

}  // namespace contraflow
