// Ranks are taken up in the order of the times at which their lanes are free. If the end of a wait
// is not known by then, the wait is usually long enough for a weight gradient.

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "schedules/pairs/incremental_evaluator.h"
#include "schedules/pairs/pairs.h"
#include "schedules/published/bidirectional.h"
#include "schedules/published/placement.h"

namespace contraflow {
namespace {

constexpr Time kUnknown = -1;

class Filling {
 public:
  Filling(const SearchProblem& problem, const Order& order, int percent)
      : problem_(problem),
        order_(order),
        percent_(percent),
        ranks_(order.size()),
        stages_(problem.stages.size()) {
    for (size_t stage = 0; stage < stages_.size(); ++stage) {
      const auto count = static_cast<size_t>(problem.stages[stage].count);
      stages_[stage].f_end.assign(count, kUnknown);
      stages_[stage].b_end.assign(count, kUnknown);
    }
  }

  std::optional<Order> Run() {
    Order filled(order_.size());
    while (true) {
      std::optional<size_t> next;
      bool left = false;
      for (size_t r = 0; r < ranks_.size(); ++r) {
        left = left || !Ended(r);
        if (!CanAct(r) || (next && ranks_[*next].lane <= ranks_[r].lane)) continue;
        next = r;
      }
      if (!left) return filled;
      if (!next) return std::nullopt;
      Act(*next, &filled[*next]);
    }
  }

 private:
  struct Rank {
    Time lane = 0;
    size_t next = 0;
    int64_t held = 0;
    std::vector<int32_t> waiting;  // stages of the weight gradients that wait, first in first out
  };
  struct Done {
    size_t f = 0, b = 0;
    int waiting = 0;
    std::vector<Time> f_end, b_end;
  };

  Done& At(int32_t stage) { return stages_[static_cast<size_t>(stage)]; }
  const RouteStage& Of(int32_t stage) const { return problem_.stage(stage); }

  /// Skips the weight gradients of the order, since this run places them itself.
  void SkipWeights(size_t r) {
    while (ranks_[r].next < order_[r].size() && order_[r][ranks_[r].next].op == Op::W) {
      ++ranks_[r].next;
    }
  }
  bool Ended(size_t r) {
    SkipWeights(r);
    return ranks_[r].next == order_[r].size() && ranks_[r].waiting.empty();
  }

  /// When the next action has all it needs; nothing while that is not known.
  std::optional<Time> Ready(const Action& action) {
    Time ready = 0;
    if (HasForward(action.op)) {
      const RouteStage& stage = Of(action.stage);
      const size_t k = At(action.stage).f;
      if (stage.before >= 0) {
        const Time end = At(stage.before).f_end[k];
        if (end == kUnknown) return std::nullopt;
        ready = end + stage.hop;
      }
    }
    if (HasBackward(action.op)) {
      const int32_t own = BackStage(action);
      const RouteStage& stage = Of(own);
      const size_t k = At(own).b;
      const Time end = stage.after >= 0 ? At(stage.after).b_end[k] : At(own).f_end[k];
      if (end == kUnknown) return std::nullopt;
      ready = std::max(ready, end + (stage.after >= 0 ? Of(stage.after).hop : 0));
    }
    return ready;
  }

  bool CanAct(size_t r) {
    if (Ended(r)) return false;
    if (!ranks_[r].waiting.empty() || ranks_[r].next == order_[r].size()) return true;
    return Ready(order_[r][ranks_[r].next]).has_value();
  }

  /// Runs a weight gradient that waits or the next action.
  void Act(size_t r, ActionList* list) {
    Rank& rank = ranks_[r];
    if (!rank.waiting.empty()) {
      const int32_t first = rank.waiting.front();
      const Time duration = problem_.Duration({Op::W, first}, 0);
      bool weight = rank.next == order_[r].size();
      if (!weight) {
        const Action& action = order_[r][rank.next];
        const std::optional<Time> ready = Ready(action);
        const bool waits = !ready || *ready - rank.lane >= duration * percent_ / 100 + 1;
        const bool full =
            HasForward(action.op) && rank.held + problem_.Taken(action) > problem_.Room(r);
        // Weight gradients of a stage run in the order of its micro-batches.
        const bool before = action.op == Op::FB && At(action.back).waiting > 0;
        weight = waits || full || before;
      }
      if (weight) {
        rank.waiting.erase(rank.waiting.begin());
        --At(first).waiting;
        rank.lane += duration;
        rank.held -= problem_.Given({Op::W, first});
        list->push_back({Op::W, first});
        return;
      }
    }
    Action action = order_[r][rank.next++];
    if (action.op == Op::BW) action.op = Op::B;
    const Time start = std::max(rank.lane, *Ready(action));
    rank.lane = start + problem_.Duration(action, 0, 0);
    list->push_back(action);
    rank.held += problem_.Taken(action) - problem_.Given(action);
    if (HasForward(action.op)) {
      Done& done = At(action.stage);
      done.f_end[done.f++] = rank.lane;
    }
    if (!HasBackward(action.op)) return;
    const int32_t own = BackStage(action);
    Done& done = At(own);
    done.b_end[done.b++] = rank.lane;
    if (action.op == Op::FB) return;
    rank.waiting.push_back(own);
    ++done.waiting;
  }

  const SearchProblem& problem_;
  const Order& order_;
  const int percent_;
  std::vector<Rank> ranks_;
  std::vector<Done> stages_;
};

/// The last rank's first forward next to a backward becomes a pair with it.
Order WithFirstPair(const Order& order) {
  Order changed = order;
  ActionList& list = changed.back();
  for (size_t i = 0; i + 1 < list.size(); ++i) {
    if (list[i].op != Op::F || list[i + 1].op != Op::BW) continue;
    list[i] = {Op::FB, list[i].stage, list[i + 1].stage};
    list.erase(list.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    break;
  }
  return changed;
}

}  // namespace

std::optional<Order> FillGaps(const SearchProblem& problem, const Order& order, int percent) {
  if (!IncrementalEvaluator::Takes(problem)) return std::nullopt;
  return Filling(problem, order, percent).Run();
}

std::optional<Order> ScheduleInPhases(const SearchProblem& problem) {
  const std::optional<Order> phases = PhaseOrder(problem);
  if (!phases) return std::nullopt;
  std::optional<Order> best;
  Time least = std::numeric_limits<Time>::max();
  const auto offer = [&](std::optional<Order> order) {
    if (!order) return;
    const std::optional<IncrementalEvaluator> run = IncrementalEvaluator::Of(problem, *order);
    if (!run || run->makespan() >= least) return;
    least = run->makespan();
    best = std::move(order);
  };
  for (const Order& order : {*phases, WithFirstPair(*phases)}) {
    offer(order);
    for (const int percent : {0, 50, 100}) offer(FillGaps(problem, order, percent));
  }
  return best;
}

std::optional<Order> UnlimitedPhases(const SearchProblem& problem) {
  const Plan& frame = problem.frame;
  if (frame.routes.size() != 1 || frame.routes[0].ranks != VPlacement(frame.ranks)) {
    return std::nullopt;
  }
  const int ranks = frame.ranks;
  if (frame.microbatches < 2 * ranks) return std::nullopt;
  Plan plan = frame;
  for (int r = 0; r < ranks; ++r) {
    plan.program(r) = BidirectionalProgram(RankOfV(ranks, frame.microbatches, r));
  }
  return ToOrder(problem, plan);
}

std::optional<Order> PhaseOrder(const SearchProblem& problem) {
  std::optional<Order> order = UnlimitedPhases(problem);
  if (!order || !IncrementalEvaluator::Of(problem, *order)) return std::nullopt;
  return order;
}

}  // namespace contraflow
