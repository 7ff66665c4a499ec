// `auto` over the partitions of placements and depths. For each of these a short search of each of
// a few that are promising, a longer one of the best of these and of what the bound for any
// partition ends with, a long one of that of which most is hoped and of the best, and another of
// what moved layers make of it. All of them share one budget; what is proven to be shortest has
// spent little of it.

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compiler/bound/bound.h"
#include "compiler/plan/error.h"
#include "compiler/simulate/simulate.h"
#include "schedules/made_plans.h"
#include "schedules/pairs/pairs.h"
#include "schedules/partition/partition.h"
#include "schedules/partition/staged.h"
#include "schedules/published/placement.h"
#include "schedules/search/candidates.h"
#include "schedules/search/ladder.h"
#include "schedules/search/portfolio.h"

namespace contraflow {
namespace {

/// Of a search, in nanoseconds, with which partitions are judged as often as they can be; with less
/// they are judged less often, but so many times at least.
constexpr double kWholeBudget = 1e9;
constexpr int64_t kFewestJudged = 40;
/// Bounds of partitions that are proven to choose what is searched, at most.
constexpr int64_t kMostBounds = 300;
/// Lists with pairs that are made of a partition to judge it.
constexpr int64_t kLists = 5;
/// Partitions that are searched at all, how many of them may spend what they have for that without
/// an end that is proven, and what share of the budget that is.
constexpr size_t kMostTried = 24;
constexpr int kMostUnproven = 4;
constexpr int64_t kShortShare = 16;
/// Of those the ones that are searched again, each with so many such shares.
constexpr size_t kMostAgain = 2;
constexpr int64_t kSharesAgain = 2;

FoundPlan SearchStaged(const Spec& staged, const SearchControl& control) {
  Plan plan = GeneratePlan(staged, control);
  const Time step = StepTime(plan, staged.costs, staged.memory_limit, staged.search);
  return {std::move(plan), step};
}

/// The order of a searched plan for other stages of the same routes.
std::optional<FoundPlan> Restaged(const FoundPlan& found, const Spec& staged) {
  Plan plan = found.plan;
  plan.costs = staged.costs;
  if (!FitsMemory(plan, staged.costs, staged)) return std::nullopt;
  plan.provenance->makespan = Simulate(plan, staged.costs, Keep::kFigures).makespan;
  const Time step = StepTime(plan, staged.costs, staged.memory_limit, staged.search);
  return FoundPlan{std::move(plan), step};
}

/// The frame of a shape; the costs of its stages do not matter for it.
Plan FrameOf(const Spec& of) {
  Spec uniform = of;
  uniform.costs = UniformCosts(1, 1, 1);
  uniform.costs.stages.resize(static_cast<size_t>(of.ranks) * static_cast<size_t>(of.chunks),
                              uniform.costs.stages.front());
  uniform.memory_limit.reset();
  uniform.device_memory.reset();
  return CandidatesOf(uniform).front().frame;
}

/// A partition and a bound on any order of its stages; 0 where none is known.
struct Chance {
  Time bound = 0;
  Partition partition;
};

/// What partitions are worth, whatever the budget.
struct Judged {
  std::map<Partition, PartitionWorth> bound, published;

  static PartitionWorth Once(std::map<Partition, PartitionWorth>* known, const Partition& partition,
                             const PartitionJudge& judge) {
    const auto [at, added] = known->try_emplace(partition);
    if (added) at->second = judge(partition);
    return at->second;
  }
};

/// A quick order with overlapped pairs, where these save anything.
std::optional<Plan> PairedOrder(const Candidate& candidate) {
  const SearchProblem problem =
      MakeProblem(candidate.frame, candidate.spec.costs, candidate.spec.memory_limit);
  if (!problem.pairs) return std::nullopt;
  const std::optional<SearchProblem> folded = Fold(problem);
  SearchWork work{SearchOptions()};
  const SearchProblem& half = folded ? *folded : problem;
  std::optional<Order> order = ListPairs(half, kLists * 3 * half.chunks(), &work);
  if (!order) return std::nullopt;
  return ToPlan(problem, folded ? UnfoldOrder(problem, *order) : *order);
}

/// Different partitions that may do best, the most promising first: the one on which published
/// orders do best, the one that the bound for any ends with, and those with the least bounds, from
/// several starts moved by single layers.
std::vector<Chance> Promising(const Spec& of, const Plan& frame, LayerStages* layers,
                              Judged* judged) {
  const auto staged = [&](const Partition& partition) {
    return StagedChunks(of, frame, layers, partition);
  };
  std::vector<std::pair<PartitionWorth, Partition>> bounded;
  const auto prove = [&](const Partition& partition) {
    const Spec spec = staged(partition);
    const std::vector<Candidate> candidates = CandidatesOf(spec);
    if (candidates.empty()) return kImpossible;
    const Candidate& candidate = candidates.front();
    try {
      const std::optional<int64_t> limit = candidate.spec.memory_limit;
      const bool recomputes = spec.recompute.choice != Recompute::Choice::kNone;
      if (limit && SerialPeak(frame, candidate.spec.costs, recomputes) > *limit) return kImpossible;
      const Bound proven =
          ProveBound(frame, candidate.spec.costs, recomputes ? std::nullopt : limit);
      return PartitionWorth{0, proven.value, std::ranges::max(partition)};
    } catch (const Error&) {
      return kImpossible;  // no room for one activation
    }
  };
  const auto bound = [&](const Partition& partition) {
    const PartitionWorth worth = Judged::Once(&judged->bound, partition, prove);
    const auto known = [&](const auto& other) { return other.second == partition; };
    if (worth != kImpossible && std::none_of(bounded.begin(), bounded.end(), known)) {
      bounded.emplace_back(worth, partition);
    }
    return worth;
  };
  const auto order = [&](const Partition& partition) {
    const Spec spec = staged(partition);
    const std::vector<Candidate> candidates = CandidatesOf(spec);
    if (candidates.empty()) return kImpossible;
    PartitionWorth best = kImpossible;
    for (const Plan& plan : PublishedOrders(candidates.front())) {
      best = std::min(best, WorthOf(plan, spec));
    }
    if (const std::optional<Plan> plan = PairedOrder(candidates.front())) {
      best = std::min(best, WorthOf(*plan, spec));
    }
    return best;
  };
  const auto published = [&](const Partition& partition) {
    return Judged::Once(&judged->published, partition, order);
  };
  const std::vector<Partition> starts = StartingPartitions(*layers, frame, of.costs);
  // Up to four published orders each, which take longer to make than to simulate.
  const double share = std::min(1.0, static_cast<double>(of.search.budget) / kWholeBudget);
  const int64_t all = MostJudged(of, frame.stages) / 8;
  const int64_t most =
      std::max<int64_t>(kFewestJudged, static_cast<int64_t>(share * static_cast<double>(all)));
  const Partition front = BestFrom(starts, published, most, published);
  std::vector<Chance> promising = {{0, front}};
  // The best of an argument over all partitions, of those that may beat that.
  const Partition balanced = BoundOfPartitions(of, layers, frame, published(front).step).partition;
  const int64_t bounds = std::min(most, kMostBounds) / static_cast<int64_t>(starts.size() + 2);
  ImprovePartition(front, bound, bounds);
  if (!balanced.empty() && balanced != front) {
    promising.push_back({0, balanced});
    ImprovePartition(balanced, bound, bounds);
  }
  for (const Partition& start : starts) ImprovePartition(start, bound, bounds);
  std::stable_sort(bounded.begin(), bounded.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [worth, partition] : bounded) {
    if (promising.size() == kMostTried) break;
    if (partition == front || partition == balanced) continue;
    promising.push_back({worth.step, partition});
  }
  return promising;
}

/// A partition that was searched.
struct Tried {
  Time step = 0, bound = 0;
  Partition partition;
};

class ShapeSearch {
 public:
  ShapeSearch(const Spec& of, const SearchControl& control)
      : of_(of),
        control_(control),
        layers_(control.made->StagesOf(of.costs, OverlapOf(of))),
        frame_(FrameOf(of)) {
    CheckStages(of, &layers_, frame_.stages);
    const Spec even = Staged(of, frame_, &layers_, EvenPartition(layers_.layers(), frame_.stages));
    if (const std::string why_not = RejectPlacement(even); !why_not.empty()) {
      throw Error("auto " + why_not);
    }
  }

  /// What the whole budget of the spec finds for the one partition that it allows; nothing where it
  /// allows others.
  std::optional<FoundPlan> Fixed() {
    const std::optional<Partition> fixed = FixedPartition(of_, frame_.stages);
    if (!fixed) return std::nullopt;
    return SearchStaged(Staged(of_, frame_, &layers_, *fixed), control_);
  }

  /// True where no order of any partition takes less than `step`.
  bool Proves(Time step) {
    // Components may overlap from chunk to chunk, which the bound knows nothing of.
    if (of_.search.components) return false;
    if (bound_ < step) bound_ = BoundOfPartitions(of_, &layers_, frame_, step).value;
    return bound_ >= step;
  }

  FoundPlan SearchWith(int64_t budget) {
    of_.search.budget = left_ = budget;
    best_.reset();
    tried_.clear();
    TryPromising();
    if (!control_.stopped()) TryAgain();
    if (!control_.stopped()) TryHopeful();
    if (!control_.stopped()) TryMoved();
    return std::move(*best_);
  }

 private:
  /// A short search of each, until enough of them have ended without a proof.
  void TryPromising() {
    std::optional<Error> why_not;
    const int64_t share = of_.search.budget / kShortShare;
    for (const auto& [bound, partition] : Promising(of_, frame_, &layers_, &judged_)) {
      const int64_t spent = of_.search.budget - left_;
      if (best_ && (control_.stopped() || spent >= kMostUnproven * share)) break;
      // Components may overlap from chunk to chunk, which the bound knows nothing of.
      if (best_ && !of_.search.components && bound >= best_->step) continue;
      try {
        Search(partition, share);
      } catch (const Error& error) {
        if (!why_not) why_not = error;
      }
    }
    if (!best_) throw *why_not;
  }

  /// A longer one of the few best, and of what the bound for any partition ends with.
  void TryAgain() {
    std::ranges::stable_sort(tried_, {}, &Tried::step);
    std::vector<Partition> again;
    for (size_t i = 0; i < std::min(tried_.size(), kMostAgain); ++i) {
      again.push_back(tried_[i].partition);
    }
    // The shorter the step, the more partitions the bound for any finds worse.
    const Partition balanced = BoundOfPartitions(of_, &layers_, frame_, best_->step).partition;
    if (!balanced.empty() && std::ranges::count(again, balanced) == 0) again.push_back(balanced);
    if (again.size() == 1) return;
    for (const Partition& partition : again) {
      if (control_.stopped()) return;
      try {
        Search(partition, of_.search.budget / kShortShare * kSharesAgain);
      } catch (const Error&) {
        continue;  // memory that the bound does not look at
      }
    }
  }

  /// A long one of the partition of which most is hoped, where that is not the best, and of the
  /// best.
  void TryHopeful() {
    // Of a partition whose bound is low more may come than of the one with the shortest step so
    // far.
    const auto hoped = [](const Tried& one) { return one.step / 4 + 3 * (one.bound / 4); };
    const Partition hopeful = std::ranges::min_element(tried_, {}, hoped)->partition;
    if (hopeful != partition_) Search(hopeful, left_ / 3);
    if (!control_.stopped()) Search(Partition(partition_), left_ / 2);
  }

  /// What the layers of the best make that move under its order, searched with all that is left.
  void TryMoved() {
    // Recomputed stages are chosen with the order, so that another partition may not have them.
    const auto judge = [&](const Partition& moved) {
      return WorthOf(best_->plan, StagedChunks(of_, frame_, &layers_, moved));
    };
    const Partition moved = ImprovePartition(partition_, judge, MostJudged(of_, frame_.stages));
    if (moved != partition_) {
      std::optional<FoundPlan> same = Restaged(*best_, Staged(of_, frame_, &layers_, moved));
      if (same) Offer(moved, std::move(*same));
    }
    Search(moved, left_);
  }

  void Search(const Partition& partition, int64_t budget) {
    Spec staged = Staged(of_, frame_, &layers_, partition);
    staged.search.budget = budget;
    // Another budget looks at other partitions, whatever is sure of each: all of it is repeated.
    staged.search.monotone = false;
    FoundPlan found = SearchStaged(staged, control_);
    const Provenance& provenance = *found.plan.provenance;
    if (provenance.makespan > provenance.bound) left_ -= budget;
    Offer(partition, std::move(found));
  }

  void Offer(const Partition& partition, FoundPlan found) {
    tried_.push_back({found.step, found.plan.provenance->bound, partition});
    if (best_ && found.step >= best_->step) return;
    best_ = std::move(found);
    partition_ = partition;
  }

  Spec of_;
  const SearchControl& control_;
  LayerStages& layers_;
  const Plan frame_;
  Judged judged_;
  Time bound_ = 0;    // for any partition
  int64_t left_ = 0;  // of the budget
  std::optional<FoundPlan> best_;
  Partition partition_;  // of the best
  std::vector<Tried> tried_;
};

}  // namespace

FoundPlan SearchShapes(const std::vector<Spec>& shapes, const SearchControl& control) {
  std::optional<Error> why_not;
  const auto attempt = [&](const auto& search) {
    try {
      search();
    } catch (const Error& error) {
      // A limit that this shape cannot have; another one may.
      if (!why_not) why_not = error;
    }
  };
  std::vector<std::unique_ptr<ShapeSearch>> searches(shapes.size());
  for (size_t i = 0; i < shapes.size(); ++i) {
    attempt([&] { searches[i] = std::make_unique<ShapeSearch>(shapes[i], control); });
  }
  std::optional<FoundPlan> best;
  size_t of_best = 0;
  const auto offer = [&](size_t i, FoundPlan found) {
    if (best && std::pair(found.step, i) > std::pair(best->step, of_best)) return;
    best = std::move(found);
    of_best = i;
  };
  const auto done = [&] { return best && control.stopped(); };
  std::vector<size_t> order;
  for (size_t i = 0; i < shapes.size() && !done(); ++i) {
    if (!searches[i]) continue;
    attempt([&] {
      std::optional<FoundPlan> fixed = searches[i]->Fixed();
      if (fixed) offer(i, std::move(*fixed));
      if (!fixed) order.push_back(i);
    });
  }
  // All with little first, then the best of these before others, so that soon most are known to be
  // worse than another at best.
  const Spec& any = shapes.front();
  for (const int64_t budget : LadderOf(any.search, LeastBudgetOfChoices(any))) {
    std::vector<std::pair<Time, size_t>> next;  // by the step that they have found now
    for (const size_t i : order) {
      if (done()) break;
      if (best && searches[i]->Proves(best->step + (i < of_best ? 1 : 0))) continue;
      next.push_back({kImpossible.step, i});
      attempt([&] {
        FoundPlan found = searches[i]->SearchWith(budget);
        next.back().first = found.step;
        offer(i, std::move(found));
      });
    }
    std::ranges::sort(next);
    order.clear();
    for (const auto& [step, i] : next) order.push_back(i);
  }
  if (!best) throw *why_not;
  return std::move(*best);
}

}  // namespace contraflow
