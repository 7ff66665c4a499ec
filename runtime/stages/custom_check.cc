#include "runtime/stages/custom_check.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "compiler/plan/error.h"
#include "runtime/core/serial_plan.h"
#include "runtime/host/check.h"

namespace contraflow {

CustomCheck::CustomCheck(const CustomStages& stages, CustomTraining& training)
    : plan_(stages.plan()),
      training_(training),
      serial_plan_(SerialPlan(plan_)),
      serial_stages_(stages, serial_plan_),
      serial_(training.NewReference(serial_stages_)) {}

std::string CustomCheck::DifferenceIn(int step, const StepResult& result, int64_t* bytes) {
  const std::vector<float> losses = serial_->Step(step).losses;
  const std::string at = "step " + std::to_string(step) + ": ";
  std::vector<std::byte> rooms[2];
  const auto same = [&](const void* here, const void* there, size_t size) {
    return std::ranges::equal(training_.Read(here, size, &rooms[0]),
                              training_.Read(there, size, &rooms[1]));
  };
  for (size_t i = 0; i < result.losses.size(); ++i) {
    *bytes += static_cast<int64_t>(sizeof(float));
    if (std::bit_cast<uint32_t>(losses[i]) != std::bit_cast<uint32_t>(result.losses[i])) {
      return at + NameOfLoss(plan_, i) + " is " + std::to_string(result.losses[i]) +
             ", without a pipeline " + std::to_string(losses[i]);
    }
  }
  const auto differs = [&](CustomStage& here, CustomStage& there, bool count) -> std::string {
    const std::vector<contraflow_block> blocks = here.Blocks(), others = there.Blocks();
    CF_ASSERT(blocks.size() == others.size());
    for (size_t b = 0; b < blocks.size(); ++b) {
      if (blocks[b].bytes != others[b].bytes ||
          !same(blocks[b].data, others[b].data, blocks[b].bytes)) {
        return blocks[b].name;
      }
      if (count) *bytes += static_cast<int64_t>(blocks[b].bytes);
    }
    return "";
  };
  const std::vector<std::vector<int>> holders = HoldersOfStage(plan_);
  for (const Device& device : training_.devices()) {
    for (const int s : training_.At(device).Held()) {
      const std::string where = " of stage " + std::to_string(s) + " on replica " +
                                std::to_string(device.replica) + " rank " +
                                std::to_string(device.rank) + " is not the same as ";
      CustomStage &here = training_.At(device).At(s), &there = serial_->At(device).At(s);
      const std::span<float> gradients = here.gradients();
      *bytes += static_cast<int64_t>(gradients.size_bytes());
      if (gradients.size() != there.gradients().size() ||
          !same(gradients.data(), there.gradients().data(), gradients.size_bytes())) {
        return at + "the gradient" + where + "without a pipeline";
      }
      std::string block = differs(here, there, true);
      if (!block.empty()) return at + "block \"" + block + "\"" + where + "without a pipeline";
      const int first = holders[static_cast<size_t>(s)].front();
      block = differs(here, serial_->At({0, 0, first}).At(s), false);
      if (!block.empty()) {
        return at + "block \"" + block + "\"" + where + "that of the copy on replica 0 rank " +
               std::to_string(first) +
               "; copies of a stage must begin alike, and name all of "
               "their gradients";
      }
    }
  }
  return "";
}

}  // namespace contraflow
