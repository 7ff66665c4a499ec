#include "schedules/made_plans.h"

#include <algorithm>
#include <utility>

#include "compiler/plan/error.h"

namespace contraflow {

Plan MadePlans::Get(const Spec& spec, const std::function<Plan()>& make) {
  auto made = std::ranges::find(all_, spec, &Made::spec);
  if (made == all_.end()) {
    Made first{spec, {}, {}};
    try {
      first.plan = make();
    } catch (const Error&) {
      first.why_not = std::current_exception();
    }
    made = all_.insert(all_.end(), std::move(first));
  }
  if (!made->plan) std::rethrow_exception(made->why_not);
  return *made->plan;
}

LayerStages& MadePlans::StagesOf(const CostModel& costs, Overlap overlap) {
  const auto known =
      std::ranges::find_if(stages_, [&](const auto& one) { return one.AreOf(costs, overlap); });
  return known != stages_.end() ? *known : stages_.emplace_back(costs, overlap);
}

}  // namespace contraflow
