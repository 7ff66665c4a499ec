#include "runtime/launch/custom_run.h"

#include <chrono>

namespace contraflow {

CustomRun::CustomRun(const CustomStages& stages, const ThreadNetwork::Options& options, bool fill)
    : options_(options), threads_(stages.plan(), options, [&](Device device, Transport&) {
        return std::make_unique<CustomBackend>(stages, device, fill);
      }) {}

std::unique_ptr<CustomTraining> CustomRun::NewBeside(const CustomStages& stages) {
  return std::make_unique<CustomRun>(stages, options_);
}

CustomProcessRun::CustomProcessRun(const CustomStages& stages, const RankOrder& order,
                                   Transport& transport, Control& control, Progress& progress,
                                   bool fill)
    : process_(stages.plan(), order, transport, control, progress, [&](Device device) {
        return std::make_unique<CustomBackend>(stages, device, fill);
      }) {}

// The watch over the job ends a run that hangs.
std::unique_ptr<CustomTraining> CustomProcessRun::NewBeside(const CustomStages& stages) {
  return std::make_unique<CustomRun>(stages,
                                     ThreadNetwork::Options{.timeout = std::chrono::hours(24)});
}

}  // namespace contraflow
