// Which order goes well with the host's memory: one that was made for a looser limit, or for none,
// is shorter and holds more, and what it holds too much may have somewhere to go.

#include "schedules/auto/offload_search.h"

#include <algorithm>
#include <string>
#include <utility>

#include "compiler/bound/bound.h"
#include "compiler/plan/error.h"
#include "compiler/plan/memory_limit.h"
#include "compiler/plan/recompute_cost.h"
#include "compiler/simulate/simulate.h"
#include "schedules/recompute/offload.h"
#include "schedules/recompute/offload_rules.h"
#include "schedules/search/portfolio.h"

namespace contraflow {
namespace {

/// How much looser the limits are that orders are made for, in quarters, and the divisor of the
/// work that each search has.
struct Looser {
  int quarters;
  int64_t divisor;
};
constexpr Looser kLooser[] = {{4, 8}, {6, 16}, {8, 16}, {16, 16}};

}  // namespace

OffloadSearch::OffloadSearch(const Candidate& candidate)
    : candidate_(candidate),
      freely_(candidate.spec.offload.choice == Offload::Choice::kAuto),
      frame_(candidate.frame) {
  const Spec& spec = candidate.spec;
  CheckHostCost(spec.costs, true);
  bound_ = BoundOfOffloaded(candidate.frame, spec.costs, spec.memory_limit).value;
  for (const Looser& looser : kLooser) {
    Candidate resident = candidate;
    resident.spec.offload = {};
    if (resident.limits.empty() && !residents_.empty()) break;
    std::vector<int64_t> limits = candidate.limits;
    for (int64_t& limit : limits) {
      limit = std::max<int64_t>(1, limit / 4 * looser.quarters + limit % 4 * looser.quarters / 4);
    }
    resident.SetLimits(std::move(limits));
    std::unique_ptr<CandidateSearch> search = SearchOf(resident);
    residents_.push_back(std::move(search));  // null: nothing fits
  }
}

bool OffloadSearch::Proves(Time step) const {
  const Spec& spec = candidate_.spec;
  return !ByComponents(spec.costs, spec.search) && step <= bound_;
}

std::optional<FoundPlan> OffloadSearch::Run(SearchWork* work) {
  OfferResidents(work);
  const Spec& spec = candidate_.spec;
  const bool lists = spec.recompute.choice == Recompute::Choice::kAuto ||
                     spec.recompute.choice == Recompute::Choice::kNone;
  if (freely_ && lists && !candidate_.limits.empty() && !Done()) OfferListed(work);
  return best_;
}

/// Takes a plan if it fits and its step is shorter than that of the best.
bool OffloadSearch::Offer(Plan plan, const std::string& from, SearchWork* work) {
  const CostModel& costs = candidate_.spec.costs;
  const Simulation run = Simulate(plan, costs, Keep::kFigures);
  if (!candidate_.Fits(run)) return false;
  if (best_ && MuchLonger(run.makespan, best_->plan.provenance->makespan)) return false;
  const Time step = StepTime(plan, candidate_.spec, run.makespan, work);
  if (best_ && step >= best_->step) return false;
  plan.costs = costs;
  plan.provenance = ProvenanceOf(candidate_, from, run.makespan,
                                 ProveBound(plan, costs, candidate_.spec.memory_limit).value);
  best_ = FoundPlan{std::move(plan), step};
  return true;
}

/// Orders that are made without a copy, for the limit and for looser ones.
void OffloadSearch::OfferResidents(SearchWork* work) {
  const CostModel& costs = candidate_.spec.costs;
  const int64_t all = work->left();
  for (size_t i = 0; i < residents_.size(); ++i) {
    if (residents_[i] == nullptr || Done()) continue;
    SearchWork part(work, all / kLooser[i].divisor);
    std::optional<FoundPlan> found = residents_[i]->Run(&part);
    if (!found) continue;
    const std::string from = found->plan.provenance->from;
    if (!best_) frame_.routes = found->plan.routes;
    Offer(freely_ ? OffloadToFit(found->plan, costs, candidate_.limits)
                  : OffloadStages(found->plan, costs,
                                  StagesToOffload(candidate_.frame.stages, candidate_.spec)),
          from, work);
  }
}

/// Orders that are made together with their copies.
void OffloadSearch::OfferListed(SearchWork* work) {
  const CostModel& costs = candidate_.spec.costs;
  const std::string from = "list scheduling with copies";
  work->Enter("offload");
  Plan listed = SearchOffloadRules(frame_, costs, candidate_.limits, bound_,
                                   candidate_.spec.search.seed, work);
  if (listed.programs.empty()) return;
  // It copies as much as it can. If the same order needs fewer copies, those are taken.
  Plan order = listed;
  for (Program& program : order.programs) {
    std::erase_if(program, [](const Instruction& i) { return IsHostCopy(i.op); });
  }
  Offer(OffloadToFit(order, costs, candidate_.limits), from, work);
  Offer(std::move(listed), from, work);
}

}  // namespace contraflow
