// Partition and order of an interleaved placement together.
//
// Rank r cannot begin pass j before the first micro-batch comes there for the j-th time, and until
// then has no more than the forwards of the passes before it to do. Its idle time is no less than
//
//     the most, over j, of  arrival(r, j) - M * (forwards of its stages before pass j),
//
// and that of the first backward likewise. Small stages in the first pass of the ranks in front let
// the others begin sooner, small ones in the last pass let backwards begin sooner, and both are
// paid for in the passes between, differently on each rank. So what is best depends on all stages
// and on how ranks choose among what has arrived; a list scheduler tells for little.

#include "schedules/partition/tuned.h"

#include <algorithm>
#include <random>
#include <utility>

#include "schedules/search/evaluator.h"
#include "schedules/search/list_scheduler.h"
#include "schedules/search/rule_changes.h"

namespace contraflow {
namespace {

/// Stages of each rank, ascending.
using Passes = std::vector<std::vector<size_t>>;

/// Returns nothing where there are no passes whose sizes could differ.
std::optional<Passes> PassesOf(const Plan& frame) {
  if (frame.routes.size() != 1) return std::nullopt;
  Passes passes(static_cast<size_t>(frame.ranks));
  for (size_t s = 0; s < frame.routes[0].ranks.size(); ++s) {
    passes[static_cast<size_t>(frame.routes[0].ranks[s])].push_back(s);
  }
  const size_t depth = passes.front().size();
  const auto alike = [&](const auto& stages) { return stages.size() == depth; };
  if (depth < 2 || !std::ranges::all_of(passes, alike)) return std::nullopt;
  return passes;
}

/// Moves a layer of each of some ranks; false where a stage would have none.
bool Shift(const Passes& passes, std::pair<size_t, size_t> ranks, size_t from, size_t to,
           Partition* partition) {
  for (size_t r = ranks.first; r < ranks.second; ++r) {
    if (--(*partition)[passes[r][from]] < 1) return false;
    ++(*partition)[passes[r][to]];
  }
  return true;
}

/// Number of policies tried on all starts, and their distance in the grid. This trial and the one
/// of the starts each take 1/8 of the work.
constexpr size_t kFewPolicies = 3, kStride = 619;
constexpr int64_t kLookShare = 8;
/// 1/3 of the work is for the final search of the order.
constexpr int64_t kOrderShare = 3;
/// Minimum number of schedules to run; schedules per extra start; maximum number of starts.
constexpr int64_t kFewestSchedules = 50, kSchedulesEach = 1000;
constexpr size_t kMostStarts = 16;
/// Three changes out of ten are of the partition; three out of four of these are of passes.
constexpr size_t kOfPartition = 3, kOfPasses = 3;
/// Number of places where the stages with one more layer may begin.
constexpr int kStretches = 12;
/// Making a problem takes as long as scheduling about this many of its instructions.
constexpr int64_t kMaking = 3;

class Climb {
 public:
  Climb(const Passes& passes, const ProblemOf& problem_of, Partition start, SearchProblem problem,
        uint64_t seed)
      : passes_(&passes),
        problem_of_(&problem_of),
        random_(seed),
        partition_(std::move(start)),
        problem_(std::move(problem)),
        scheduler_(problem_) {}

  Time makespan() const { return makespan_; }
  int64_t instructions() const { return 3 * problem_.chunks(); }

  /// The schedule of a policy, if it takes less than `below`.
  std::optional<Time> Try(const Policy& policy, Time below, SearchWork* work) {
    Rules rules = RulesOf(problem_, policy);
    const std::optional<Time> found = scheduler_.Run(rules, below);
    work->Spend(scheduler_.cost());
    if (found && *found < makespan_) Keep(*found, std::move(rules));
    return found;
  }

  /// The few with the shortest schedules of those that are tried until no more than `leave` of the
  /// work is left.
  std::vector<Policy> BestPolicies(int64_t leave, SearchWork* work) {
    const std::vector<Policy> grid = PolicyGrid(problem_);
    std::vector<std::pair<Time, size_t>> best;
    for (size_t i = 0; i < grid.size() && (work->left() > leave || best.empty()); ++i) {
      const size_t at = i * kStride % grid.size();
      const bool full = best.size() == kFewPolicies;
      const std::optional<Time> found =
          Try(grid[at], full ? best.back().first : RankQueue::kNever, work);
      if (!found) continue;
      if (full) best.pop_back();
      best.insert(std::ranges::upper_bound(best, std::pair(*found, at)), {*found, at});
    }
    std::vector<Policy> policies;
    for (const auto& [makespan, at] : best) policies.push_back(grid[at]);
    return policies;
  }

  /// Until no more than `leave` of the work is left.
  void Improve(Time bound, int64_t leave, SearchWork* work) {
    while (makespan_ > bound && work->left() > leave && rules_) {
      const bool moves = Draw(10) < kOfPartition;
      Partition partition = partition_;
      if (moves && !Move(&partition)) {
        work->Spend(1);
        continue;
      }
      Rules rules = *rules_;
      if (!moves || Draw(2) == 0) RuleChanges(problem_, &random_).Make(&rules);
      if (!moves) {
        const std::optional<Time> found = scheduler_.Run(rules, makespan_ + 1);
        work->Spend(scheduler_.cost());
        if (found && !Worse(*found, scheduler_)) Keep(*found, std::move(rules));
        continue;
      }
      std::optional<SearchProblem> problem = (*problem_of_)(partition);
      work->Spend(kMaking * instructions());
      if (!problem) continue;
      ListScheduler scheduler(*problem);
      const std::optional<Time> found = scheduler.Run(rules, makespan_ + 1);
      work->Spend(scheduler.cost());
      if (!found || Worse(*found, scheduler)) continue;
      partition_ = std::move(partition);
      problem_ = std::move(*problem);
      scheduler_ = std::move(scheduler);
      Keep(*found, std::move(rules));
    }
  }

  /// The order of the best schedule, improved with this much of the work.
  std::optional<TunedPartition> Finish(Time bound, uint64_t seed, int64_t budget,
                                       SearchWork* work) {
    const std::optional<Time> found = scheduler_.Run(*rules_, RankQueue::kNever);
    if (!found) return std::nullopt;
    SearchResult result = {scheduler_.TakeOrder(), *found, "rules and layers"};
    result.makespan = Evaluate(problem_, result.order).makespan;
    ImproveWithin(problem_, bound, seed, budget, work, &result);
    return TunedPartition{partition_, std::move(result)};
  }

 private:
  size_t Draw(size_t below) { return static_cast<size_t>(random_() % below); }

  bool Worse(Time found, const ListScheduler& scheduler) const {
    return std::pair(found, scheduler.ends()) > std::pair(makespan_, ends_);
  }

  void Keep(Time found, Rules rules) {
    makespan_ = found;
    ends_ = scheduler_.ends();
    rules_ = std::move(rules);
  }

  /// A layer goes from one pass to another on some ranks, or anywhere; one or two times.
  bool Move(Partition* partition) {
    for (size_t i = 0, count = 1 + Draw(2); i < count; ++i) {
      if (Draw(4) < kOfPasses) {
        const size_t from = Draw(passes_->front().size()), to = Draw(passes_->front().size());
        const std::pair<size_t, size_t> ranks = DrawStretch(passes_->size(), &random_);
        if (from == to || !Shift(*passes_, ranks, from, to, partition)) return false;
      } else {
        const size_t from = Draw(partition->size()), to = Draw(partition->size());
        if (from == to || --(*partition)[from] < 1) return false;
        ++(*partition)[to];
      }
    }
    return true;
  }

  const Passes* passes_;
  const ProblemOf* problem_of_;
  std::mt19937_64 random_;
  Partition partition_;
  SearchProblem problem_;
  ListScheduler scheduler_;
  std::optional<Rules> rules_;
  Time makespan_ = RankQueue::kNever, ends_ = RankQueue::kNever;
};

/// Shorter schedules first.
void Sort(std::vector<Climb>* climbs) {
  std::ranges::stable_sort(*climbs, {}, [](const Climb& climb) { return climb.makespan(); });
}

/// Climbs from those of the starts with the shortest schedules of a few policies, these first.
std::vector<Climb> Looked(const Passes& passes, const std::vector<Partition>& starts,
                          const ProblemOf& problem_of, uint64_t seed, SearchWork* work) {
  const int64_t share = work->left() / kLookShare;
  int64_t leave = work->left() - share;
  std::vector<Climb> climbs;
  std::vector<Policy> few;
  for (size_t i = 0; i < starts.size(); ++i) {
    if (!climbs.empty() && work->left() <= leave - share) break;
    std::optional<SearchProblem> problem = problem_of(starts[i]);
    if (!problem) continue;
    climbs.emplace_back(passes, problem_of, starts[i], std::move(*problem), seed + i);
    Climb& climb = climbs.back();
    work->Spend(kMaking * climb.instructions());
    if (few.empty()) {
      few = climb.BestPolicies(leave, work);
      leave = work->left();
    } else {
      for (const Policy& policy : few) climb.Try(policy, climb.makespan(), work);
    }
    Sort(&climbs);
    if (climbs.size() > kMostStarts) climbs.pop_back();
  }
  return climbs;
}

}  // namespace

std::vector<Partition> UnevenPasses(const Plan& frame, const std::vector<Partition>& of) {
  std::vector<Partition> uneven;
  const std::optional<Passes> passes = PassesOf(frame);
  if (!passes) return uneven;
  const size_t ranks = passes->size(), depth = passes->front().size();
  std::vector<std::pair<size_t, size_t>> stretches;
  for (size_t k = ranks; k > 0; k /= 2) {
    stretches.emplace_back(0, k);
    if (k < ranks) stretches.emplace_back(ranks - k, ranks);
  }
  for (const Partition& partition : of) {
    for (const auto& stretch : stretches) {
      for (size_t from = 0; from < depth; ++from) {
        for (size_t to = 0; to < depth; ++to) {
          Partition shifted = partition;
          if (from == to || !Shift(*passes, stretch, from, to, &shifted)) continue;
          if (std::ranges::count(uneven, shifted) == 0) uneven.push_back(std::move(shifted));
        }
      }
    }
  }
  return uneven;
}

std::vector<Partition> FullStretches(int layers, int stages) {
  const int fewer = layers / stages, full = layers % stages, others = stages - full;
  std::vector<Partition> partitions;
  for (int k = 0; k <= kStretches && full > 0; ++k) {
    const auto first = static_cast<ptrdiff_t>(others) * k / kStretches;
    Partition partition(static_cast<size_t>(stages), fewer);
    std::fill_n(partition.begin() + first, full, fewer + 1);
    if (std::ranges::count(partitions, partition) == 0) partitions.push_back(std::move(partition));
  }
  return partitions;
}

std::optional<TunedPartition> TuneTogether(const Plan& frame, const std::vector<Partition>& starts,
                                           const ProblemOf& problem_of, Time bound, uint64_t seed,
                                           SearchWork* work) {
  const std::optional<Passes> passes = PassesOf(frame);
  if (!passes) return std::nullopt;
  const int64_t all = work->left();
  const int64_t schedules = all / (int64_t{3} * frame.stages * frame.microbatches);
  if (schedules < kFewestSchedules) return std::nullopt;
  work->Enter("rules and layers");
  std::vector<Climb> climbs = Looked(*passes, starts, problem_of, seed, work);
  if (climbs.empty()) return std::nullopt;
  const auto most = static_cast<size_t>(std::max<int64_t>(1, schedules / kSchedulesEach));
  climbs.resize(std::min(climbs.size(), most), climbs.front());
  const int64_t of_order = all / kOrderShare;
  int halvings = 1;
  for (size_t count = climbs.size(); count > 1; count = (count + 1) / 2) ++halvings;
  for (; halvings > 0; --halvings) {
    const int64_t begin = work->left();
    const int64_t part = std::max<int64_t>(begin - of_order, 0) / halvings;
    const auto count = static_cast<int64_t>(climbs.size());
    for (int64_t i = 0; i < count; ++i) {
      climbs[static_cast<size_t>(i)].Improve(bound, begin - part * (i + 1) / count, work);
    }
    Sort(&climbs);
    if (climbs.front().makespan() <= bound) break;
    climbs.erase(climbs.begin() + static_cast<ptrdiff_t>((climbs.size() + 1) / 2), climbs.end());
  }
  if (climbs.front().makespan() == RankQueue::kNever) return std::nullopt;
  return climbs.front().Finish(bound, seed, work->left(), work);
}

}  // namespace contraflow
