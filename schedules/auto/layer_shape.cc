// A shape of costs of layers: which partitions of a placement and depth are searched, and how long.
// A short search of each of a few promising ones, then partition and order together, then the order
// of the best. A run goes on from the best plan of the one before.

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "compiler/plan/error.h"
#include "compiler/plan/memory_limit.h"
#include "schedules/auto/shape.h"
#include "schedules/pairs/pairs.h"
#include "schedules/partition/min_memory.h"
#include "schedules/partition/partition.h"
#include "schedules/partition/staged.h"
#include "schedules/partition/tuned.h"
#include "schedules/published/placement.h"
#include "schedules/recompute/memory_advice.h"
#include "schedules/search/candidates.h"
#include "schedules/search/portfolio.h"

namespace contraflow {
namespace {

/// Partitions that are searched at first, how many of them may spend their work without a proof,
/// and what share of the whole that is.
constexpr int kMostUnproven = 4;
constexpr int64_t kShortShare = 16;
/// Orders of a first run, over all partitions, where cells run again or go to the host.
constexpr int64_t kOrdersThatHoldLess = 1600;
/// Share of a run that the bound for any partition may take.
constexpr int64_t kBoundShare = 8;

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

class LayerShape : public Shape {
 public:
  LayerShape(const Spec& of, LayerStages* layers) : of_(of), layers_(*layers), frame_(FrameOf(of)) {
    CheckStages(of, &layers_, frame_.stages);
    const Spec even = Staged(of, frame_, &layers_, EvenPartition(layers_.layers(), frame_.stages));
    if (const std::string why_not = RejectPlacement(even); !why_not.empty()) {
      throw Error("auto " + why_not);
    }
    pairs_ = MakeProblem(frame_, even.costs, std::nullopt).pairs;
  }

  /// The candidates of the one partition that the spec allows; nothing where it allows others.
  /// Throws Error if no plan of it fits the memory limit.
  std::optional<std::vector<Candidate>> Fixed() {
    const std::optional<Partition> fixed = FixedPartition(of_, frame_.stages);
    if (!fixed) return std::nullopt;
    const Spec staged = Staged(of_, frame_, &layers_, *fixed);
    CheckBytes(staged.costs);
    if (staged.memory_limit && DevicesOf(staged).empty() &&
        staged.offload.choice == Offload::Choice::kNone) {
      const std::optional<int64_t> least = LeastLimit(staged, staged.recompute);
      if (least && *least > *staged.memory_limit) throw Error("auto " + MemoryAdvice(staged));
    }
    return CandidatesOf(staged);
  }

  Time Bound(Time enough) override {
    // Components may overlap from chunk to chunk, which the bound does not cover. The bound of the
    // last run serves.
    return of_.search.components ? 0 : std::min(bound_.value, enough);
  }

  bool Run(SearchWork* work, Incumbent* incumbent) override {
    work_ = work;
    incumbent_ = incumbent;
    all_ = work->left();
    SearchPromising();
    if (!best_) return Done();
    if (!Done()) Tune();
    if (!Done()) DeepenBest();
    return true;
  }

  Worth Look(SearchWork* work, Incumbent* incumbent) override {
    work_ = work;
    incumbent_ = incumbent;
    const FirstOrder look = FirstLook(of_, frame_, &layers_, &judged_, work);
    if (look.order && look.worth.excess <= 0) OfferFirstOrder(look);
    FoundHiding(judged_.hiding);
    return {look.worth.excess, look.worth.step};
  }

  int64_t instructions() const override { return InstructionsOf(frame_); }
  int64_t orders() const override { return HoldsLess(of_) ? kOrdersThatHoldLess : kOrdersOfLayers; }
  const std::vector<Route>& routes() const override { return frame_.routes; }

  std::optional<Lack> WhyNot() override {
    if (!CountsBytes(of_.costs) || !of_.memory_limit) return std::nullopt;
    const PartitionExcess& min_memory = MinMemory();
    const Spec staged = StagedChunks(of_, frame_, &layers_, min_memory.partition);
    if (min_memory.excess <= 0 || !LeastLimit(staged, staged.recompute)) return std::nullopt;
    return Lack{min_memory.excess, MemoryAdvice(staged)};
  }

 private:
  bool Done() const { return work_->spent(); }

  /// The bound for any partition, as far as one below `enough` matters.
  const PartitionBound& AnyPartition(Time enough) {
    const int64_t most = all_ / kBoundShare;
    const int64_t takes = WorkOfBound(frame_, layers_.layers(), most);
    // One below what was enough is the same for more.
    if (takes > bound_took_ || (bound_.value == enough_ && enough > enough_)) {
      work_->Spend(takes);
      bound_ = BoundOfPartitions(of_, &layers_, frame_, enough, most);
      bound_took_ = takes;
      enough_ = enough;
    }
    return bound_;
  }

  /// The partition that needs least memory; the costs say what activations take.
  const PartitionExcess& MinMemory() {
    if (!min_memory_) min_memory_ = MinMemoryPartition(of_, frame_, &layers_);
    return *min_memory_;
  }

  /// A short search of each, until enough of them have ended without a proof.
  void SearchPromising() {
    const int64_t share = all_ / kShortShare;
    int unproven = 0;
    const auto any = [&](Time enough) { return AnyPartition(enough).partition; };
    for (const auto& [bound, partition] : Promising(of_, frame_, &layers_, any, &judged_, work_)) {
      if (best_ && (Done() || unproven >= kMostUnproven)) break;
      // Components may overlap from chunk to chunk, which the bound does not cover.
      if (best_ && !of_.search.components && bound >= best_->step) continue;
      unproven += Search(partition, share);
    }
    FoundHiding(judged_.hiding);
    if (!best_ && CountsBytes(of_.costs)) Search(MinMemory().partition, share);
  }

  /// Layers and the rules of a list scheduler together, from passes of different sizes.
  void Tune() {
    if (!PlainOrders() || of_.chunks < 2 || AnyPartition(best_->step).value >= best_->step) return;
    SearchWork part(work_, work_->left() / 2);
    const auto problem_of = [&](const Partition& partition) -> std::optional<SearchProblem> {
      const std::optional<Candidate> candidate = CandidateOf(partition);
      if (!candidate) return std::nullopt;
      return MakeProblem(*candidate);
    };
    std::vector<Partition> starts = {partition_};
    const Partition even = EvenPartition(layers_.layers(), frame_.stages);
    // The first ones are looked at for sure.
    std::ranges::move(FullStretches(layers_.layers(), frame_.stages), std::back_inserter(starts));
    std::ranges::move(UnevenPasses(frame_, {even, partition_}), std::back_inserter(starts));
    // Other draws in each run, since the best of all is kept.
    const uint64_t seed = of_.search.seed + static_cast<uint64_t>(all_);
    const std::optional<TunedPartition> tuned =
        TuneTogether(frame_, starts, problem_of, AnyPartition(best_->step).value, seed, &part);
    if (tuned) OfferOrder(*CandidateOf(tuned->partition), tuned->partition, tuned->found);
  }

  /// Spends the rest on the best order, or else on a search of its partition.
  void DeepenBest() {
    if (OrdersAlone() && ImproveOrder()) return;
    Search(Partition(partition_), work_->left());
  }

  /// The published order of a first look.
  void OfferFirstOrder(const FirstOrder& look) {
    const std::vector<Candidate> candidates =
        CandidatesOf(Staged(of_, frame_, &layers_, look.partition));
    if (candidates.empty()) return;
    const Candidate& candidate = candidates.front();
    const SearchProblem problem = MakeProblem(candidate);
    std::optional<Order> order = ToOrder(problem, *look.order);
    if (!order) return;
    const Evaluation evaluated = Evaluate(problem, *order);
    work_->Spend(kOrdersMade * instructions());
    if (!evaluated.fits) return;
    OfferOrder(candidate, look.partition,
               {std::move(*order), evaluated.makespan, look.order->schedule});
  }

  /// Local search of the best order with all that is left; false where that mixes micro-batches.
  bool ImproveOrder() {
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
    const SearchProblem problem = MakeProblem(*candidate);
    std::optional<Order> order = ToOrder(problem, from);
    if (!order) return false;
    const Provenance& provenance = *from.provenance;
    SearchResult found = {std::move(*order), provenance.makespan, provenance.from};
    const uint64_t seed = of_.search.seed;
    if (pairs_) {
      GoOnWithPairs(problem, provenance.bound, seed, work_->left() / 4 * 3, work_, &found);
    }
    ImproveLocally(problem, provenance.bound, seed, work_, &found);
    // Said once, however often.
    const std::string& said = provenance.from;
    if (said.starts_with("pairs from ") || said.starts_with("local search from ")) {
      found.from = said;
    }
    OfferOrder(*candidate, Partition(partition_), found);
    return true;
  }

  /// True where nothing but an order is searched.
  bool OrdersAlone() const { return !of_.search.components && !HoldsLess(of_); }

  bool PlainOrders() const { return !pairs_ && OrdersAlone(); }

  /// Returns nothing where it does not fit.
  std::optional<Candidate> CandidateOf(const Partition& partition) {
    const std::vector<Candidate> candidates =
        CandidatesOf(StagedChunks(of_, frame_, &layers_, partition));
    if (candidates.empty()) return std::nullopt;
    const Candidate& candidate = candidates.front();
    return candidate.FitsSerially(false) ? std::optional(candidate) : std::nullopt;
  }

  /// True if it ends without a proof. Offers nothing if the partition does not fit, as no bound
  /// covers all that is held, and layers that move may leave too little room.
  bool Search(const Partition& partition, int64_t share) {
    const auto [at, added] = searches_.try_emplace(partition);
    if (added) {
      const Spec staged = Staged(of_, frame_, &layers_, partition);
      auto& search = at->second;
      incumbent_->Attempt([&] {
        CheckBytes(staged.costs);
        const std::vector<Candidate> candidates = CandidatesOf(staged);
        if (!candidates.empty()) search = SearchOf(candidates.front());
      });
    }
    if (at->second == nullptr) return false;
    SearchWork part(work_, share);
    std::optional<FoundPlan> found = at->second->Run(&part);
    if (!found) return false;
    const bool open = !at->second->Proves(found->step);
    Offer(partition, std::move(*found));
    return open;
  }

  void OfferOrder(const Candidate& candidate, const Partition& partition,
                  const SearchResult& found) {
    const Spec& staged = candidate.spec;
    Plan plan = ToPlan(MakeProblem(candidate), found.order);
    if (SharesStages(plan)) plan = RenumberMicrobatches(std::move(plan));
    plan.costs = staged.costs;
    const Time proven = candidate.Bound();
    plan.provenance = ProvenanceOf(candidate, found.from, found.makespan, proven);
    const Time step = StepTime(plan, staged.costs, staged, staged.memory_limit, work_);
    Offer(partition, {std::move(plan), step});
  }

  void Offer(const Partition& partition, FoundPlan found) {
    if (best_ && found.step >= best_->step) return;
    incumbent_->Offer(found.plan);
    Found(found.step);
    best_ = std::move(found);
    partition_ = partition;
  }

  const Spec of_;
  LayerStages& layers_;
  const Plan frame_;
  bool pairs_ = false;  // some FB is shorter than its parts
  Judged judged_;
  std::optional<PartitionExcess> min_memory_;
  std::map<Partition, std::unique_ptr<CandidateSearch>> searches_;
  PartitionBound bound_;     // for any partition
  Time enough_ = 0;          // for that
  int64_t bound_took_ = -1;  // instructions
  std::optional<FoundPlan> best_;
  Partition partition_;  // of the best
  // Set by each look and run:
  SearchWork* work_ = nullptr;
  Incumbent* incumbent_ = nullptr;
  int64_t all_ = 0;
};

}  // namespace

void AddLayerShapes(const Spec& spec, LayerStages* layers,
                    std::vector<std::unique_ptr<Shape>>* shapes) {
  auto shape = std::make_unique<LayerShape>(spec, layers);
  const std::optional<std::vector<Candidate>> fixed = shape->Fixed();
  if (!fixed) shapes->push_back(std::move(shape));
  for (const Candidate& candidate : fixed.value_or(std::vector<Candidate>())) {
    AddStageShape(candidate, shapes);
  }
}

}  // namespace contraflow
