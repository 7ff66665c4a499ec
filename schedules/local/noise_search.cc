// Orders of the same makespan differ in how they take noise: one whose messages arrive just in time
// hands on every delay. Which is best is seen on sampled draws. Local search moves actions in
// several draws at once (the sample average of stochastic programming), and only as long as the
// order's makespan without noise does not grow.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "schedules/local/move_draw.h"
#include "schedules/local/noise.h"
#include "schedules/local/order_graph.h"
#include "schedules/local/sampled_times.h"

namespace contraflow {
namespace {

/// Draws that local search improves on, half as many where an order has more than this many
/// actions; and those that choose between its end, its start and the order that there was. No draw
/// serves two purposes, nor do those that chose the start (noise.cc).
constexpr size_t kTrained = 64;
constexpr int64_t kSmall = 1'000;
constexpr int kChosen = 40;
constexpr uint64_t kTrainSeed = 1'000'000, kChoiceSeed = 3'000'000;
/// Part of the work left that goes into the pool.
constexpr int64_t kPoolShare = 4;
/// Rounds of local search.
constexpr int kRounds = 4;
/// Above this the graphs of all draws together take too much memory.
constexpr int64_t kMostActions = 200'000;

/// Proposals from one longest path. It changes with every move that is kept, but not much.
constexpr int kUses = 8;
/// Proposals out of ten of any action at all, and of an action on the path.
constexpr int kAnywhere = 2, kOnPath = 3;

/// Draws moves that have a chance to shorten an order in some draw, the same for a seed everywhere.
class NoiseMoves : public MoveDraw {
 public:
  using MoveDraw::MoveDraw;

  /// A move for the graph as it is; from == to: none this time. It may not fit the memory, and
  /// ranks may come to wait for each other by it.
  OrderGraph::Move Next(const OrderGraph& graph, const SampledTimes& times);

 private:
  std::vector<std::pair<int, int>> path_;  // a longest one of draw_, perhaps some moves ago
  size_t draw_ = 0;
  int left_ = 0;  // uses of the path
};

OrderGraph::Move NoiseMoves::Next(const OrderGraph& graph, const SampledTimes& times) {
  const int choice = Below(10);
  const int distance = Distance();
  const bool later = Below(2) == 0;
  if (choice < kAnywhere) {
    const auto [rank, place] = Any();
    return From(graph, rank, place, later ? place + distance : place - distance, false);
  }
  if (left_-- <= 0) {
    draw_ = static_cast<size_t>(Below(times.draws()));
    times.Path(draw_, &path_);
    left_ = kUses;
  }
  const auto [rank, place] = path_[static_cast<size_t>(Below(path_.size()))];
  if (choice < kAnywhere + kOnPath) {
    return From(graph, rank, place, later ? place + distance : place - distance, false);
  }
  const int start = times.BlockStart(draw_, rank, place);
  return AtBlock(graph, rank, start, distance,
                 [&, r = rank] { return times.Sender(draw_, r, start); });
}

class SampledSearch {
 public:
  SampledSearch(const SearchProblem& problem, const Order& order, double sigma, uint64_t seed,
                uint64_t draws, SearchWork* work)
      : graph_(problem, order),
        times_(problem, graph_, sigma, draws, graph_.actions() > kSmall ? kTrained / 2 : kTrained),
        moves_(graph_, seed),
        work_(work),
        most_(graph_.makespan()),
        sum_(times_.sum()),
        least_(sum_),
        order_(order) {}

  /// The best order found on the draws it was trained on. `warm` and `cool`: shares of the heat
  /// that it begins and ends with, in 1024ths.
  Order Run(int64_t budget, int64_t warm, int64_t cool) {
    const int64_t hottest = sum_ / std::max(kLeastHottest, kHottest * graph_.actions());
    slack_ = sum_ / kSlack;
    for (int64_t left = budget; left > 0;) {
      const int64_t spent = graph_.TakeWork() / 4 + times_.TakeWork() + kBatch * kPerTry;
      left -= spent;
      if (!work_->Spend(spent)) break;
      const int64_t share = std::max<int64_t>(left, 0) / (budget / 1024 + 1);
      heat_ = hottest * (cool + (warm - cool) * share / 1024) / 1024;
      for (int64_t i = 0; i < kBatch; ++i) Try();
    }
    return order_;
  }

 private:
  static constexpr int64_t kBatch = 32, kPerTry = 3;
  /// Shares of the sum of all makespans. Amount by which one step may lengthen it at first. It is
  /// constant in instructions, since a long order has no time to recover from more. And by how much
  /// an estimate may say so of a move that is tried all the same.
  static constexpr int64_t kHottest = 10, kLeastHottest = 1'000, kSlack = 10'000;

  void Try() {
    const OrderGraph::Move move = moves_.Next(graph_, times_);
    if (move.to == move.from || !graph_.Fits(move)) return;
    if (graph_.Estimate(move) > most_) return;
    const int64_t threshold = heat_ * std::countr_zero(moves_.Bits() | uint64_t{1} << 32);
    if (times_.Worse(move) > threshold + slack_) return;
    if (!graph_.Apply(move)) return;
    if (graph_.makespan() > most_) {
      graph_.Rollback();
      return;
    }
    times_.Apply(move);
    if (times_.sum() > sum_ + threshold) {
      graph_.Rollback();
      times_.Rollback();
      return;
    }
    graph_.Commit();
    times_.Commit();
    sum_ = times_.sum();
    if (sum_ >= least_) return;
    least_ = sum_;
    order_ = graph_.ToOrder();
  }

  OrderGraph graph_;
  SampledTimes times_;
  NoiseMoves moves_;
  SearchWork* const work_;
  const Time most_;
  int64_t sum_ = 0, least_ = 0, heat_ = 0, slack_ = 0;
  Order order_;
};

}  // namespace

void LowerExpected(const SearchProblem& problem, std::span<const Plan> seeds,
                   const SearchOptions& options, SearchWork* work, SearchResult* best) {
  if (!(options.noise > 0)) return;
  work->Enter("noise");
  const int64_t actions = ActionCount(best->order);
  // Too little to tell three orders apart with, let alone to find another.
  if (work->left() < 4 * kChosen * actions) return;
  const auto expected = [&](const SearchResult& found) {
    work->Spend(actions * kChosen);
    return ExpectedMakespan(problem, found.order, options.noise, options.seed + kChoiceSeed,
                            kChosen);
  };
  Time least = expected(*best);
  const auto offer = [&](SearchResult found) {
    const Time mean = expected(found);
    if (mean >= least) return;
    least = mean;
    *best = std::move(found);
  };
  std::vector<SearchResult> pool =
      RobustCandidates(problem, seeds, *best, options, work->left() / kPoolShare, work);
  if (pool.empty()) return;
  if (actions <= kMostActions && OrderGraph::Exact(problem) && work->left() > 0) {
    // Draws are new in each round, so that no round fits the order to its own for good; which round
    // was the last that helped is told by draws that none of them sees.
    SearchResult steadied = pool.front();
    const std::string from = steadied.from;
    const int64_t share = work->left() / kRounds;
    for (int round = 0; round < kRounds && !work->spent(); ++round) {
      const auto draws = static_cast<uint64_t>(round) * 1'000;
      const int64_t left = kRounds - round;
      SampledSearch search(problem, steadied.order, options.noise,
                           options.seed + static_cast<uint64_t>(round), kTrainSeed + draws, work);
      steadied.order = search.Run(share, 1024 * left / kRounds, 1024 * (left - 1) / kRounds);
      steadied.from = from + ", steadied";
      offer(steadied);
    }
  }
  offer(std::move(pool.front()));
}

}  // namespace contraflow
