#include "schedules/partition/made_plans.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <list>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace contraflow {

struct MadePlans::Kept {
  struct Made {
    Spec spec;
    bool done = false;
    std::optional<Plan> plan;
    std::exception_ptr why_not;
  };
  std::mutex mutex;  // of both lists and what is in the first
  std::condition_variable made;
  std::list<Made> all;
  std::list<std::pair<std::thread::id, LayerStages>> stages;
};

MadePlans::MadePlans() : kept_(std::make_unique<Kept>()) {}
MadePlans::~MadePlans() = default;

Plan MadePlans::Get(const Spec& spec, const std::function<Plan()>& make) {
  std::unique_lock lock(kept_->mutex);
  auto made = std::ranges::find(kept_->all, spec, &Kept::Made::spec);
  if (made == kept_->all.end()) {
    made = kept_->all.insert(kept_->all.end(), Kept::Made{spec, false, {}, {}});
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
    kept_->made.notify_all();
  }
  kept_->made.wait(lock, [&] { return made->done; });
  if (!made->plan) std::rethrow_exception(made->why_not);
  return *made->plan;
}

LayerStages& MadePlans::StagesOf(const CostModel& costs, Overlap overlap) {
  const std::lock_guard lock(kept_->mutex);
  const std::thread::id self = std::this_thread::get_id();
  for (auto& [thread, stages] : kept_->stages) {
    if (thread == self && stages.AreOf(costs, overlap)) return stages;
  }
  return kept_->stages.emplace_back(self, LayerStages(costs, overlap)).second;
}

}  // namespace contraflow
