// Threshold accepting (Dueck and Scheuer 1990): a change is kept unless it makes the order longer
// by more than a threshold that is drawn below a bound which sinks as the work is spent. Integers
// only, so that every machine goes the same way.

#include <algorithm>
#include <limits>
#include <random>
#include <utility>

#include "compiler/plan/error.h"
#include "schedules/pairs/incremental_evaluator.h"
#include "schedules/pairs/pairs.h"

namespace contraflow {
namespace {

constexpr int64_t kHeatSteps = 1024;
/// Part of the budget that lists may take.
constexpr int64_t kListShare = 4;

class PairAnnealing {
 public:
  /// `best` runs and fits.
  PairAnnealing(const SearchProblem& problem, IncrementalEvaluator run, Time bound, uint64_t seed,
                SearchWork* work, SearchResult* best)
      : run_(std::move(run)), bound_(bound), random_(seed), work_(work), best_(best) {
    for (const RouteStage& stage : problem.stages) longest_ = std::max(longest_, stage.cost.f);
  }

  void Run(int64_t budget, Time hottest) {
    const int64_t end = work_->left() - budget;
    while (best_->makespan > bound_) {
      const int64_t left = std::max<int64_t>(work_->left() - end, 0);
      if (left == 0) return;
      const int64_t part = left / (budget / kHeatSteps + 1);
      const Time heat = hottest * part / kHeatSteps * part / kHeatSteps;
      for (int i = 0; i < 32; ++i) Step(heat);
      if (!work_->Spend(run_.TakeWork() + 64)) return;
    }
  }

 private:
  void Step(Time heat) {
    const size_t r = Draw(&random_, run_.ranks());
    const std::optional<PairMove> move = DrawMove(run_.list(r), &random_);
    if (!move || !run_.Fits(r, move->from, move->to, move->piece)) return;
    // Small thresholds are more likely than large ones.
    const auto draw = [&] { return static_cast<Time>(Draw(&random_, 1 << 20)); };
    const Time threshold = heat * draw() / (1 << 20) * draw() / (1 << 20);
    const auto ranks = static_cast<Time>(run_.ranks());
    const Time most = run_.cost() + threshold * ranks * 2;
    const Time most_makespan = run_.makespan() + threshold + longest_ / 4;
    const std::optional<Time> cost = run_.Try(r, move->from, move->to, move->piece, most_makespan);
    if (!cost || *cost > most) return;
    run_.Commit();
    if (run_.makespan() < best_->makespan) {
      best_->makespan = run_.makespan();
      best_->order = run_.TakeOrder();
      if (bound_ > 0) work_->Found(best_->makespan, bound_);  // else of another problem
    }
  }

  IncrementalEvaluator run_;
  const Time bound_;
  std::mt19937_64 random_;
  SearchWork* work_;
  SearchResult* best_;
  Time longest_ = 0;
};

/// A few rounds on one problem: each from the best so far, with an end of its own.
void Anneal(const SearchProblem& problem, Time bound, uint64_t seed, int64_t budget, int rounds,
            SearchWork* work, SearchResult* best) {
  Time hottest = 0;
  for (const RouteStage& stage : problem.stages) {
    hottest = std::max(hottest, (stage.cost.f + stage.cost.b) / 64);
  }
  const SearchResult start = *best;
  for (int round = 0; round < rounds && best->makespan > bound && !work->spent(); ++round) {
    // Half of the rounds begin anew, so that one bad turn does not decide.
    const bool anew = 2 * round < rounds;
    SearchResult found = anew ? start : *best;
    std::optional<IncrementalEvaluator> run = IncrementalEvaluator::Of(problem, found.order);
    if (!run) return;
    found.makespan = run->makespan();
    // Some local minima need a large move to escape.
    const Time heat = !anew ? hottest / 3 : round == 0 ? hottest : 4 * hottest;
    PairAnnealing(problem, std::move(*run), bound, seed + static_cast<uint64_t>(round), work,
                  &found)
        .Run(budget / rounds, heat);
    if (found.makespan < best->makespan) *best = found;
  }
}

/// Returns nothing where the order does not run or fit.
std::optional<Time> MakespanOf(const SearchProblem& problem, const Order& order) {
  const std::optional<IncrementalEvaluator> run = IncrementalEvaluator::Of(problem, order);
  if (!run) return std::nullopt;
  return run->makespan();
}

/// Takes an order that runs, fits and is shorter.
void Offer(const SearchProblem& problem, Order order, SearchResult* best) {
  const std::optional<Time> makespan = MakespanOf(problem, order);
  if (!makespan || *makespan >= best->makespan) return;
  best->order = std::move(order);
  best->makespan = *makespan;
}

/// An order to begin with: DualPipe's, with its gaps filled if the budget allows, or of lists.
std::optional<Order> Begin(const SearchProblem& problem, int64_t budget, SearchWork* work) {
  const int64_t effort = problem.chunks() * static_cast<int64_t>(problem.stages_of.size());
  const bool filled = effort <= budget / 4;
  if (filled) work->Spend(effort);
  std::optional<Order> phases = filled ? ScheduleInPhases(problem) : PhaseOrder(problem);
  std::optional<Order> lists = ListPairs(problem, budget / kListShare, work);
  if (!phases || !lists) return phases ? phases : lists;
  return *MakespanOf(problem, *lists) < *MakespanOf(problem, *phases) ? lists : phases;
}

/// Takes what a half's order unfolds to, if it is shorter.
void OfferUnfolded(const SearchProblem& problem, const Order& half, SearchResult* best) {
  Order order = UnfoldOrder(problem, half);
  const Evaluation evaluation = Evaluate(problem, order);
  CF_ASSERT(evaluation.runs && evaluation.fits);
  if (evaluation.makespan >= best->makespan) return;
  best->order = std::move(order);
  best->makespan = evaluation.makespan;
}

/// The first half of an order as one of the folded problem; without an order where that does not
/// run or fit.
SearchResult HalfOf(const SearchProblem& problem, const SearchProblem& folded,
                    const SearchResult& whole) {
  SearchResult half = {{}, std::numeric_limits<Time>::max(), whole.from};
  Offer(folded, FoldOrder(problem, whole.order), &half);
  return half;
}

/// From DualPipe's order, one of lists, or `best` where that is shorter; of two mirrored routes, as
/// one on half of the ranks.
void ImproveFromPhases(const SearchProblem& problem, const std::optional<SearchProblem>& folded,
                       Time bound, uint64_t seed, int64_t budget, SearchWork* work,
                       SearchResult* best) {
  const SearchProblem& searched = folded ? *folded : problem;
  const int64_t end = work->left() - budget;
  SearchResult half;
  if (folded) half = HalfOf(problem, *folded, *best);
  SearchResult* const found = folded ? &half : best;
  if (std::optional<Order> order = Begin(searched, budget, work)) {
    Offer(searched, std::move(*order), found);
  }
  const int64_t left = std::max<int64_t>(work->left() - end, 0);
  // No mirrored order fits.
  if (found->order.empty()) return Anneal(problem, bound, seed, left, 4, work, best);
  Anneal(searched, bound, seed, left, 4, work, found);
  if (folded) OfferUnfolded(problem, found->order, best);
}

/// From DualPipe's order with fewer micro-batches in flight; of two routes either each with its
/// own, or mirrored. False where neither gets shorter than `best` soon.
bool ImproveThinned(const SearchProblem& problem, const std::optional<SearchProblem>& folded,
                    Time bound, uint64_t seed, int64_t budget, SearchWork* work,
                    SearchResult* best) {
  const int64_t end = work->left() - budget;
  const Time before = best->makespan;
  SearchResult mirrored = *best;
  if (std::optional<Order> order = ThinnedPhases(problem, before, budget / 3, work)) {
    Offer(problem, std::move(*order), best);
  }
  if (folded) {
    if (std::optional<Order> half = ThinnedPhases(*folded, best->makespan, budget / 3, work)) {
      mirrored.makespan = *MakespanOf(*folded, *half);
      mirrored.order = std::move(*half);
    }
  }
  if (std::min(mirrored.makespan, best->makespan) >= before) return false;
  const int64_t rest = std::max<int64_t>(work->left() - end, 0);
  if (mirrored.makespan < best->makespan) {
    Anneal(*folded, bound, seed, rest, 4, work, &mirrored);
    OfferUnfolded(problem, mirrored.order, best);
  } else {
    Anneal(problem, bound, seed, rest, 4, work, best);
  }
  return true;
}

}  // namespace

std::optional<SearchResult> ImprovePairs(const SearchProblem& problem, Time bound, uint64_t seed,
                                         int64_t budget, SearchWork* work, SearchResult* best) {
  if (!IncrementalEvaluator::Takes(problem) || best->makespan <= bound) return std::nullopt;
  work->Enter("pairs");
  SearchResult thinned = *best;
  const Time before = best->makespan;
  const std::optional<SearchProblem> folded = Fold(problem);
  const bool tight = !PhaseOrder(folded ? *folded : problem) &&
                     ImproveThinned(problem, folded, bound, seed, budget / 2, work, &thinned);
  if (tight) budget /= 2;
  ImproveFromPhases(problem, folded, bound, seed, budget * 9 / 10, work, best);
  Anneal(problem, bound, seed, budget / 10, 1, work, best);
  if (best->makespan < before) best->from = "pairs from " + best->from;
  if (!tight) return std::nullopt;
  thinned.from = "fewer pairs from " + thinned.from;
  return thinned;
}

void GoOnWithPairs(const SearchProblem& problem, Time bound, uint64_t seed, int64_t budget,
                   SearchWork* work, SearchResult* best) {
  if (!IncrementalEvaluator::Takes(problem) || best->makespan <= bound) return;
  work->Enter("pairs");
  const Time before = best->makespan;
  const int64_t end = work->left() - budget;
  const std::optional<SearchProblem> folded = Fold(problem);
  if (folded) {
    SearchResult half = HalfOf(problem, *folded, *best);
    if (!half.order.empty()) {
      Anneal(*folded, bound, seed, budget / 2, 2, work, &half);
      OfferUnfolded(problem, half.order, best);
    }
  }
  Anneal(problem, bound, seed, std::max<int64_t>(work->left() - end, 0), 2, work, best);
  if (best->makespan < before) best->from = "pairs from " + best->from;
}

}  // namespace contraflow
