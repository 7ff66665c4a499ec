#include "schedules/portfolio.h"

#include <algorithm>
#include <string>
#include <utility>

#include "compiler/error.h"
#include "compiler/simulate.h"
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

/// The same placement on few ranks, where it is soon seen which schedules have it.
Candidate SmallOne(const Candidate& candidate) {
  Spec spec = candidate.spec;
  spec.ranks = 4;
  spec.microbatches = 8;
  spec.costs = UniformCosts(1, 1, 1);
  spec.memory_limit.reset();
  const std::vector<Candidate> small = CandidatesOf(spec);
  CF_ASSERT(small.size() == 1);
  return small.front();
}

/// False where the schedule certainly makes other routes than the candidate's.
bool MayMakeRoutes(const Schedule& schedule, const Candidate& candidate) {
  if (candidate.spec.ranks == 1) return true;
  const Candidate small = SmallOne(candidate);
  if (!schedule.reject(small.spec).empty()) return true;
  return schedule.generate(small.spec).routes == small.frame.routes;
}

bool Suffices(const Plan& plan, const Candidate& candidate, Time enough) {
  const CostModel& costs = candidate.spec.costs;
  const Simulation simulation = Simulate(plan, costs);
  const bool bytes = costs.memory && costs.memory->activation_bytes > 0;
  const std::optional<int64_t> limit = candidate.spec.memory_limit;
  const auto fits = [&](const RankFigures& rank) {
    return !limit || (bytes ? rank.peak_bytes : int64_t{rank.peak_activations}) <= *limit;
  };
  return simulation.makespan <= enough &&
         std::all_of(simulation.ranks.begin(), simulation.ranks.end(), fits);
}

}  // namespace

std::vector<Plan> PublishedOrders(const Candidate& candidate, std::optional<Time> enough) {
  std::vector<std::pair<int, const Schedule*>> schedules;
  for (const Schedule* schedule : Schedules()) {
    if (schedule == &kAuto || !schedule->reject(candidate.spec).empty()) continue;
    if (schedule->stages(candidate.spec) != candidate.frame.stages) continue;
    if (!MayMakeRoutes(*schedule, candidate)) continue;
    schedules.emplace_back(MostActivations(*schedule, candidate.spec), schedule);
  }
  std::stable_sort(schedules.begin(), schedules.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Plan> plans;
  for (const auto& [most, schedule] : schedules) {
    Spec spec = candidate.spec;
    spec.schedule = schedule->name;
    Plan plan = schedule->generate(spec);
    if (plan.routes != candidate.frame.routes) continue;
    plans.push_back(std::move(plan));
    if (enough && Suffices(plans.back(), candidate, *enough)) break;
  }
  return plans;
}

}  // namespace contraflow
