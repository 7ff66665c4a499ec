// DualPipe holds one activation more than it has ranks, all of the time. If memory is shorter by a
// share, a schedule has to do without that share of the micro-batches in flight: so the order is
// made for more micro-batches than there are, and every n-th of them are left out. The rest runs as
// before, and no rank ever holds all that it would.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "schedules/pairs/incremental_evaluator.h"
#include "schedules/pairs/pairs.h"

namespace contraflow {
namespace {

/// Places of the first that is left out, of its distance to the next.
constexpr int kOffsets = 8;
/// Most that are left out, for each that stays.
constexpr int kMostLeftOut = 4;

/// Micro-batches by route and number: true for those to leave out.
using LeftOut = std::vector<std::vector<bool>>;

/// `left_out` of `count`, evenly spread over all but the last `tail`: these must be enough.
std::vector<bool> Spread(int count, int left_out, int offset, int tail) {
  std::vector<bool> out(static_cast<size_t>(count), false);
  const int64_t among = count - tail;
  for (int64_t i = 0; i < left_out; ++i) {
    out[static_cast<size_t>((kOffsets * i + offset) * among / (int64_t{kOffsets} * left_out))] =
        true;
  }
  return out;
}

/// The order without these micro-batches: a pair that loses a half becomes the other half.
Order Without(const SearchProblem& more, const Order& order, const LeftOut& left_out) {
  StageCounts counts(more.stages.size());
  const auto out = [&](int32_t stage, int32_t k) {
    return left_out[static_cast<size_t>(more.stage(stage).route)][static_cast<size_t>(k)];
  };
  Order thinned(order.size());
  for (size_t r = 0; r < order.size(); ++r) {
    for (const Action& action : order[r]) {
      const int32_t back = BackStage(action);
      const bool forward = HasForward(action.op) && !out(action.stage, counts[action.stage].f);
      const int32_t done = HasBackward(action.op) ? counts[back].b : counts[back].w;
      const bool backward = (HasBackward(action.op) || HasWeight(action.op)) && !out(back, done);
      counts.Pass(action);
      if (action.op != Op::FB) {
        if (forward || backward) thinned[r].push_back(action);
      } else if (forward && backward) {
        thinned[r].push_back(action);
      } else if (forward) {
        thinned[r].push_back({Op::F, action.stage});
      } else if (backward) {
        thinned[r].push_back({Op::BW, back});
      }
    }
  }
  return thinned;
}

/// Returns UnlimitedPhases, unfolded if the problem was folded.
std::optional<Order> PhasesOf(const SearchProblem& problem) {
  if (problem.frame.routes.size() == 1) return UnlimitedPhases(problem);
  const std::optional<SearchProblem> folded = Fold(problem);
  if (!folded) return std::nullopt;
  const std::optional<Order> half = UnlimitedPhases(*folded);
  if (!half) return std::nullopt;
  return UnfoldOrder(problem, *half);
}

bool Fits(const SearchProblem& problem, const Order& order) {
  for (size_t r = 0; r < order.size(); ++r) {
    int64_t held = 0;
    for (const Action& action : order[r]) {
      held += problem.Taken(action);
      if (held > problem.Room(r)) return false;
      held -= problem.Given(action);
    }
  }
  return true;
}

class Thinner {
 public:
  /// The problem has a limit.
  Thinner(const SearchProblem& problem, int64_t budget, SearchWork* work)
      : problem_(problem),
        count_(problem.stages.front().count),
        two_(problem.frame.routes.size() > 1),
        spread_end_(std::max<int64_t>(work->left() - budget / 4, 0)),
        end_(std::max<int64_t>(work->left() - budget, 0)),
        work_(*work) {}

  std::optional<Order> Run(Time below) {
    const int ranks = problem_.frame.ranks;
    int fewest = FewestSpread();
    if (fewest == 0) return std::nullopt;
    for (const int tail : {0, ranks / 2, ranks}) {
      if (tail > count_) break;
      for (int offset = 0; offset < kOffsets; offset += two_ ? kOffsets / 2 : 1) {
        for (int other = 0; other < (two_ ? kOffsets : 1); ++other) {
          if (work_.left() <= spread_end_) break;
          // The fewer are left out, the shorter is the order.
          while (fewest > 1 && TryAll(SpreadOut(fewest - 1, offset, other, tail))) --fewest;
          TryAll(SpreadOut(fewest, offset, other, tail));
        }
      }
    }
    if (least_ < below) Move();
    return std::move(best_);
  }

 private:
  LeftOut SpreadOut(int left_out, int offset, int other, int tail) const {
    LeftOut out = {Spread(count_ + left_out, left_out, offset, tail)};
    if (two_) out.push_back(Spread(count_ + left_out, left_out, other, tail));
    return out;
  }

  /// How many must be left out where they are spread evenly from the first on, which is tried; 0 if
  /// nothing helps.
  int FewestSpread() {
    int none = 0, enough = 1;  // none: too few
    while (!Thinned(SpreadOut(enough, 0, 0, 0))) {
      none = enough;
      enough *= 2;
      if (enough > kMostLeftOut * count_) return 0;
    }
    while (enough - none > 1) {
      const int middle = none + (enough - none) / 2;
      (Thinned(SpreadOut(middle, 0, 0, 0)) ? enough : none) = middle;
    }
    return TryAll(SpreadOut(enough, 0, 0, 0)) ? enough : 0;
  }

  /// Moves single ones, as long as the order gets no longer.
  void Move() {
    std::mt19937_64 random(3);
    while (work_.left() > end_) {
      LeftOut out = best_out_;
      std::vector<bool>& route = out[Draw(&random, out.size())];
      const auto from = static_cast<size_t>(
          std::find(route.begin() + static_cast<ptrdiff_t>(Draw(&random, route.size())),
                    route.end(), true) -
          route.begin());
      const size_t by = 1 + Draw(&random, Draw(&random, 4) == 0 ? route.size() : 3);
      const size_t to = Draw(&random, 2) == 0 ? from - std::min(from, by) : from + by;
      if (from == route.size() || to >= route.size() || route[to]) {
        work_.Spend(1);
        continue;
      }
      route[from] = false;
      route[to] = true;
      TryAll(out);
    }
  }

  /// Returns nothing where it does not fit.
  std::optional<Order> Thinned(const LeftOut& out) {
    const int count = static_cast<int>(out.front().size());
    if (!more_ || more_->stages.front().count != count) {
      more_ = WithCount(problem_, count);
      phases_ = PhasesOf(*more_);
      if (phases_) work_.Spend(ActionCount(*phases_));
    }
    if (!phases_) return std::nullopt;
    Order thinned = Without(*more_, *phases_, out);
    work_.Spend(ActionCount(thinned));
    if (!Fits(problem_, thinned)) return std::nullopt;
    return thinned;
  }

  /// With weight gradients where they are and where there are gaps; true if it fits.
  bool TryAll(const LeftOut& out) {
    const std::optional<Order> thinned = Thinned(out);
    if (!thinned) return false;
    Try(*thinned, out);
    for (const int percent : {0, 100}) {
      if (std::optional<Order> filled = FillGaps(problem_, *thinned, percent)) {
        Try(std::move(*filled), out);
      }
    }
    return true;
  }

  void Try(Order order, const LeftOut& out) {
    work_.Spend(2 * ActionCount(order));
    const std::optional<IncrementalEvaluator> run = IncrementalEvaluator::Of(problem_, order);
    if (!run || (best_ && run->cost() > cost_)) return;
    cost_ = run->cost();
    least_ = run->makespan();
    best_ = std::move(order);
    best_out_ = out;
  }

  const SearchProblem& problem_;
  const int count_;
  const bool two_;
  const int64_t spread_end_, end_;  // of the work
  SearchWork& work_;
  std::optional<SearchProblem> more_;  // with those to leave out
  std::optional<Order> phases_;        // of it
  std::optional<Order> best_;
  LeftOut best_out_;
  Time cost_ = 0, least_ = 0;
};

}  // namespace

std::optional<Order> ThinnedPhases(const SearchProblem& problem, Time below, int64_t budget,
                                   SearchWork* work) {
  if (!problem.limit || !IncrementalEvaluator::Takes(problem)) return std::nullopt;
  // Routes with unlike numbers of micro-batches are no mirror images.
  if (problem.frame.routes.size() > 1 && !Fold(problem)) return std::nullopt;
  return Thinner(problem, budget, work).Run(below);
}

}  // namespace contraflow
