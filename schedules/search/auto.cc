// The searched schedule: the shortest step that is found for given costs and memory, over one
// placement or all of them.
//
//   costs, limit -> candidates -> published orders that fit -> policies -> local search -> plan
//                   (routes)      (all of the table)           (search.h)
//
// The costs describe a model; every placement gets the same one, its stages cut in parts or merged
// (candidates.h), so that their steps compare. A placement whose proven bound is no
// shorter than what is found already is not searched. Each of the others has the whole budget, so
// that all of them give nothing longer than one alone. It counts evaluated instructions: the result
// depends on the spec and not on the machine.
//
// Published orders come first and the search only ever replaces an order by a better one, so the
// plan is never longer than any schedule of the table that fits the same placement and memory.

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compiler/bound/bound.h"
#include "compiler/plan/error.h"
#include "compiler/plan/memory_limit.h"
#include "compiler/simulate/simulate.h"
#include "schedules/published/placement.h"
#include "schedules/published/rows.h"
#include "schedules/search/candidate_search.h"
#include "schedules/search/candidates.h"
#include "schedules/search/portfolio.h"
#include "schedules/search_control.h"

namespace contraflow {
namespace {

/// True if a candidate's bound is the time that a step takes at least. Not where components overlap
/// from chunk to chunk or other micro-batches may come to a route.
bool BoundHolds(const Candidate& candidate, const Spec& asked) {
  const bool components = asked.search.components && asked.costs.components();
  return !components && !SharesOutMicrobatches(candidate, asked.search);
}

/// Limits that a candidate with more room is searched at, too, in quarters of 1x (P activations of
/// a whole rank).
constexpr int kQuarters[] = {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32};
/// Candidates at which the bound is that without any limit, so many; fewer where each takes long or
/// is searched with two kinds of overlap.
constexpr int kMostFree = 3, kMostFreeOverlapped = 1;

/// A candidate at one of these limits, or at its own.
struct Room {
  Candidate candidate;
  Time bound = 0;
};

/// The most that a rank may ever hold, in what limits count.
int64_t MostHeld(const Plan& frame, const MemoryLimit& unit) {
  int64_t most = 0;
  for (int r = 0; r < frame.ranks; ++r) {
    int64_t held = 0;
    for (const Route& route : frame.routes) {
      const auto microbatches = static_cast<int64_t>(route.microbatches.size());
      held += std::ranges::count(route.ranks, r) * microbatches * unit.largest();
    }
    most = std::max(most, held);
  }
  return most;
}

/// The candidate with less and less room than its own: at the limits that count, and at those that
/// are less than `peak`, what it holds without a limit. `free` is its bound without one.
std::vector<Room> LesserRooms(const Candidate& candidate, const Spec& asked, Time free,
                              int64_t peak) {
  const Plan& frame = candidate.frame;
  const CostModel& costs = candidate.spec.costs;
  const std::optional<int64_t> own = candidate.spec.memory_limit;
  const MemoryLimit unit(costs);
  // Limits in activations count those of the costs that were given.
  const int64_t parts = unit.bytes() ? 1 : std::max(1, frame.stages / CostStages(asked));
  const int64_t whole =
      (unit.bytes() ? costs.memory->ActivationOfAll(frame.stages) : frame.stages) / parts;
  const int64_t least = SerialPeak(frame, costs, false), most = MostHeld(frame, unit);
  std::vector<Room> rooms;
  int left = costs.derived ? kMostFreeOverlapped : kMostFree;
  // Looking at all schedules finds what any limit allows.
  if (IsSmall(candidate, candidate.spec.search)) left = static_cast<int>(std::size(kQuarters));
  int64_t last = 0;
  for (const int quarters : kQuarters) {
    const int64_t limit = (whole / 4 * quarters + whole % 4 * quarters / 4) * parts;
    if ((own && limit >= *own) || limit >= most || (left <= 0 && limit >= peak)) break;
    if (limit < least || limit == std::exchange(last, limit)) continue;
    rooms.push_back({candidate, ProveBound(frame, costs, limit).value});
    rooms.back().candidate.spec.memory_limit = limit;
    if (rooms.back().bound <= free) --left;
  }
  std::ranges::reverse(rooms);
  return rooms;
}

/// Costs with chunks that overlap as published, if these overlap more.
std::optional<CostModel> WithPublishedOverlap(CostModel costs) {
  if (!costs.moe || costs.derived != Overlap::kAll) return std::nullopt;
  bool more = false;
  for (StageCost& stage : costs.stages) {
    more |= stage.bw < stage.b + stage.w;
    stage.bw = stage.b + stage.w;
  }
  costs.derived = Overlap::kPublished;
  return more ? std::optional(std::move(costs)) : std::nullopt;
}

/// The best for a candidate and for what it has more room than, or chunks that overlap more than:
/// whatever is found for these runs in it and takes no longer there. So more memory never gives a
/// longer step, from one of the limits above to the next; and a search with little room often finds
/// the shorter order.
class RoomSearch {
 public:
  /// `bound` is proven for the candidate. But for what is searched first, nothing that is no
  /// shorter than `enough` is looked for.
  RoomSearch(const Candidate& candidate, Time bound, std::optional<Time> enough, const Spec& asked,
             const SearchControl& control)
      : candidate_(candidate),
        spec_(candidate.spec),
        asked_(asked),
        control_(control),
        shared_(SharesOutMicrobatches(candidate, asked.search)),
        bound_(bound),
        enough_(enough) {}

  /// Returns nothing where all that is found holds too much.
  std::optional<Choice> Run() {
    if (!spec_.search.lesser_limits || spec_.search.noise > 0) {
      return SearchCandidate(candidate_, bound_, asked_, control_);
    }
    TryRooms(candidate_, bound_);
    if (best_ && !shared_ && best_->step <= bound_) return std::move(best_);
    if (std::optional<CostModel> less = WithPublishedOverlap(spec_.costs)) {
      Candidate published = candidate_;
      published.spec.costs = std::move(*less);
      TryRooms(published,
               ProveBound(published.frame, published.spec.costs, spec_.memory_limit).value);
    }
    return std::move(best_);
  }

 private:
  /// With its own room, of which `bound` is the bound, and then less. Where the bound is that
  /// without a limit, what is found without one is taken, if it fits.
  void TryRooms(const Candidate& of, Time bound) {
    const bool own = of.spec == spec_;
    Candidate any = of;
    any.spec.memory_limit.reset();
    const Time free = of.spec.memory_limit ? ProveBound(of.frame, of.spec.costs, {}).value : bound;
    if (best_ && !Worth(bound)) return;
    int64_t peak = 0;
    bool fits = false;
    if (bound <= free) {
      // A bound with any room holds with this one.
      fits = Try({any, free}, own);
      peak = peak_;
    }
    if (!fits) Try({of, bound}, own);
    if (best_ && !shared_ && best_->step <= bound) return;
    for (const Room& room : LesserRooms(of, asked_, free, peak)) {
      if (best_ && control_.stopped()) return;
      if (!Worth(room.bound)) return;
      Try(room, false);
    }
  }

  /// True where something shorter may be found. Of components a bound is no proof, but hardly any
  /// order overlaps so much more from chunk to chunk.
  bool Worth(Time bound) const { return !enough_ || bound < *enough_ || shared_; }

  /// `own`: with the costs of the candidate itself, and no less room. False where what is found
  /// holds too much.
  bool Try(const Room& room, bool own) {
    const double next = (1 + spent_) / 2;
    Choice choice = SearchCandidate(room.candidate, room.bound, asked_,
                                    PartOf(control_, std::exchange(spent_, next), next, ""));
    choice.plan.costs = spec_.costs;
    const Simulation run = Simulate(choice.plan, spec_.costs, Keep::kFigures);
    const MemoryLimit limit(spec_.costs, spec_.memory_limit);
    peak_ = 0;
    for (const RankFigures& rank : run.ranks) peak_ = std::max(peak_, limit.Peak(rank));
    if (!limit.Fits(run)) return false;
    choice.step = StepTime(choice.plan, spec_.costs, spec_.memory_limit, asked_.search);
    // The one that holds less wins of equals.
    if (best_ && choice.step > best_->step) return true;
    // If all orders were looked at it is another bound. That of a way to share micro-batches out
    // holds for no other.
    const Provenance& found = *choice.plan.provenance;
    if (own && !shared_) bound_ = std::max(bound_, found.bound);
    Time bound = bound_;
    if (shared_) {
      bound = own ? found.bound : ProveBound(choice.plan, spec_.costs, spec_.memory_limit).value;
    }
    choice.plan.provenance = ProvenanceOf(candidate_, asked_, found.from, run.makespan, bound);
    best_ = std::move(choice);
    enough_ = std::min(best_->step, enough_.value_or(best_->step));
    return true;
  }

  const Candidate& candidate_;
  const Spec& spec_;
  const Spec& asked_;
  const SearchControl& control_;
  const bool shared_;  // other micro-batches may come to a route
  Time bound_;
  std::optional<Time> enough_;
  std::optional<Choice> best_;
  int64_t peak_ = 0;  // of what was found last
  double spent_ = 0;
};

Plan SearchAll(const Spec& spec, const SearchControl& control) {
  const std::vector<Candidate> candidates = CandidatesOf(spec);
  std::optional<Choice> best;
  std::optional<Error> first_error;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const Candidate& candidate = candidates[i];
    if (best && control.stopped()) break;
    const std::optional<int64_t> limit = candidate.spec.memory_limit;
    if (limit && SerialPeak(candidate.frame, candidate.spec.costs, false) > *limit) continue;
    try {
      const Bound bound = ProveBound(candidate.frame, candidate.spec.costs, limit);
      if (best && BoundHolds(candidate, spec) && bound.value >= best->step) continue;
      const auto count = static_cast<double>(candidates.size()), at = static_cast<double>(i);
      const std::string name = std::string(Name(candidate.placement)) + ", ";
      const SearchControl part = PartOf(control, at / count, (at + 1) / count, name);
      const std::optional<Time> enough = best ? std::optional(best->step) : std::nullopt;
      std::optional<Choice> choice = RoomSearch(candidate, bound.value, enough, spec, part).Run();
      if (choice && (!best || choice->step < best->step)) best = std::move(choice);
    } catch (const Error& error) {
      // Costs or a limit that this placement cannot have; another one may.
      if (!first_error) first_error = error;
    }
  }
  if (!best && first_error) throw *first_error;
  if (!best && !DevicesOf(spec).empty()) {
    throw Error(spec.schedule +
                " does not fit `device_memory`: no placement that was tried leaves room for one "
                "micro-batch; " +
                DeviceAdvice(spec));
  }
  if (!best) throw Error(spec.schedule + " " + MemoryAdvice(spec));
  best->plan.provenance->interrupted = control.stopped();
  return std::move(best->plan);
}

}  // namespace

const Schedule kAuto = {
    .name = "auto",
    .summary = "searched for these costs: the shortest step that fits the memory, with its bound",
    .limits = "any P and M, any `placement`; if the costs list stages, P of them or a multiple",
    .memory = "as `memory_limit` says",
    // Stages of its costs: where the placement has a different number of stages, they are cut or
    // merged.
    .stages = CostStages,
    .reject = RejectPlacement,
    .generate = [](const Spec& spec) { return SearchAll(spec, SearchControl()); },
    // Any order of all micro-batches may come of a search, and a limit is not known here to be in
    // activations.
    .peak_activations = [](const Spec& spec, int) { return MostChunks(spec) * spec.microbatches; },
    .formula = nullptr,
    .search = SearchAll,
    .takes_chunks = true,
};

}  // namespace contraflow
