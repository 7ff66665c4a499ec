// Simulated annealing on the orders of the ranks. A move takes one token to another place of its
// rank's word. What makes it fast: most moves are refused by an estimate of the longest path
// through what they touch, and of those that are tried only what changes is computed again
// (schedules/order_graph.h).

#include "schedules/local_search.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "schedules/order_graph.h"

namespace contraflow {
namespace {

/// Proposals between two looks at the clock, and what one of them counts in instructions.
constexpr int64_t kBatch = 64, kPerProposal = 2;
/// Farthest that a token goes in one move.
constexpr int kFar = 20, kNear = 3;
/// Tries to find a token on a longest path.
constexpr int kTries = 8;

class Annealing {
 public:
  Annealing(const SearchProblem& problem, Time bound, uint64_t seed, SearchWork* work, Found* best)
      : graph_(problem, best->order), bound_(bound), random_(seed), work_(work), best_(best) {
    for (int r = 0; r < graph_.ranks(); ++r) {
      for (int place = 0; place < graph_.length(r); ++place) places_.emplace_back(r, place);
    }
    Time sum = 0;
    for (const Line& line : problem.lines) {
      sum += line.cost.f / 3 + line.cost.b / 3 + line.cost.w / 3;
    }
    // At first a step may become longer by a fiftieth of an instruction or so, in the end not.
    hottest_ = sum / static_cast<Time>(problem.lines.size()) / 50;
  }

  void Run(int64_t budget) {
    cost_ = Cost();
    int64_t left = budget;
    while (best_->makespan > bound_ && left > 0) {
      const int64_t spent = graph_.TakeWork() + kBatch * kPerProposal;
      left -= spent;
      if (!work_->Spend(spent)) return;
      // In 1024ths, so that no product overflows.
      const int64_t share = std::max<int64_t>(left, 0) / (budget / 1024 + 1);
      heat_ = hottest_ * share / 1024 * share / 1024;
      for (int64_t i = 0; i < kBatch && best_->makespan > bound_; ++i) Try();
    }
  }

 private:
  int Below(size_t count) { return static_cast<int>(random_() % count); }

  /// The mean end of the ranks decides between steps of the same length: without it there is no
  /// way down from where several longest paths are equally long.
  Time Cost() const { return graph_.makespan() + 3 * graph_.rank_ends() / (10 * graph_.ranks()); }

  /// How much worse a move may make it: about exponentially distributed, in integers only.
  Time Threshold() {
    const uint64_t bits = random_();
    const int halvings = std::countr_zero(bits | uint64_t{1} << 32);
    const auto fraction = static_cast<Time>(bits >> 48);
    return (heat_ * halvings) + (heat_ / 65536 * fraction + heat_ % 65536 * fraction / 65536);
  }

  OrderGraph::Move Propose() {
    auto place = places_[static_cast<size_t>(Below(places_.size()))];
    // A step gets shorter only by what its longest paths run through.
    if (random_() % 2 == 0) {
      for (int i = 0; i < kTries && graph_.Through(place.first, place.second) < graph_.makespan();
           ++i) {
        place = places_[static_cast<size_t>(Below(places_.size()))];
      }
    }
    const auto [rank, from] = place;
    const int distance = 1 + Below(Below(3) == 0 ? kFar : kNear);
    const int to = Below(2) == 0 ? from + distance : from - distance;
    return graph_.Shorten({rank, from, std::clamp(to, 0, graph_.length(rank) - 1)});
  }

  void Try() {
    const OrderGraph::Move move = Propose();
    if (move.to == move.from || !graph_.Fits(move)) return;
    const Time threshold = Threshold();
    if (graph_.Estimate(move) > graph_.makespan() + threshold) return;
    if (!graph_.Apply(move)) return;
    const Time cost = Cost();
    if (cost > cost_ + threshold) {
      graph_.TakeBack();
      return;
    }
    graph_.Keep();
    cost_ = cost;
    if (graph_.makespan() >= best_->makespan) return;
    best_->makespan = graph_.makespan();
    best_->order = graph_.ToOrder();
    work_->Found(best_->makespan, bound_);
  }

  OrderGraph graph_;
  const Time bound_;
  std::mt19937_64 random_;
  SearchWork* const work_;
  Found* const best_;
  std::vector<std::pair<int, int>> places_;
  Time hottest_ = 0, heat_ = 0, cost_ = 0;
};

}  // namespace

void ImproveWithin(const SearchProblem& problem, Time bound, uint64_t seed, int64_t budget,
                   SearchWork* work, Found* best) {
  if (best->makespan <= bound || work->spent() || !OrderGraph::Exact(problem)) return;
  // Room for sums over all ranks; no real costs come near.
  const auto ranks = static_cast<Time>(best->order.size());
  if (best->makespan > std::numeric_limits<Time>::max() / (64 * ranks)) return;
  work->Enter("local search");
  const Time before = best->makespan;
  Annealing(problem, bound, seed, work, best).Run(budget);
  if (best->makespan < before) best->from = "local search from " + best->from;
}

void ImproveLocally(const SearchProblem& problem, Time bound, uint64_t seed, SearchWork* work,
                    Found* best) {
  ImproveWithin(problem, bound, seed, work->left(), work, best);
}

}  // namespace contraflow
