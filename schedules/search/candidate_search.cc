#include "schedules/search/candidate_search.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "compiler/bound/bound.h"
#include "compiler/simulate/simulate.h"
#include "schedules/pairs/lowered_search.h"
#include "schedules/published/placement.h"
#include "schedules/search/exact_search.h"
#include "schedules/search/ladder.h"
#include "schedules/search/portfolio.h"
#include "schedules/search/search.h"

namespace contraflow {
namespace {

/// The longer of two orders may make the shorter step, with reductions and optimizer steps or taken
/// apart into components; no published one that fits may.
void PreferShorterSteps(const SearchProblem& problem, const std::vector<Plan>& published,
                        const SearchOptions& options, Choice* choice) {
  if (!LongerThanOrder(problem.costs, options)) return;
  for (const Plan& plan : published) {
    const std::optional<Order> order = ToOrder(problem, plan);
    if (!order || !Evaluate(problem, *order).fits) continue;
    const Time step = StepTime(plan, problem.costs, problem.limit, options);
    if (step >= choice->step) continue;
    choice->step = step;
    choice->plan.programs = plan.programs;
    choice->plan.provenance->from = plan.schedule;
    choice->plan.provenance->makespan = Simulate(plan, problem.costs).makespan;
  }
}

/// True where the components of neighbouring chunks share lanes, so that an order takes another
/// time than its chunks one behind the other.
bool SharesLanes(const Spec& spec) {
  return spec.search.components && spec.costs.components() &&
         spec.costs.derived.value_or(Overlap::kAll) == Overlap::kAll;
}

/// A second search, of the order as it runs on its lanes.
void ImproveOnLanes(const Spec& spec, SearchWork* work, Choice* choice) {
  work->Enter("lanes");
  Plan better = ImproveLowered(choice->plan, spec.costs, spec.memory_limit, spec.search.seed, work);
  const Time step = StepTime(better, spec.costs, spec.memory_limit, spec.search);
  if (step >= choice->step) return;
  choice->step = step;
  choice->plan.programs = std::move(better.programs);
  choice->plan.provenance->makespan = Simulate(choice->plan, spec.costs).makespan;
  choice->plan.provenance->from =
      ("lanes, from " + choice->plan.provenance->from).substr(0, kMaxFrom);
}

/// Share of the budget of a small candidate for its other searches, before all of its schedules are
/// looked at, and the share of the rest for that.
constexpr int64_t kFirstShare = 8, kExactShare = 2;

/// True where micro-batches that differ may come in any order: weight gradients add up in that of
/// the plan, but PyTorch takes none other than ascending in its last stage.
bool MixesMicrobatches(const Candidate& candidate, const SearchOptions& options) {
  const Spec& spec = candidate.spec;
  return spec.costs.unlike_microbatches() && !SharesStages(candidate.frame) && options.noise == 0 &&
         spec.target != Target::kTorch;
}

/// Looks at all schedules of a small candidate that are shorter than what was `found`, in `plan`.
/// If the budget ends before that, local search goes on. Returns the bound: where all have been
/// looked at, the shortest proves itself.
Time SearchSmall(const Candidate& candidate, const SearchProblem& problem, Time bound,
                 const SearchOptions& options, SearchWork* work, SearchResult* found, Plan* plan) {
  const Spec& spec = candidate.spec;
  ExactSearch exact = SearchExactly(candidate.frame, spec.costs, spec.memory_limit, {},
                                    found->makespan, bound, work->left() / kExactShare, work);
  if (!exact.programs.empty()) {
    plan->programs = std::move(exact.programs);
    found->makespan = exact.makespan;
    found->from = "exact search";
  }
  if (exact.complete) return found->makespan;
  // A schedule that mixes the order of micro-batches is no order to go on from.
  const std::optional<Order> order = ToOrder(problem, *plan);
  if (!order) return bound;
  found->order = *order;
  const Time before = found->makespan;
  ImproveWithin(problem, bound, options.seed, work->left(), work, found);
  if (found->makespan < before) plan->programs = ToPlan(problem, found->order).programs;
  return bound;
}

/// Start of the search of a candidate, whatever the budget.
struct Beginning {
  SearchProblem problem;
  std::vector<Plan> published;
};

Beginning BeginningOf(const Candidate& candidate, Time bound, const SearchOptions& options) {
  const Spec& spec = candidate.spec;
  // An order that reaches the bound is enough, unless other figures than its makespan count as
  // well.
  const bool makespan_only = !LongerThanOrder(spec.costs, spec.search) && options.noise == 0;
  return {MakeProblem(candidate.frame, spec.costs, spec.memory_limit),
          PublishedOrders(candidate, makespan_only ? std::optional(bound) : std::nullopt)};
}

Choice SearchOnce(const Candidate& candidate, const Beginning& beginning, Time bound,
                  const Spec& asked, const SearchOptions& options, const SearchControl& control) {
  const Spec& spec = candidate.spec;
  const auto& [problem, published] = beginning;
  SearchWork work(options, control);
  // If lanes are shared, half of the work is left for the search on them.
  std::optional<SearchResult> found;
  const bool lanes = SharesLanes(spec) && !SharesStages(candidate.frame);
  const bool small = IsSmall(candidate, options);
  if (lanes || small) {
    SearchOptions part = options;
    part.budget /= lanes ? 2 : kFirstShare;
    SearchWork first(part, control);
    found = Search(problem, published, bound, part, &first);
    work.Spend(part.budget / SearchWork::kNanosecondsEach - first.left());
  } else {
    found = Search(problem, published, bound, options, &work);
  }
  if (!found) {
    // Policies may miss what is tight; this one holds least of all.
    const std::vector<Plan> serial = {SerialOrder(candidate.frame)};
    found = Search(problem, serial, bound, options, &work);
  }
  CF_ASSERT(found);
  Choice choice{ToPlan(problem, found->order), 0};
  if (small && found->makespan > bound) {
    bound = SearchSmall(candidate, problem, bound, options, &work, &*found, &choice.plan);
  }
  if (SharesStages(choice.plan)) choice.plan = RenumberMicrobatches(std::move(choice.plan));
  choice.plan.costs = spec.costs;
  choice.plan.provenance = ProvenanceOf(candidate, asked, found->from, found->makespan, bound);
  choice.step = StepTime(choice.plan, spec.costs, spec.memory_limit, spec.search);
  PreferShorterSteps(problem, published, spec.search, &choice);
  if (lanes) ImproveOnLanes(spec, &work, &choice);
  return choice;
}

/// Share of a search for the order of micro-batches before it.
constexpr int64_t kArrangeShare = 4;

/// Searches with the micro-batches in the order that suits them best, which may give each route
/// others; nothing where that is the order of their numbers.
std::optional<Choice> SearchArranged(const Candidate& candidate, const SearchProblem& problem,
                                     Time bound, const Spec& asked, const SearchOptions& options,
                                     const SearchControl& control) {
  SearchOptions part = options;
  part.budget /= kArrangeShare;
  SearchWork work(part, control);
  const Time enough = SharesOutMicrobatches(candidate, options) ? 0 : bound;
  const std::vector<int> order = ArrangeMicrobatches(problem, enough, &work);
  if (std::ranges::is_sorted(order)) return std::nullopt;
  Candidate arranged = candidate;
  arranged.spec.costs.microbatch_scale = ScaleInOrder(candidate.spec.costs, order);
  const Time proven =
      ProveBound(arranged.frame, arranged.spec.costs, arranged.spec.memory_limit).value;
  Choice choice =
      SearchOnce(arranged, BeginningOf(arranged, proven, options), proven, asked, options, control);
  choice.plan = NumberMicrobatches(std::move(choice.plan), order);
  choice.plan.costs = candidate.spec.costs;
  return choice;
}

/// The best of searches with ever larger budgets, so that (SearchOptions::monotone) four times the
/// budget never gives a longer step. Most of what can be proven is so by the first ones.
Choice SearchLadder(const Candidate& candidate, Time bound, const Spec& asked,
                    const SearchOptions& options, const SearchControl& control) {
  const Beginning beginning = BeginningOf(candidate, bound, options);
  std::optional<Choice> best;
  const int64_t chunks = int64_t{candidate.frame.stages} * candidate.frame.microbatches;
  const std::vector<int64_t> ladder = LadderOf(options, LeastBudget(chunks));
  const auto all = static_cast<double>(std::accumulate(ladder.begin(), ladder.end(), int64_t{0}));
  double from = 0;
  for (const int64_t budget : ladder) {
    SearchOptions part = options;
    part.budget = budget;
    const double to = all > 0 ? from + static_cast<double>(budget) / all : 1;
    const SearchControl of_part = PartOf(control, std::exchange(from, to), to, "");
    Choice choice = SearchOnce(candidate, beginning, bound, asked, part, of_part);
    if (!best || choice.step <= best->step) best = std::move(choice);
    // Components may overlap from chunk to chunk, which the bound of an order knows nothing of.
    const bool components = options.components && candidate.spec.costs.moe;
    const auto proven = [&] { return !components && best->step <= best->plan.provenance->bound; };
    if (MixesMicrobatches(candidate, options) &&
        (!proven() || SharesOutMicrobatches(candidate, options))) {
      std::optional<Choice> arranged =
          SearchArranged(candidate, beginning.problem, bound, asked, part, of_part);
      if (arranged && arranged->step < best->step) best = std::move(arranged);
    }
    if (proven() && !SharesOutMicrobatches(candidate, options)) break;
    if (control.stopped()) break;
  }
  return std::move(*best);
}

}  // namespace

SearchControl PartOf(const SearchControl& all, double from, double to, const std::string& name) {
  if (!all.report) return all;
  const auto report = [=, report = all.report](const SearchState& state) {
    SearchState total = state;
    const std::string phase = name + std::string(state.phase);
    total.phase = phase;
    total.spent = from + state.spent * (to - from);
    report(total);
  };
  return {.stop = all.stop, .report = report, .made = all.made};
}

bool SharesOutMicrobatches(const Candidate& candidate, const SearchOptions& options) {
  return candidate.frame.routes.size() > 1 && MixesMicrobatches(candidate, options);
}

bool IsSmall(const Candidate& candidate, const SearchOptions& options) {
  if (options.noise > 0 || SharesLanes(candidate.spec)) return false;
  if (!TakesExactly(candidate.frame)) return false;
  // Only micro-batches that differ are mixed.
  return !candidate.spec.costs.unlike_microbatches() || MixesMicrobatches(candidate, options);
}

Choice SearchCandidate(const Candidate& candidate, Time bound, const Spec& asked,
                       const SearchControl& control) {
  const Spec& spec = candidate.spec;
  const SearchOptions& options = spec.search;
  if (options.noise == 0) return SearchLadder(candidate, bound, asked, options, control);
  Choice choice =
      SearchOnce(candidate, BeginningOf(candidate, bound, options), bound, asked, options, control);
  if (!SharesLanes(spec) && !LongerThanOrder(spec.costs, spec.search)) return choice;
  // An order that stands noise is no longer than another, but its step may be.
  SearchOptions exact = options;
  exact.noise = 0;
  Choice plain = SearchLadder(candidate, bound, asked, exact, control);
  return plain.step < choice.step ? plain : choice;
}

}  // namespace contraflow
