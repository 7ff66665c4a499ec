// `auto` over the partitions of placements and depths. For each of these a short search of each of
// a few that are promising; then partition and order together, where that helps, else a longer
// search of the best of these and of what the bound for any partition ends with, and a long one of
// that of which most is hoped and of the best; and another of what moved layers make of it. All of
// them share one budget; what is proven to be shortest has spent little of it. Where forwards and
// backwards overlap, what was found with the smaller budgets before is gone on from.

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compiler/bound/bound.h"
#include "compiler/plan/error.h"
#include "compiler/plan/memory_limit.h"
#include "compiler/simulate/simulate.h"
#include "schedules/made_plans.h"
#include "schedules/pairs/pairs.h"
#include "schedules/partition/partition.h"
#include "schedules/partition/promising.h"
#include "schedules/partition/roomiest.h"
#include "schedules/partition/staged.h"
#include "schedules/partition/tuned.h"
#include "schedules/published/placement.h"
#include "schedules/search/candidates.h"
#include "schedules/search/ladder.h"
#include "schedules/search/portfolio.h"

namespace contraflow {
namespace {

/// Partitions that are searched at first, how many of them may spend what they have for that
/// without an end that is proven, and what share of the budget that is.
constexpr int kMostUnproven = 4;
constexpr int64_t kShortShare = 16;
/// Partitions of those that are searched again, each with so many such shares.
constexpr size_t kMostAgain = 2;
constexpr int64_t kSharesAgain = 2;

FoundPlan SearchStaged(const Spec& staged, const SearchControl& control) {
  CheckBytes(staged.costs);
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
    pairs_ = MakeProblem(frame_, even.costs, std::nullopt).pairs;
  }

  /// Result of the whole budget of the spec for the one partition that it allows; nothing where it
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

  /// The partition that needs least memory, whatever the budget; the costs say what activations
  /// take.
  const Roominess& Roomiest() {
    if (!roomiest_) roomiest_ = RoomiestPartition(of_, frame_, &layers_);
    return *roomiest_;
  }
  /// Advice that would make it fit.
  std::string Advice() {
    return MemoryAdvice(StagedChunks(of_, frame_, &layers_, Roomiest().partition));
  }

  FoundPlan SearchWith(int64_t budget) {
    of_.search.budget = left_ = budget;
    if (!pairs_) {
      best_.reset();
      tried_.clear();
    }
    TryPromising();
    // If that helps, it does so again, else more is made of what has been tried.
    if (!control_.stopped() && TryTuned(0)) {
      if (!control_.stopped()) TryTuned(1);
    } else {
      if (!control_.stopped()) TryAgain();
      if (!control_.stopped()) TryHopeful();
    }
    if (!control_.stopped()) TryMoved();
    return *best_;
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
    if (best_ && FitsMemory(best_->plan, *best_->plan.costs, of_)) return;
    // A plan that fits has other stages, if any does; else it says what is lacking.
    if (!best_ && !CountsBytes(of_.costs)) throw *why_not;
    best_.reset();
    tried_.clear();
    Search(Roomiest().partition, share);
  }

  /// A longer one of the few best, and of what the bound for any partition ends with.
  void TryAgain() {
    std::ranges::stable_sort(tried_, {}, &Tried::step);
    std::vector<Partition> again;
    for (const Tried& one : tried_) {
      if (again.size() == kMostAgain) break;
      if (std::ranges::count(again, one.partition) == 0) again.push_back(one.partition);
    }
    // The shorter the step, the more partitions the bound for any finds worse.
    const auto add = [&](Partition balanced) {
      if (balanced.empty() || std::ranges::count(again, balanced) > 0) return;
      again.push_back(std::move(balanced));
    };
    const Time step = best_->step;
    add(BalancedPartition(of_, &layers_, frame_, step));
    if (of_.memory_limit) add(BoundOfPartitions(of_, &layers_, frame_, step).partition);
    if (again.size() == 1) return;
    for (const Partition& partition : again) {
      if (control_.stopped()) return;
      SearchIfFits(partition, of_.search.budget / kShortShare * kSharesAgain);
    }
  }

  /// Layers and the rules of a list scheduler together, from passes of different sizes. True where
  /// that is shorter.
  bool TryTuned(uint64_t time) {
    if (!PlainOrders() || of_.chunks < 2 || Proves(best_->step)) return false;
    SearchOptions options = of_.search;
    options.budget = left_ / 4 * static_cast<int64_t>(1 + time);
    SearchWork work(options, control_);
    const auto problem_of = [&](const Partition& partition) -> std::optional<SearchProblem> {
      const std::optional<Candidate> candidate = CandidateOf(partition);
      if (!candidate) return std::nullopt;
      return MakeProblem(candidate->frame, candidate->spec.costs, candidate->spec.memory_limit);
    };
    std::vector<Partition> starts = {partition_};
    const Partition even = EvenPartition(layers_.layers(), frame_.stages);
    std::vector<Partition> stretches = FullStretches(layers_.layers(), frame_.stages);
    std::vector<Partition> uneven = UnevenPasses(frame_, {even, partition_});
    // The first ones are looked at for sure.
    if (time > 0) std::swap(stretches, uneven);
    std::ranges::move(uneven, std::back_inserter(starts));
    std::ranges::move(stretches, std::back_inserter(starts));
    // Other draws with another budget, since the best with each is kept.
    const uint64_t seed = of_.search.seed + static_cast<uint64_t>(of_.search.budget) + time;
    const std::optional<TunedPartition> tuned =
        TuneTogether(frame_, starts, problem_of, bound_, seed, &work);
    if (!tuned) return false;
    left_ -= options.budget;
    const Time before = best_->step;
    OfferOrder(*CandidateOf(tuned->partition), tuned->partition, tuned->found);
    return best_->step < before;
  }

  /// A long one of the partition of which most is hoped, where that is not the best, and of the
  /// best.
  void TryHopeful() {
    // A partition whose bound is low may give more than the one with the shortest step so far.
    const auto hoped = [](const Tried& one) { return one.step / 4 + 3 * (one.bound / 4); };
    const Partition hopeful = std::ranges::min_element(tried_, {}, hoped)->partition;
    if (hopeful != partition_) SearchIfFits(hopeful, left_ / 3);
    // With pairs more comes of going on from an order than of another one.
    const int64_t share = pairs_ && OrdersAlone() ? 4 : 2;
    if (!control_.stopped()) SearchIfFits(Partition(partition_), left_ / share);
  }

  /// Searches with half of the rest what the layers of the best make that move under its order; the
  /// other half goes on from the best order.
  void TryMoved() {
    // Recomputed stages are chosen with the order, so that another partition may not have them.
    const auto judge = [&](const Partition& moved) {
      return WorthOf(best_->plan, StagedChunks(of_, frame_, &layers_, moved));
    };
    const Partition moved = ImprovePartition(partition_, judge, MostJudged(of_, frame_.stages));
    if (moved != partition_) {
      std::optional<FoundPlan> same = Restaged(*best_, Staged(of_, frame_, &layers_, moved));
      if (same) Offer(moved, std::move(*same));
      if (!pairs_ || !OrdersAlone()) SearchIfFits(moved, OrdersAlone() ? left_ / 2 : left_);
      if (!OrdersAlone()) return;
    }
    if (control_.stopped() || (OrdersAlone() && GoOn())) return;
    SearchIfFits(Partition(partition_), left_);
  }

  /// Local search of the best order with all that is left; false where that mixes micro-batches.
  bool GoOn() {
    std::optional<Candidate> candidate = CandidateOf(partition_);
    if (!candidate) return false;
    const Plan& from = best_->plan;
    if (SharesStages(candidate->frame)) {
      // Its micro-batches have other numbers now, which does not matter where they are alike.
      if (!pairs_ || of_.costs.unlike_microbatches()) return false;
      candidate->frame.routes = from.routes;
    }
    // Micro-batches of two routes may have been shared out anew.
    if (candidate->frame.routes != from.routes) return false;
    const SearchProblem problem =
        MakeProblem(candidate->frame, candidate->spec.costs, candidate->spec.memory_limit);
    std::optional<Order> order = ToOrder(problem, from);
    if (!order) return false;
    const Provenance& provenance = *from.provenance;
    SearchResult found = {std::move(*order), provenance.makespan, provenance.from};
    SearchOptions options = of_.search;
    options.budget = left_;
    SearchWork work(options, control_);
    if (pairs_) {
      GoOnWithPairs(problem, provenance.bound, options.seed, work.left() / 4 * 3, &work, &found);
    }
    ImproveLocally(problem, provenance.bound, options.seed, &work, &found);
    // Said once, however often.
    const std::string& said = provenance.from;
    if (said.starts_with("pairs from ") || said.starts_with("local search from ")) {
      found.from = said;
    }
    OfferOrder(*candidate, Partition(partition_), found);
    return true;
  }

  /// True where nothing but an order is searched.
  bool OrdersAlone() const {
    return of_.search.noise == 0 && !of_.search.components &&
           of_.recompute.choice == Recompute::Choice::kNone &&
           of_.offload.choice == Offload::Choice::kNone;
  }

  bool PlainOrders() const { return !pairs_ && OrdersAlone(); }

  /// Returns nothing where it does not fit.
  std::optional<Candidate> CandidateOf(const Partition& partition) {
    const std::vector<Candidate> candidates =
        CandidatesOf(StagedChunks(of_, frame_, &layers_, partition));
    if (candidates.empty()) return std::nullopt;
    const Candidate& candidate = candidates.front();
    const std::optional<int64_t> limit = candidate.spec.memory_limit;
    if (limit && SerialPeak(candidate.frame, candidate.spec.costs, false) > *limit) {
      return std::nullopt;
    }
    return candidate;
  }

  void Search(const Partition& partition, int64_t budget) {
    Spec staged = Staged(of_, frame_, &layers_, partition);
    staged.search.budget = budget;
    // Another budget looks at other partitions, whatever is sure of each: all of it is repeated.
    staged.search.monotone = staged.search.lesser_limits = false;
    FoundPlan found = SearchStaged(staged, control_);
    const Provenance& provenance = *found.plan.provenance;
    if (provenance.makespan > provenance.bound) left_ -= budget;
    Offer(partition, std::move(found));
  }

  /// If something is found already: leaves out what turns out not to fit, as no bound looks at all
  /// that is held, and layers that move may leave too little room for what runs again.
  void SearchIfFits(const Partition& partition, int64_t budget) {
    try {
      Search(partition, budget);
    } catch (const Error&) {
    }
  }

  void OfferOrder(const Candidate& candidate, const Partition& partition,
                  const SearchResult& found) {
    const Spec& staged = candidate.spec;
    Plan plan =
        ToPlan(MakeProblem(candidate.frame, staged.costs, staged.memory_limit), found.order);
    if (SharesStages(plan)) plan = RenumberMicrobatches(std::move(plan));
    plan.costs = staged.costs;
    const Time proven = ProveBound(candidate.frame, staged.costs, staged.memory_limit).value;
    plan.provenance = ProvenanceOf(candidate, staged, found.from, found.makespan, proven);
    const Time step = StepTime(plan, staged.costs, staged.memory_limit, staged.search);
    Offer(partition, {std::move(plan), step});
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
  bool pairs_ = false;  // some FB is shorter than its parts
  Judged judged_;
  std::optional<Roominess> roomiest_;
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
  if (best) return std::move(*best);
  if (!any.memory_limit || !DevicesOf(any).empty() || !CountsBytes(any.costs) || order.empty()) {
    throw *why_not;
  }
  std::vector<std::pair<int64_t, size_t>> excess;
  for (size_t i = 0; i < searches.size(); ++i) {
    if (searches[i]) excess.emplace_back(searches[i]->Roomiest().excess, i);
  }
  const auto [least, roomiest] = std::ranges::min(excess);
  if (least <= 0) throw *why_not;
  throw Error("auto " + searches[roomiest]->Advice());
}

}  // namespace contraflow
