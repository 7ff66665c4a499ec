#include "schedules/portfolio.h"

#include <algorithm>
#include <string>
#include <utility>

#include "schedules/registry.h"
#include "schedules/rows.h"

namespace contraflow {

namespace {

/// What a schedule is stated to hold on its fullest rank.
int MostActivations(const Schedule& schedule, const Spec& spec) {
  int most = 0;
  for (int rank = 0; rank < spec.ranks; ++rank) {
    most = std::max(most, schedule.peak_activations(spec, rank));
  }
  return most;
}

}  // namespace

std::vector<Plan> PublishedOrders(const Candidate& candidate) {
  std::vector<std::pair<int, Plan>> plans;
  for (const Schedule* schedule : Schedules()) {
    if (schedule == &kAuto) continue;
    Spec spec = candidate.spec;
    spec.schedule = schedule->name;
    if (!schedule->reject(spec).empty()) continue;
    if (schedule->stages(spec) != candidate.frame.stages) continue;
    Plan plan = schedule->generate(spec);
    if (plan.routes != candidate.frame.routes) continue;
    plans.emplace_back(MostActivations(*schedule, spec), std::move(plan));
  }
  std::stable_sort(plans.begin(), plans.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Plan> result;
  for (auto& [most, plan] : plans) result.push_back(std::move(plan));
  return result;
}

}  // namespace contraflow
