// Simulated annealing on the orders of the ranks. A move takes one action to another place of its
// rank's list. It is fast for these reasons: most moves are refused by an estimate of the longest
// path through what they touch, and of those that are tried only what changes is computed again
// (order_graph.h).

#include <algorithm>
#include <bit>
#include <cstddef>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "schedules/local/move_draw.h"
#include "schedules/local/order_graph.h"
#include "schedules/search/evaluator.h"
#include "schedules/search/search.h"

namespace contraflow {
namespace {

/// Proposals between two looks at the clock, and what one of them counts in instructions.
constexpr int64_t kBatch = 64, kPerProposal = 2;
/// Share of an instruction by which a step may become longer at first.
constexpr int64_t kCoolest = 50;
/// Instructions for each action with which the heat begins to grow, with their root, and how far.
constexpr int64_t kPerHeat = 500, kMostHeat = 12;
/// Work of an action that is laid out in a graph.
constexpr int64_t kLayout = 10;

/// The order with full backwards and pairs taken apart wherever that takes no longer: what comes
/// after them can then only come earlier, and more can be moved.
Order TakenApart(const SearchProblem& problem, const Order& order) {
  StageCounts counts(problem.stages.size());
  Order apart(order.size());
  for (size_t r = 0; r < order.size(); ++r) {
    for (const Action& action : order[r]) {
      const int32_t back = BackStage(action);
      const int k = HasForward(action.op) ? counts[action.stage].f : 0;
      const int j = HasBackward(action.op) ? counts[back].b : 0;
      counts.Pass(action);
      std::vector<Action> parts;
      if (action.op == Op::FB) parts.push_back({Op::F, action.stage});
      if (action.op == Op::FB || action.op == Op::BW) {
        parts.push_back({Op::B, back});
        parts.push_back({Op::W, back});
      }
      Time sum = 0;
      for (const Action& part : parts) sum += problem.Duration(part, part.op == Op::F ? k : j);
      if (parts.empty() || sum > problem.Duration(action, action.op == Op::FB ? k : j, j)) {
        parts.assign(1, action);
      }
      apart[r].insert(apart[r].end(), parts.begin(), parts.end());
    }
  }
  return apart;
}

/// Tries to find an action on a longest path.
constexpr int kTries = 8;
/// Proposals out of ten that start at a block of a longest path.
constexpr int kAtBlocks = 3;

/// Draws moves that have a chance to shorten an order, the same for a seed everywhere.
class MoveProposals : public MoveDraw {
 public:
  using MoveDraw::MoveDraw;

  /// A move for the graph as it is; from == to: none this time. It may not fit the memory, and
  /// ranks may come to wait for each other by it.
  OrderGraph::Move Next(const OrderGraph& graph);

 private:
  std::pair<int, int> Pick(const OrderGraph& graph, bool critical);
  OrderGraph::Move AtLongestPath(const OrderGraph& graph);
};

OrderGraph::Move MoveProposals::Next(const OrderGraph& graph) {
  if (Below(10) < kAtBlocks) return AtLongestPath(graph);
  const auto [rank, from] = Pick(graph, Below(2) == 0);
  const int distance = Distance();
  return From(graph, rank, from, Below(2) == 0 ? from + distance : from - distance, false);
}

/// Any action; `critical`: one on a longest path, if a few tries find one.
std::pair<int, int> MoveProposals::Pick(const OrderGraph& graph, bool critical) {
  auto place = Any();
  if (!critical) return place;
  for (int i = 0; i < kTries; ++i) {
    if (graph.Through(place.first, place.second) >= graph.makespan()) return place;
    place = Any();
  }
  return place;
}

OrderGraph::Move MoveProposals::AtLongestPath(const OrderGraph& graph) {
  const auto [rank, place] = Pick(graph, true);
  const int start = graph.BlockStart(rank, place);
  return AtBlock(graph, rank, start, Distance(), [&, r = rank] { return graph.Sender(r, start); });
}

/// Instructions until it has cooled down, and those after which it ends. At first a step may become
/// longer by `heat` fiftieths of an instruction or so, in the end not.
struct Round {
  int64_t cooling = 0, budget = 0;
  int64_t heat = 1;
};

class Annealing {
 public:
  Annealing(const SearchProblem& problem, Time bound, uint64_t seed, SearchWork* work,
            SearchResult* best)
      : graph_(problem, TakenApart(problem, best->order)),
        exact_(OrderGraph::Exact(problem)),
        evaluator_(problem),
        bound_(bound),
        proposals_(graph_, seed),
        work_(work),
        best_(best) {
    Time sum = 0;
    for (const RouteStage& stage : problem.stages) {
      sum += stage.cost.f + stage.cost.b + stage.cost.w;
    }
    mean_ = sum / static_cast<Time>(3 * problem.stages.size());
  }

  void Run(const Round& round) {
    Measure();
    cost_ = Cost();
    Record();
    const Time hottest = mean_ * round.heat / kCoolest;
    int64_t left = round.cooling;
    while (best_->makespan > bound_ && left > round.cooling - round.budget) {
      const int64_t spent = graph_.TakeWork() + kBatch * kPerProposal;
      left -= spent;
      if (!work_->Spend(spent)) return;
      // In 1024ths, so that no product overflows.
      const int64_t share = std::max<int64_t>(left, 0) / (round.cooling / 1024 + 1);
      heat_ = hottest * share / 1024 * share / 1024;
      for (int64_t i = 0; i < kBatch && best_->makespan > bound_; ++i) Try();
    }
  }

 private:
  /// The makespan of the order as it is. If messages queue, the graph's is a lower bound of it.
  void Measure() {
    makespan_ = graph_.makespan();
    if (exact_) return;
    makespan_ = evaluator_.Run(graph_.ToOrder()).makespan;
    work_->Spend(graph_.actions());
  }

  /// The mean end of the ranks decides between steps of the same length.
  Time Cost() const { return makespan_ + graph_.rank_ends() / (10 * graph_.ranks()); }

  /// How much worse a move may make it: about exponentially distributed, in integers only.
  Time Threshold() {
    const uint64_t bits = proposals_.Bits();
    const int halvings = std::countr_zero(bits | uint64_t{1} << 32);
    const auto fraction = static_cast<Time>(bits >> 48);
    return (heat_ * halvings) + (heat_ / 65536 * fraction + heat_ % 65536 * fraction / 65536);
  }

  void Try() {
    const OrderGraph::Move move = proposals_.Next(graph_);
    if (move.to == move.from || !graph_.Fits(move)) return;
    const Time threshold = Threshold();
    if (graph_.Estimate(move) > makespan_ + threshold) return;
    if (!graph_.Apply(move)) return;
    const Time before = makespan_;
    makespan_ = graph_.makespan();
    if (!exact_ && Cost() <= cost_ + threshold) Measure();
    const Time cost = Cost();
    if (cost > cost_ + threshold) {
      graph_.Rollback();
      makespan_ = before;
      return;
    }
    graph_.Commit();
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
  MoveProposals proposals_;
  SearchWork* const work_;
  SearchResult* const best_;
  Time mean_ = 0, heat_ = 0, cost_ = 0, makespan_ = 0;
};

/// In fiftieths of an instruction: more where there is time for many moves of each action.
int64_t HeatFor(int64_t instructions_each) {
  int64_t heat = 1;
  while (heat < kMostHeat && (heat + 1) * (heat + 1) <= instructions_each / kPerHeat) ++heat;
  return heat;
}

}  // namespace

void ImproveWithin(const SearchProblem& problem, Time bound, uint64_t seed, int64_t budget,
                   SearchWork* work, SearchResult* best) {
  if (best->makespan <= bound || work->spent()) return;
  // Room for sums over all ranks; no real costs come near.
  const auto ranks = static_cast<Time>(best->order.size());
  if (best->makespan > std::numeric_limits<Time>::max() / (256 * ranks)) return;
  // The rest must let the search look at a good part of the actions once it has laid them out.
  const int64_t layout = kLayout * ActionCount(best->order);
  if (layout > budget / 2 || !work->Spend(layout)) return;
  work->Enter("local search");
  const Time before = best->makespan;
  const int64_t heat = HeatFor((budget - layout) / ActionCount(best->order));
  if (heat == 1) {
    Annealing(problem, bound, seed, work, best).Run({budget - layout, budget - layout, 1});
  } else {
    // A hot search need not find what a cool one finds; it leaves what the cool one is stuck in.
    // Each begins with the best so far. The first cools down so slowly as if it had all of the
    // budget.
    const int64_t eighth = (budget - 3 * layout) / 8;
    const Round rounds[] = {
        {8 * eighth, 3 * eighth, 1}, {3 * eighth, 3 * eighth, heat}, {2 * eighth, 2 * eighth, 1}};
    for (const Round& round : rounds) {
      if (best->makespan <= bound || !work->Spend(layout)) break;
      Annealing(problem, bound, seed++, work, best).Run(round);
    }
  }
  // Said once, however often.
  constexpr std::string_view kPrefix = "local search from ";
  const bool said = best->from.starts_with(kPrefix);
  if (best->makespan < before && !said) best->from.insert(0, kPrefix);
}

void ImproveLocally(const SearchProblem& problem, Time bound, uint64_t seed, SearchWork* work,
                    SearchResult* best) {
  ImproveWithin(problem, bound, seed, work->left(), work, best);
}

}  // namespace contraflow
