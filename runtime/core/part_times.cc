#include "runtime/core/part_times.h"

namespace contraflow {

void PartTimes::End(ModelPart part) {
  const Clock::time_point now = Clock::now();
  Times& times = times_[part];
  const size_t at = times.seen++ % kMostTimes;
  if (at == times.newest.size()) times.newest.emplace_back();
  times.newest[at] = Nanoseconds(now - begun_);
  // What this has taken is no part's.
  begun_ = Clock::now();
}

std::map<ModelPart, std::vector<Time>> PartTimes::times() const {
  std::map<ModelPart, std::vector<Time>> newest;
  for (const auto& [part, times] : times_) newest[part] = times.newest;
  return newest;
}

}  // namespace contraflow
