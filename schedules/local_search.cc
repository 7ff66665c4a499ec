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

#include "schedules/evaluator.h"
#include "schedules/order_graph.h"

namespace contraflow {
namespace {

/// Proposals between two looks at the clock, and what one of them counts in instructions.
constexpr int64_t kBatch = 64, kPerProposal = 2;
/// What a token counts that is laid out in a graph.
constexpr int64_t kLayout = 10;
/// Farthest that a token goes in one move.
constexpr int kFar = 20, kNear = 3;
/// Tries to find a token on a longest path.
constexpr int kTries = 8;
/// Of ten proposals, those at the start of a block of a longest path.
constexpr int kAtBlocks = 3;

int64_t TokensOf(const Order& order) {
  int64_t tokens = 0;
  for (const Word& word : order) tokens += static_cast<int64_t>(word.size());
  return tokens;
}

/// The order with full backwards and pairs taken apart wherever that takes no longer: what comes
/// after them can then only come earlier, and more can be moved.
Order TakenApart(const SearchProblem& problem, const Order& order) {
  std::vector<int> f(problem.lines.size(), 0), b(problem.lines.size(), 0);
  Order apart(order.size());
  for (size_t r = 0; r < order.size(); ++r) {
    for (const Token& token : order[r]) {
      const int32_t back = token.op == Op::FB ? token.back : token.line;
      const int k = HasForward(token.op) ? f[static_cast<size_t>(token.line)]++ : 0;
      const int j = HasBackward(token.op) ? b[static_cast<size_t>(back)]++ : 0;
      std::vector<Token> parts;
      if (token.op == Op::FB) parts.push_back({Op::F, token.line});
      if (token.op == Op::FB || token.op == Op::BW) {
        parts.push_back({Op::B, back});
        parts.push_back({Op::W, back});
      }
      Time sum = 0;
      for (const Token& part : parts) sum += problem.Duration(part, part.op == Op::F ? k : j);
      if (parts.empty() || sum > problem.Duration(token, token.op == Op::FB ? k : j, j)) {
        parts.assign(1, token);
      }
      apart[r].insert(apart[r].end(), parts.begin(), parts.end());
    }
  }
  return apart;
}

class Annealing {
 public:
  Annealing(const SearchProblem& problem, Time bound, uint64_t seed, SearchWork* work, Found* best)
      : graph_(problem, TakenApart(problem, best->order)),
        exact_(OrderGraph::Exact(problem)),
        evaluator_(problem),
        bound_(bound),
        random_(seed),
        work_(work),
        best_(best) {
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
    Measure();
    cost_ = Cost();
    Record();
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

  /// The makespan of the order as it is. Where messages queue the graph's is a lower bound of it.
  void Measure() {
    makespan_ = graph_.makespan();
    if (exact_) return;
    makespan_ = evaluator_.Run(graph_.ToOrder()).makespan;
    work_->Spend(graph_.tokens());
  }

  /// The mean end of the ranks decides between steps of the same length.
  Time Cost() const { return makespan_ + graph_.rank_ends() / (10 * graph_.ranks()); }

  /// How much worse a move may make it: about exponentially distributed, in integers only.
  Time Threshold() {
    const uint64_t bits = random_();
    const int halvings = std::countr_zero(bits | uint64_t{1} << 32);
    const auto fraction = static_cast<Time>(bits >> 48);
    return (heat_ * halvings) + (heat_ / 65536 * fraction + heat_ % 65536 * fraction / 65536);
  }

  int Distance() { return 1 + Below(Below(3) == 0 ? kFar : kNear); }

  /// Any token; `critical`: one on a longest path, if a few tries find one.
  std::pair<int, int> Pick(bool critical) {
    auto place = places_[static_cast<size_t>(Below(places_.size()))];
    if (!critical) return place;
    for (int i = 0; i < kTries; ++i) {
      if (graph_.Through(place.first, place.second) >= graph_.makespan()) return place;
      place = places_[static_cast<size_t>(Below(places_.size()))];
    }
    return place;
  }

  /// From one place towards another. With `all_the_way`: all of it or nothing.
  OrderGraph::Move From(int rank, int from, int to, bool all_the_way) const {
    const int last = graph_.length(rank) - 1;
    const OrderGraph::Move move =
        graph_.Shorten({rank, std::clamp(from, 0, last), std::clamp(to, 0, last)});
    if (all_the_way && move.to != to) return {rank, to, to};
    return move;
  }

  OrderGraph::Move Propose() {
    if (Below(10) < kAtBlocks) return ProposeAtBlock();
    const auto [rank, from] = Pick(random_() % 2 == 0);
    const int distance = Distance();
    return From(rank, from, Below(2) == 0 ? from + distance : from - distance, false);
  }

  /// A longest path runs through blocks of tokens without gaps, from each to the next by a message.
  /// What stays inside its block changes nothing. So: what follows fills the gap before a block, or
  /// the block's message is sent earlier.
  OrderGraph::Move ProposeAtBlock() {
    const auto [rank, place] = Pick(true);
    const int start = graph_.BlockStart(rank, place);
    const int distance = Distance();
    const auto kind = random_() % 4;
    if (kind < 2) {
      const auto [sender, sent] = graph_.Sender(rank, start);
      if (sender >= 0 && kind == 0) return From(sender, sent, sent - distance, false);
      if (sender >= 0) return From(sender, sent - distance, sent, true);
    }
    if (kind == 2) return From(rank, start, start + distance, false);
    return From(rank, start + distance, start, true);
  }

  void Try() {
    const OrderGraph::Move move = Propose();
    if (move.to == move.from || !graph_.Fits(move)) return;
    const Time threshold = Threshold();
    if (graph_.Estimate(move) > makespan_ + threshold) return;
    if (!graph_.Apply(move)) return;
    const Time before = makespan_;
    makespan_ = graph_.makespan();
    if (!exact_ && Cost() <= cost_ + threshold) Measure();
    const Time cost = Cost();
    if (cost > cost_ + threshold) {
      graph_.TakeBack();
      makespan_ = before;
      return;
    }
    graph_.Keep();
    cost_ = cost;
    Record();
  }

  void Record() {
    if (makespan_ >= best_->makespan) return;
    best_->makespan = makespan_;
    best_->order = graph_.ToOrder();
    work_->Found(best_->makespan, bound_);
  }

  OrderGraph graph_;
  const bool exact_;
  Evaluator evaluator_;
  const Time bound_;
  std::mt19937_64 random_;
  SearchWork* const work_;
  Found* const best_;
  std::vector<std::pair<int, int>> places_;
  Time hottest_ = 0, heat_ = 0, cost_ = 0, makespan_ = 0;
};

}  // namespace

void ImproveWithin(const SearchProblem& problem, Time bound, uint64_t seed, int64_t budget,
                   SearchWork* work, Found* best) {
  if (best->makespan <= bound || work->spent()) return;
  // Room for sums over all ranks; no real costs come near.
  const auto ranks = static_cast<Time>(best->order.size());
  if (best->makespan > std::numeric_limits<Time>::max() / (64 * ranks)) return;
  // What is left must let the search look at a good part of the tokens once it has laid them out.
  const int64_t layout = kLayout * TokensOf(best->order);
  if (layout > budget / 2 || !work->Spend(layout)) return;
  work->Enter("local search");
  const Time before = best->makespan;
  Annealing(problem, bound, seed, work, best).Run(budget - layout);
  if (best->makespan < before) best->from = "local search from " + best->from;
}

void ImproveLocally(const SearchProblem& problem, Time bound, uint64_t seed, SearchWork* work,
                    Found* best) {
  ImproveWithin(problem, bound, seed, work->left(), work, best);
}

}  // namespace contraflow
