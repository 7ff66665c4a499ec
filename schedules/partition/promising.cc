#include "schedules/partition/promising.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "compiler/bound/bound.h"
#include "compiler/plan/error.h"
#include "schedules/pairs/pairs.h"
#include "schedules/partition/staged.h"
#include "schedules/published/placement.h"
#include "schedules/search/candidates.h"
#include "schedules/search/portfolio.h"

namespace contraflow {
namespace {

/// Share of the work in which partitions are judged by published orders, and how often they are at
/// least.
constexpr int64_t kJudgedShare = 8;
constexpr int64_t kFewestJudged = 8;
/// Orders that a bound takes as long as to evaluate.
constexpr int64_t kOrdersBounded = 2;
/// Share of a step that its forwards take, about: they run again with recompute.
constexpr double kForward = 1.0 / 3;
/// Maximum number of partitions whose bound is proven.
constexpr int64_t kMostBounds = 300;
/// Number of orders with pairs that judge a partition.
constexpr int64_t kLists = 5;
/// Maximum number of partitions to try.
constexpr size_t kMostTried = 24;
/// Share of a rank's memory by which an order may exceed it where another partition may help.
constexpr int64_t kNearlyFits = 16;

/// True if the plan overlaps a forward with a backward.
bool HasPairs(const Plan& plan) {
  return std::ranges::any_of(plan.programs, [](const std::vector<Instruction>& program) {
    return std::ranges::any_of(program, [](const Instruction& i) { return i.op == Op::FB; });
  });
}

/// Bytes, or activations, that a rank may hold.
int64_t MostOf(const Spec& spec) {
  const std::vector<int64_t> devices = DevicesOf(spec);
  if (!devices.empty()) return std::ranges::max(devices);
  return spec.memory_limit.value_or(std::numeric_limits<int64_t>::max());
}

/// A quick order with overlapped pairs, where these save anything.
std::optional<Plan> PairedOrder(const Candidate& candidate) {
  const SearchProblem problem = MakeProblem(candidate);
  if (!problem.pairs) return std::nullopt;
  const std::optional<SearchProblem> folded = Fold(problem);
  SearchWork work{SearchOptions()};
  const SearchProblem& half = folded ? *folded : problem;
  std::optional<Order> order = ListPairs(half, kLists * 3 * half.chunks(), &work);
  if (!order) return std::nullopt;
  Plan plan = ToPlan(problem, folded ? UnfoldOrder(problem, *order) : *order);
  plan.schedule = "pairs as they are ready";
  return plan;
}

/// The best published order of a candidate, without its partition.
FirstOrder BestPublished(const Candidate& candidate, SearchWork* work) {
  FirstOrder best;
  best.worth = kImpossible;
  std::vector<Plan> orders = PublishedOrders(candidate);
  const size_t published = orders.size();
  if (std::optional<Plan> plan = PairedOrder(candidate)) orders.push_back(std::move(*plan));
  work->Spend(static_cast<int64_t>(orders.size()) * OrdersJudged(candidate.spec.costs) *
              InstructionsOf(candidate.frame));
  for (size_t i = 0; i < orders.size(); ++i) {
    Plan& plan = orders[i];
    const PartitionWorth worth = WorthOf(plan, candidate.spec);
    if (i < published && HasPairs(plan) && worth.excess <= MostOf(candidate.spec) / kNearlyFits) {
      best.hiding.Offer({plan.schedule, worth.step});
    }
    if (worth >= best.worth) continue;
    best.worth = worth;
    best.order = std::move(plan);
  }
  return best;
}

/// Worth of the best published order on a partition, which becomes `order` the first time.
PartitionWorth ByPublished(const Spec& of, const Plan& frame, LayerStages* layers,
                           const Partition& partition, Judged* judged, SearchWork* work,
                           std::optional<Plan>* order = nullptr) {
  const auto judge = [&](const Partition& one) {
    const std::vector<Candidate> candidates = CandidatesOf(StagedChunks(of, frame, layers, one));
    if (candidates.empty()) return kImpossible;
    FirstOrder best = BestPublished(candidates.front(), work);
    judged->hiding.Offer(best.hiding);
    if (order != nullptr) *order = std::move(best.order);
    return best.worth;
  };
  return JudgeOnce(&judged->published, partition, judge);
}

}  // namespace

void PublishedStep::Offer(const PublishedStep& other) {
  if (other.schedule.empty()) return;
  if (schedule.empty() || other.step < step) *this = other;
}

FirstOrder LookAt(const Candidate& candidate, SearchWork* work) {
  Candidate free = candidate;
  free.spec.recompute = {};
  free.spec.offload = {};
  const Spec limited = free.spec;
  if (HoldsLess(candidate.spec)) {
    free.SetLimits({});
    free.spec.device_memory.reset();
    for (RankCost& rank : free.spec.costs.ranks) rank.memory_bytes.reset();
  }
  FirstOrder look = BestPublished(free, work);
  if (!look.order || !HoldsLess(candidate.spec)) return look;
  PartitionWorth& worth = look.worth;
  const int64_t excess = WorthOf(*look.order, limited).excess;
  if (excess <= 0) {
    // The order fits as it is, so the shape that recomputes no cell is as good.
    worth.excess = std::numeric_limits<int64_t>::max();
    look.hiding = {};
    return look;
  }
  const auto over = static_cast<double>(excess);
  const double share = over / (over + static_cast<double>(MostOf(candidate.spec)));
  for (Time* step : {&worth.step, &look.hiding.step}) {
    *step += static_cast<Time>(share * kForward * static_cast<double>(*step));
  }
  // After the shapes whose orders fit as they are.
  worth.excess = 1;
  return look;
}

FirstOrder FirstLook(const Spec& of, const Plan& frame, LayerStages* layers, Judged* judged,
                     SearchWork* work) {
  FirstOrder look;
  look.partition = StartingPartitions(*layers, frame, of.costs).front();
  if (!HoldsLess(of)) {
    look.worth = ByPublished(of, frame, layers, look.partition, judged, work, &look.order);
    return look;
  }
  const std::vector<Candidate> candidates =
      CandidatesOf(StagedChunks(of, frame, layers, look.partition));
  look.worth = kImpossible;
  if (candidates.empty()) return look;
  FirstOrder found = LookAt(candidates.front(), work);
  judged->hiding.Offer(found.hiding);
  found.partition = std::move(look.partition);
  return found;
}

std::vector<Chance> Promising(const Spec& of, const Plan& frame, LayerStages* layers,
                              const std::function<Partition(Time)>& any, Judged* judged,
                              SearchWork* work) {
  const int64_t instructions = InstructionsOf(frame);
  const auto staged = [&](const Partition& partition) {
    return StagedChunks(of, frame, layers, partition);
  };
  std::vector<std::pair<PartitionWorth, Partition>> bounded;
  const auto prove = [&](const Partition& partition) {
    const Spec spec = staged(partition);
    const std::vector<Candidate> candidates = CandidatesOf(spec);
    if (candidates.empty()) return kImpossible;
    const Candidate& candidate = candidates.front();
    work->Spend(kOrdersBounded * instructions);
    try {
      const bool recomputes = spec.recompute.choice != Recompute::Choice::kNone;
      if (!candidate.FitsSerially(recomputes)) return kImpossible;
      const Time proven = recomputes ? LowerBound(frame, candidate.spec.costs) : candidate.Bound();
      return PartitionWorth{0, proven, std::ranges::max(partition)};
    } catch (const Error&) {
      return kImpossible;  // no room for one activation
    }
  };
  const auto bound = [&](const Partition& partition) {
    const PartitionWorth worth = JudgeOnce(&judged->bound, partition, prove);
    const auto known = [&](const auto& other) { return other.second == partition; };
    if (worth != kImpossible && std::none_of(bounded.begin(), bounded.end(), known)) {
      bounded.emplace_back(worth, partition);
    }
    return worth;
  };
  const auto published = [&](const Partition& partition) {
    return ByPublished(of, frame, layers, partition, judged, work);
  };
  const std::vector<Partition> starts = StartingPartitions(*layers, frame, of.costs);
  const int64_t most = std::max(
      kFewestJudged, work->left() / kJudgedShare / (3 * OrdersJudged(of.costs) * instructions));
  const Partition front = BestFrom(starts, published, most, published);
  std::vector<Chance> promising = {{0, front}};
  // The best of an argument over all partitions, of those that may beat that.
  const Partition balanced = any(published(front).step);
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

}  // namespace contraflow
