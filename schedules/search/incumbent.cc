#include "schedules/search/incumbent.h"

#include <algorithm>
#include <utility>

#include "schedules/search/portfolio.h"

namespace contraflow {

Worth WorthOfPlan(const Plan& plan, const Spec& spec) {
  const CostModel& costs = plan.costs ? *plan.costs : spec.costs;
  const std::optional<int64_t> limit =
      plan.provenance ? plan.provenance->memory_limit : spec.memory_limit;
  return {ExcessMemory(plan, costs, spec), StepTime(plan, costs, spec, limit)};
}

bool Incumbent::Offer(Plan plan) {
  std::optional<Worth> offered;
  if (best_) {
    offered = WorthOfPlan(plan, spec_);
    if (*offered >= worth()) return false;
  }
  best_ = std::move(plan);
  worth_ = offered;
  return true;
}

bool Incumbent::Try(const std::function<Plan()>& make) {
  return Attempt([&] { Offer(make()); });
}

bool Incumbent::Attempt(const std::function<void()>& step) {
  try {
    step();
    return true;
  } catch (const InternalError&) {
    throw;
  } catch (const Error& error) {
    Refuse(error);
    return false;
  }
}

void Incumbent::Raise(const std::string& placement, Time bound) {
  if (!best_ || best_->provenance->placement != placement) return;
  Provenance& provenance = *best_->provenance;
  provenance.bound = std::max(provenance.bound, std::min(bound, provenance.makespan));
}

const Worth& Incumbent::worth() {
  if (!worth_) worth_ = WorthOfPlan(*best_, spec_);
  return *worth_;
}

Plan Incumbent::Take(bool possible) {
  if (!best_ || (!possible && !fits())) throw *why_not_;
  return std::move(*best_);
}

}  // namespace contraflow
