// Shapes of costs of stages. A plan that holds less, or whose chunks overlap less, is one for the
// candidate as well, and a search with little room often finds the shorter order. So variations
// with less of both are shapes of their own.

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "compiler/bound/bound.h"
#include "compiler/plan/error.h"
#include "compiler/plan/memory_limit.h"
#include "compiler/simulate/simulate.h"
#include "schedules/auto/shape.h"
#include "schedules/partition/promising.h"
#include "schedules/partition/staged.h"
#include "schedules/published/placement.h"
#include "schedules/recompute/recompute.h"
#include "schedules/search/portfolio.h"

namespace contraflow {
namespace {

/// Lesser limits, in quarters of 1x (P activations of a whole rank).
constexpr int kQuarters[] = {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32};
/// Most of them at which the bound is that without any limit; fewer where each takes long.
constexpr int kMostFree = 3, kMostFreeOverlapped = 1;
/// Orders of a first search.
constexpr int64_t kOrdersOfStages = 64;

class StageShape : public Shape {
 public:
  /// Searches `searched` for plans of `candidate`, which differ in limit and overlap alone. With
  /// `any_room` and a bound that is no less so it first searches without a limit, and goes on so if
  /// the plan fits.
  StageShape(const Candidate& candidate, const Candidate& searched, bool any_room)
      : candidate_(candidate),
        varied_(candidate.spec != searched.spec),
        search_(SearchOf(searched)) {
    if (!any_room || search_ == nullptr) return;
    if (search_->bound() > LowerBound(searched.frame, searched.spec.costs)) return;
    Candidate free = searched;
    free.SetLimits({});
    free_ = SearchOf(free);
  }

  bool possible() const { return search_ != nullptr; }

  Time Bound(Time /*enough*/) override {
    // Hardly any order of components overlaps more from chunk to chunk than its bound allows.
    return varied_ || search_->Proves(search_->bound()) ? search_->bound() : 0;
  }

  bool Run(SearchWork* work, Incumbent* incumbent) override {
    if (free_ != nullptr) {
      if (Offer(*free_, work, incumbent)) return open_;
      free_.reset();
    }
    return Offer(*search_, work, incumbent) && open_;
  }

  Worth Look(SearchWork* work, Incumbent* /*incumbent*/) override {
    // Shapes of costs of stages run in their order.
    if (candidate_.spec.costs.partition.empty()) return {};
    const FirstOrder look = LookAt(candidate_, work);
    FoundHiding(look.hiding);
    return {look.worth.excess, look.worth.step};
  }

  int64_t instructions() const override { return InstructionsOf(candidate_.frame); }
  int64_t orders() const override { return kOrdersOfStages; }
  const std::vector<Route>& routes() const override { return candidate_.frame.routes; }

 private:
  /// False if the plan does not fit.
  bool Offer(CandidateSearch& search, SearchWork* work, Incumbent* incumbent) {
    std::optional<FoundPlan> found = search.Run(work);
    if (!found) return false;
    open_ = !search.Proves(found->step);
    Plan& plan = found->plan;
    if (varied_ || &search != search_.get()) {
      const Spec& spec = candidate_.spec;
      plan.costs = spec.costs;
      const Simulation run = Simulate(plan, spec.costs, Keep::kFigures);
      if (!candidate_.Fits(run)) return false;
      // Its routes may have other micro-batches than those of the frame.
      Candidate own = candidate_;
      own.frame = FrameOf(plan);
      plan.provenance = ProvenanceOf(own, plan.provenance->from, run.makespan, own.Bound());
      found->step = StepTime(plan, spec.costs, spec.memory_limit, spec.search, work);
    }
    Found(found->step);
    incumbent->Offer(std::move(plan));
    // A bound with any room holds within the limit.
    if (!varied_ && !open_)
      incumbent->Raise(std::string(Name(candidate_.placement)), search.bound());
    return true;
  }

  const Candidate candidate_;
  const bool varied_;
  const std::unique_ptr<CandidateSearch> search_;
  std::unique_ptr<CandidateSearch> free_;  // without a limit
  bool open_ = true;
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

/// Candidates with less and less room, at limits that may change what is found.
std::vector<Candidate> WithLessRoom(const Candidate& candidate) {
  const Plan& frame = candidate.frame;
  const CostModel& costs = candidate.spec.costs;
  const std::optional<int64_t> own = candidate.spec.memory_limit;
  const MemoryLimit unit(costs);
  const int64_t whole = unit.bytes() ? costs.memory->ActivationOfAll(frame.stages) : frame.stages;
  const int64_t least = SerialPeak(frame, costs, false), most = MostHeld(frame, unit);
  const Time free = LowerBound(frame, costs);
  std::vector<Candidate> candidates;
  int left = costs.derived ? kMostFreeOverlapped : kMostFree;
  int64_t last = 0;
  for (const int quarters : kQuarters) {
    const int64_t limit = whole / 4 * quarters + whole % 4 * quarters / 4;
    if ((own && limit >= *own) || limit >= most || left <= 0) break;
    if (limit < least || limit == std::exchange(last, limit)) continue;
    candidates.push_back(candidate);
    candidates.back().Limit(limit);
    if (ProveBound(frame, costs, limit).value <= free) --left;
  }
  std::ranges::reverse(candidates);
  return candidates;
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

}  // namespace

void AddStageShapes(const Candidate& candidate, std::vector<std::unique_ptr<Shape>>* shapes) {
  const Spec& spec = candidate.spec;
  const bool plain = !HoldsLess(spec) && spec.search.noise == 0;
  const auto add = [&](const Candidate& searched, bool any_room) {
    auto shape = std::make_unique<StageShape>(candidate, searched, any_room);
    if (shape->possible()) shapes->push_back(std::move(shape));
  };
  const auto add_all = [&](const Candidate& with) {
    add(with, plain && spec.memory_limit.has_value());
    if (!plain) return;
    for (const Candidate& less : WithLessRoom(with)) add(less, false);
  };
  add_all(candidate);
  if (!plain) return;
  if (std::optional<CostModel> less = WithPublishedOverlap(spec.costs)) {
    Candidate published = candidate;
    published.spec.costs = std::move(*less);
    add_all(published);
  }
}

std::vector<std::unique_ptr<Shape>> StageShapes(const Spec& spec, Incumbent* incumbent) {
  std::vector<std::unique_ptr<Shape>> shapes;
  for (const Spec& way : WithoutAndWith(spec)) {
    for (Candidate& candidate : CandidatesOf(way)) {
      // Another placement may have costs or a limit that this one cannot have.
      incumbent->Attempt([&] {
        candidate.spec.recompute =
            RepartitionRecompute(way.recompute, CostStages(way), candidate.frame.stages);
        AddStageShapes(candidate, &shapes);
      });
    }
  }
  return shapes;
}

}  // namespace contraflow
