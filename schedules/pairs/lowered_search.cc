#include "schedules/pairs/lowered_search.h"

#include <algorithm>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "compiler/lower/sharing.h"
#include "compiler/plan/error.h"
#include "compiler/simulate/simulate.h"
#include "schedules/pairs/incremental_evaluator.h"
#include "schedules/pairs/pairs.h"
#include "schedules/search/evaluator.h"

namespace contraflow {
namespace {

constexpr int64_t kCoolings = 1024;
/// Work of a component of a shared run, in instructions of a chunk-level run.
constexpr int64_t kPerComponent = 4;

/// Ticks of all components of a stage, in the mean.
Time SerialOfStage(const CostModel& costs) {
  if (costs.moe) return SerialSum(*costs.moe);
  Time sum = 0;
  for (const MoeCost& moe : costs.stage_moe) sum += SerialSum(moe);
  return sum / std::ssize(costs.stage_moe);
}

/// Components of a stage, in the mean, each counted with all ten.
int64_t ComponentsOfStage(const CostModel& costs) {
  if (costs.moe) return int64_t{10} * costs.moe->layers_per_stage;
  int64_t layers = 0;
  for (const MoeCost& moe : costs.stage_moe) layers += moe.layers_per_stage;
  return std::max<int64_t>(1, 10 * layers / std::ssize(costs.stage_moe));
}

class LoweredSearch {
 public:
  LoweredSearch(const SearchProblem& problem, uint64_t seed, SearchWork* work)
      : problem_(problem),
        evaluator_(problem),
        shapes_(problem.costs, false),
        mirrored_(problem.frame.ranks % 2 == 0 && Fold(problem)),
        random_(seed),
        work_(work) {
    const Time typical = TypicalComponent(problem.costs);
    policy_ = {.window = 6, .free_order = true, .patience = typical / 4};
    caps_.resize(problem.stages_of.size());
    instructions_ = problem.chunks() * ComponentsOfStage(problem.costs) * kPerComponent;
  }

  /// The makespan of the shared run; nothing where an order does not run or fit, or takes so long
  /// with one chunk after the other that sharing will hardly make up for it.
  std::optional<Time> RunOf(const Order& order, Time most) {
    const Evaluation& evaluation = evaluator_.Run(order);
    work_->Spend(problem_.chunks() * 2);
    if (!evaluation.runs || !evaluation.fits || evaluation.makespan > most) return std::nullopt;
    serial_ = evaluation.makespan;
    for (size_t r = 0; r < order.size(); ++r) caps_[r] = CapOf(order[r], evaluation.peak);
    Plan plan = ToPlan(problem_, order);
    plan.level = Level::kComm;  // the run sends its messages itself
    work_->Spend(instructions_);
    return ShareLanes(plan, problem_.costs, &shapes_, policy_, caps_, false).makespan;
  }
  std::optional<Time> RunOf(const Order& order) {
    return RunOf(order, std::numeric_limits<Time>::max());
  }

  Order Run(const Order& order, int64_t budget) {
    const std::optional<Time> start = RunOf(order);
    if (!start) return order;
    order_ = best_ = order;
    makespan_ = least_ = *start;
    most_ = serial_ + serial_ / 8;
    const int64_t end = work_->left() - budget;
    const Time hottest = SerialOfStage(problem_.costs) / 40;
    while (!work_->spent() && work_->left() > end) {
      const int64_t part = (work_->left() - end) / (budget / kCoolings + 1);
      Step(hottest * part / kCoolings * part / kCoolings);
    }
    return best_;
  }

 private:
  /// The most activations that a rank may hold, no fewer than its own order needs: by the limit or,
  /// without one, what the fullest rank of the order holds.
  int CapOf(const ActionList& list, const std::vector<int64_t>& peak) const {
    const int64_t limit = problem_.limit.value_or(*std::max_element(peak.begin(), peak.end()));
    int64_t held = 0, most = limit / std::max<int64_t>(problem_.stages[0].memory.activation, 1);
    for (const Action& action : list) {
      held += HasForward(action.op);
      most = std::max(most, held);
      held -= HasWeight(action.op);
    }
    return static_cast<int>(std::min<int64_t>(most, std::numeric_limits<int>::max()));
  }

  void Step(Time heat) {
    const size_t r = Draw(&random_, order_.size());
    const std::optional<PairMove> move = DrawMove(order_[r], &random_);
    work_->Spend(8);
    if (!move) return;
    Order order = order_;
    ActionList& list = order[r];
    const auto at = [&](size_t i) { return list.begin() + static_cast<std::ptrdiff_t>(i); };
    list.erase(at(move->from), at(move->to));
    list.insert(at(move->from), move->piece.begin(), move->piece.end());
    if (mirrored_) {
      if (r >= order.size() / 2) return;
      order = UnfoldOrder(problem_, FoldOrder(problem_, order));
    }
    const std::optional<Time> makespan = RunOf(order, most_);
    const auto draw = [&] { return static_cast<Time>(Draw(&random_, 1 << 20)); };
    const Time threshold = heat * draw() / (1 << 20) * draw() / (1 << 20);
    if (!makespan || *makespan > makespan_ + threshold) return;
    makespan_ = *makespan;
    order_ = std::move(order);
    if (makespan_ >= least_) return;
    least_ = makespan_;
    best_ = order_;
  }

  const SearchProblem& problem_;
  Evaluator evaluator_;
  ChunkShapes shapes_;
  const bool mirrored_;
  std::mt19937_64 random_;
  SearchWork* work_;
  Order order_, best_;
  Time makespan_ = 0, least_ = 0;
  LanePolicy policy_;
  Time serial_ = 0, most_ = 0;
  std::vector<int> caps_;
  int64_t instructions_ = 0;
};

/// The order whose plan is shortest of those that were offered.
class Shortest {
 public:
  Shortest(const CostModel& costs, const LowerOptions& options)
      : costs_(costs), options_(options) {}

  void Offer(const Plan& order) {
    if (lowered_ && order == order_) return;
    Plan plan = Lower(order, costs_, options_);
    const Time makespan = Simulate(plan, costs_).makespan;
    if (lowered_ && makespan >= least_) return;
    order_ = order;
    lowered_ = std::move(plan);
    least_ = makespan;
  }
  const Plan& order() const { return order_; }
  Plan TakeLowered() { return std::move(*lowered_); }

 private:
  const CostModel& costs_;
  const LowerOptions& options_;
  Plan order_;
  std::optional<Plan> lowered_;
  Time least_ = 0;
};

/// An order for many micro-batches from what a search finds for a few, in the steady phase of
/// DualPipe; nothing for placements without one.
std::optional<Order> FromFew(const SearchProblem& problem, uint64_t seed, int64_t budget,
                             SearchWork* work) {
  if (!IncrementalEvaluator::Takes(problem)) return std::nullopt;
  const std::optional<SearchProblem> folded = Fold(problem);
  const SearchProblem& half = folded ? *folded : problem;
  const int enough = 2 * half.frame.ranks + 2, further = half.frame.microbatches - enough;
  if (half.frame.routes.size() != 1 || further <= 0) return std::nullopt;
  const SearchProblem few = WithCount(problem, enough);
  std::optional<Order> order = ScheduleInPhases(WithCount(half, enough));
  if (!order) return std::nullopt;
  if (folded) order = UnfoldOrder(few, *order);
  SearchResult found = {*order, Evaluate(few, *order).makespan, ""};
  ImprovePairs(few, 0, seed, budget / 8, work, &found);
  const Order shared = LoweredSearch(few, seed, work).Run(found.order, budget * 7 / 8);
  order = Extend(half, folded ? FoldOrder(few, shared) : shared, further);
  if (order && folded) order = UnfoldOrder(problem, *order);
  return order;
}

}  // namespace

Plan ImproveLowered(const Plan& plan, const CostModel& costs, std::optional<int64_t> limit,
                    uint64_t seed, SearchWork* work) {
  CF_ASSERT(plan.level == Level::kCompute && costs.components());
  const SearchProblem problem = MakeProblem(plan, costs, limit);
  std::optional<Order> order = ToOrder(problem, plan);
  if (!order) return plan;
  work->Enter("shared lanes");
  LoweredSearch search(problem, seed, work);
  const std::optional<Time> given = search.RunOf(*order);
  if (!given) return plan;
  if (std::optional<Order> longer = FromFew(problem, seed, work->left() * 3 / 4, work)) {
    const std::optional<Time> makespan = search.RunOf(*longer);
    if (makespan && *makespan < *given) order = std::move(longer);
  }
  return ToPlan(problem, search.Run(*order, work->left()));
}

Plan LowerShortest(const Plan& found, std::span<const Plan> published, const CostModel& costs,
                   const LowerOptions& options, const SearchOptions& search,
                   const SearchControl& control) {
  Shortest shortest(costs, options);
  shortest.Offer(found);
  const SearchProblem problem = MakeProblem(found, costs, options.memory_limit);
  for (const Plan& plan : published) {
    if (plan.routes != found.routes) continue;
    const std::optional<Order> order = ToOrder(problem, plan);
    if (!order || !Evaluate(problem, *order).fits) continue;
    // The head is that of what was found.
    Plan same = found;
    same.programs = plan.programs;
    shortest.Offer(same);
  }
  const bool shared = costs.components() && options.overlap == Overlap::kAll &&
                      (options.target == Level::kComponent || options.target == Level::kBuffer);
  SearchWork work(search, control);
  if (shared && !work.spent()) {
    const Plan start = shortest.order();
    shortest.Offer(ImproveLowered(start, costs, options.memory_limit, search.seed, &work));
  }
  return shortest.TakeLowered();
}

}  // namespace contraflow
