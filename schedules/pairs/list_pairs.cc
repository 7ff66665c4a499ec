// List scheduling with pairs. Event-driven: a rank that is free runs the pair that saves most of
// the forwards and backwards that have come to it; with only one of both it may wait for the other,
// or runs it alone; without either it waits, and weight gradients fill the gaps. One setting after
// the other is changed as long as that makes the order shorter.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "schedules/pairs/incremental_evaluator.h"
#include "schedules/pairs/pairs.h"
#include "schedules/search/list_scheduler.h"
#include "schedules/search/policy.h"

namespace contraflow {
namespace {

constexpr Time kNever = RankQueue::kNever;

/// How a rank decides. Percentages are whole numbers, so that every machine decides alike.
struct Rule {
  int wait = 0;    ///< for the other half of a pair, at most this percentage of what it saves
  int fill = 100;  ///< a gap is filled from this percentage of a weight gradient on
  int fused = 0;   ///< backwards in no pair run with their weight gradient
  int forward = 0, backward = 0;  ///< of equals the stage that is deepest (0), or shallowest
};

struct Settings {
  std::vector<Rule> ranks;
  /// Micro-batches between F and B of each stage up to which a forward runs in no pair.
  std::vector<int32_t> ahead;
};

/// One entry of a rule, and what it may be.
struct Choice {
  int Rule::*of;
  std::vector<int> values;
};
const Choice kChoices[] = {{&Rule::wait, {0, 25, 50, 75, 100}},
                           {&Rule::fused, {0, 1}},
                           {&Rule::fill, {0, 50, 100}},
                           {&Rule::forward, {0, 1}},
                           {&Rule::backward, {0, 1}}};
/// Policy::ahead, of the lag.
constexpr int kAhead[] = {150, 250, 100, 400, 200, 125, 300, 175, 0};
/// Settings of single ranks and stages that are tried in a row without a gain.
constexpr int kMostInVain = 300;

class PairLists {
 public:
  PairLists(const SearchProblem& problem, const Settings& settings)
      : problem_(problem),
        settings_(settings),
        ranks_(problem.stages_of.size()),
        stages_(problem.stages.size()),
        order_(ranks_.size()) {
    for (size_t i = 0; i < stages_.size(); ++i) {
      const auto count = static_cast<size_t>(problem.stages[i].count);
      stages_[i].f_in.assign(count, 0);
      stages_[i].b_in.assign(count, 0);
      if (problem.stages[i].before < 0) stages_[i].forwards = count;
      left_ += 2 * count;
    }
    for (size_t r = 0; r < ranks_.size(); ++r) ranks_[r].rule = settings.ranks[r];
    queue_.Reset(ranks_.size());
  }

  /// Returns nothing where memory brings it to a standstill.
  std::optional<Order> Run() {
    while (queue_.first_time() != kNever) Decide(queue_.first(), queue_.first_time());
    if (left_ > 0) return std::nullopt;
    return std::move(order_);
  }

  /// Ends of the last run: of the last rank, and of all.
  std::pair<Time, Time> ends() const {
    Time last = 0, sum = 0;
    for (const Rank& rank : ranks_) {
      last = std::max(last, rank.last);
      sum += rank.last;
    }
    return {last, sum};
  }

 private:
  struct Rank {
    Rule rule;
    bool idle = true;
    Time last = 0;
    int64_t held = 0;
    std::vector<int32_t> weights;  // stages of those that wait, first in first out
  };
  struct Stage {
    size_t forwards = 0, backwards = 0;  // that have come, or are on their way
    size_t f = 0, b = 0;                 // started
    int weights = 0;                     // that wait
    std::vector<Time> f_in, b_in;
  };
  /// Chunks that a rank could run now, and when more come.
  struct Ready {
    int32_t forward = -1, backward = -1;
    Time next_forward = kNever, next_backward = kNever;
  };

  Stage& At(int32_t stage) { return stages_[static_cast<size_t>(stage)]; }
  const Stage& At(int32_t stage) const { return stages_[static_cast<size_t>(stage)]; }

  Time Saving(int32_t forward, int32_t backward) const {
    return problem_.Duration({Op::F, forward}, 0) + problem_.Duration({Op::BW, backward}, 0) -
           problem_.Duration({Op::FB, forward, backward}, 0, 0);
  }

  bool HasRoom(const Rank& rank, int32_t stage) const {
    const RouteStage& of = problem_.stage(stage);
    return rank.held + of.memory.activation <= problem_.Room(static_cast<size_t>(of.rank));
  }

  /// The most that a pair of a forward and a backward that are there saves, and these.
  Time BestPair(size_t r, Time now, Ready* ready) const {
    Time most = 0;
    for (const int x : problem_.stages_of[r]) {
      if (!Came(x, true, now) || !HasRoom(ranks_[r], x)) continue;
      for (const int y : problem_.stages_of[r]) {
        if (!Came(y, false, now)) continue;
        const Time saving = Saving(x, y);
        if (saving < most || saving == 0) continue;
        if (saving == most && !Precedes(x, ready->forward, ranks_[r].rule.forward)) continue;
        most = saving;
        ready->forward = x;
        ready->backward = y;
      }
    }
    return most;
  }

  bool Came(int32_t stage, bool forward, Time now) const {
    const Stage& at = At(stage);
    return forward ? at.f < at.forwards && at.f_in[at.f] <= now
                   : at.b < at.backwards && at.b_in[at.b] <= now;
  }

  bool Precedes(int32_t a, int32_t b, int pick) const {
    if (b < 0) return true;
    const int x = problem_.stage(a).number, y = problem_.stage(b).number;
    return pick == 0 ? x > y : x < y;
  }

  /// The forward and the backward that would run alone.
  Ready Singles(size_t r, Time now) const {
    const Rule& rule = ranks_[r].rule;
    Ready ready;
    for (const int s : problem_.stages_of[r]) {
      const Stage& at = At(s);
      if (Came(s, true, now)) {
        const bool below =
            at.f < at.b + static_cast<size_t>(settings_.ahead[static_cast<size_t>(s)]);
        if (below && HasRoom(ranks_[r], s) && Precedes(s, ready.forward, rule.forward)) {
          ready.forward = s;
        }
      } else if (at.f < at.forwards) {
        ready.next_forward = std::min(ready.next_forward, at.f_in[at.f]);
      }
      if (Came(s, false, now)) {
        if (Precedes(s, ready.backward, rule.backward)) ready.backward = s;
      } else if (at.b < at.backwards) {
        ready.next_backward = std::min(ready.next_backward, at.b_in[at.b]);
      }
    }
    return ready;
  }

  /// The most that a pair saves of this half, with any other of the rank.
  Time MostSaved(size_t r, int32_t stage, bool forward) const {
    Time most = 0;
    for (const int other : problem_.stages_of[r]) {
      most = std::max(most, forward ? Saving(stage, other) : Saving(other, stage));
    }
    return most;
  }

  void Decide(int r, Time now) {
    const auto at = static_cast<size_t>(r);
    Rank& rank = ranks_[at];
    rank.idle = true;
    Ready pair;
    if (BestPair(at, now, &pair) > 0) {
      // Weight gradients of a stage run in the order of its micro-batches.
      if (At(pair.backward).weights > 0) return RunWeight(r, now, pair.backward);
      return Start(r, now, {Op::FB, pair.forward, pair.backward});
    }
    const Ready ready = Singles(at, now);
    const Time next = std::min(ready.next_forward, ready.next_backward);
    const auto waits = [&](int32_t stage, bool forward, Time other) {
      return other != kNever && rank.rule.wait > 0 &&
             other - now <= MostSaved(at, stage, forward) * rank.rule.wait / 100;
    };
    if (ready.backward >= 0 && !waits(ready.backward, false, ready.next_forward)) {
      const bool fused = rank.rule.fused != 0 && At(ready.backward).weights == 0;
      return Start(r, now, {fused ? Op::BW : Op::B, ready.backward});
    }
    if (ready.backward < 0 && ready.forward >= 0 &&
        !waits(ready.forward, true, ready.next_backward)) {
      return Start(r, now, {Op::F, ready.forward});
    }
    if (!rank.weights.empty()) {
      const int32_t first = rank.weights.front();
      const Time duration = problem_.Duration({Op::W, first}, 0);
      if (next == kNever || next - now >= duration * rank.rule.fill / 100) {
        return RunWeight(r, now, first);
      }
    }
    queue_.Set(r, next);
  }

  void RunWeight(int r, Time now, int32_t stage) {
    std::vector<int32_t>& weights = ranks_[static_cast<size_t>(r)].weights;
    weights.erase(std::ranges::find(weights, stage));
    --At(stage).weights;
    Start(r, now, {Op::W, stage});
  }

  void Start(int r, Time now, const Action& action) {
    Rank& rank = ranks_[static_cast<size_t>(r)];
    rank.idle = false;
    const Time end = now + problem_.Duration(action, 0, 0);
    rank.last = end;
    queue_.Set(r, end);
    order_[static_cast<size_t>(r)].push_back(action);
    rank.held += problem_.Taken(action) - problem_.Given(action);
    if (HasForward(action.op)) {
      const RouteStage& stage = problem_.stage(action.stage);
      ++At(action.stage).f;
      --left_;
      if (stage.after < 0) {
        Stage& own = At(action.stage);
        own.b_in[own.backwards++] = end;
      } else {
        Stage& to = At(stage.after);
        Arrive(stage.after, &to.f_in[to.forwards++], end + problem_.stage(stage.after).hop);
      }
    }
    if (!HasBackward(action.op)) return;
    const int32_t back = BackStage(action);
    const RouteStage& stage = problem_.stage(back);
    ++At(back).b;
    --left_;
    if (stage.before >= 0) {
      Stage& to = At(stage.before);
      Arrive(stage.before, &to.b_in[to.backwards++], end + stage.hop);
    }
    if (action.op == Op::B) {
      rank.weights.push_back(back);
      ++At(back).weights;
    }
  }

  void Arrive(int32_t stage, Time* in, Time when) {
    *in = when;
    const int rank = problem_.stage(stage).rank;
    if (ranks_[static_cast<size_t>(rank)].idle && when < queue_.time(rank)) queue_.Set(rank, when);
  }

  const SearchProblem& problem_;
  const Settings& settings_;
  std::vector<Rank> ranks_;
  std::vector<Stage> stages_;
  Order order_;
  RankQueue queue_;
  size_t left_ = 0;  ///< forwards and backwards
};

/// Looks for settings with the shortest order.
class Tuning {
 public:
  Tuning(const SearchProblem& problem, int64_t budget, SearchWork* work)
      : problem_(problem), work_(*work), end_(work->left() - budget) {
    best_.ranks.resize(problem.stages_of.size());
  }

  std::optional<Order> Run() {
    for (const int ahead : kAhead) {
      Settings tried = best_;
      tried.ahead = RulesOf(problem_, {.ahead = ahead, .depth = Depth::kLag}).ahead;
      if (best_.ahead.empty()) best_.ahead = tried.ahead;
      Try(tried);
    }
    while (TryAll()) continue;
    std::mt19937_64 random(1);
    for (int vain = 0; order_ && vain < kMostInVain && !Done(); ++vain) {
      Settings tried = best_;
      Change(&random, &tried);
      const Time before = least_.first;
      Try(tried);
      if (least_.first < before) vain = 0;
    }
    return std::move(order_);
  }

 private:
  bool Done() const { return work_.left() <= end_; }

  /// Each rule for all ranks; true if one made the order shorter.
  bool TryAll() {
    const Time before = least_.first;
    for (const auto& [of, values] : kChoices) {
      for (const int value : values) {
        Settings tried = best_;
        for (Rule& rule : tried.ranks) rule.*of = value;
        Try(tried);
      }
    }
    return least_.first < before;
  }

  /// Some ranks next to each other, or stages.
  void Change(std::mt19937_64* random, Settings* settings) {
    for (size_t changes = 1 + Draw(random, 3); changes > 0; --changes) {
      const bool of_stages = Draw(random, 2) == 0;
      const size_t count = of_stages ? settings->ahead.size() : settings->ranks.size();
      const size_t first = Draw(random, count);
      const size_t length = Draw(random, 2) == 0 ? 1 : 1 + Draw(random, count);
      const auto& [of, values] = kChoices[Draw(random, std::size(kChoices))];
      const int value = values[Draw(random, values.size())];
      const int32_t by = Draw(random, 2) == 0 ? 1 : -1;
      for (size_t i = first; i < std::min(count, first + length); ++i) {
        if (of_stages) {
          settings->ahead[i] = std::clamp(settings->ahead[i] + by, 1, problem_.stages[i].count);
        } else {
          settings->ranks[i].*of = value;
        }
      }
    }
  }

  void Try(const Settings& settings) {
    if (order_ && Done()) return;
    work_.Spend(3 * problem_.chunks());
    PairLists lists(problem_, settings);
    std::optional<Order> order = lists.Run();
    if (!order || lists.ends() > least_) return;
    least_ = lists.ends();
    order_ = std::move(order);
    best_ = settings;
  }

  const SearchProblem& problem_;
  SearchWork& work_;
  const int64_t end_;  // of the work
  Settings best_;
  std::pair<Time, Time> least_ = {kNever, kNever};
  std::optional<Order> order_;
};

}  // namespace

std::optional<Order> ListPairs(const SearchProblem& problem, int64_t budget, SearchWork* work) {
  if (!IncrementalEvaluator::Takes(problem)) return std::nullopt;
  return Tuning(problem, budget, work).Run();
}

}  // namespace contraflow
