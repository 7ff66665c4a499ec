#include "schedules/made_plans.h"

#include <algorithm>
#include <utility>

namespace contraflow {

Plan MadePlans::Get(const Spec& spec, const std::function<Plan()>& make) {
  std::unique_lock lock(mutex_);
  auto made = std::ranges::find(all_, spec, &Made::spec);
  if (made == all_.end()) {
    made = all_.insert(all_.end(), Made{spec, false, {}, {}});
    lock.unlock();
    std::optional<Plan> plan;
    std::exception_ptr why_not;
    try {
      plan = make();
    } catch (...) {
      why_not = std::current_exception();
    }
    lock.lock();
    made->plan = std::move(plan);
    made->why_not = why_not;
    made->done = true;
    made_.notify_all();
  }
  made_.wait(lock, [&] { return made->done; });
  if (!made->plan) std::rethrow_exception(made->why_not);
  return *made->plan;
}

LayerStages& MadePlans::StagesOf(const CostModel& costs, Overlap overlap) {
  const std::lock_guard lock(mutex_);
  const std::thread::id self = std::this_thread::get_id();
  for (auto& [thread, stages] : stages_) {
    if (thread == self && stages.AreOf(costs, overlap)) return stages;
  }
  return stages_.emplace_back(self, LayerStages(costs, overlap)).second;
}

}  // namespace contraflow
