#include "runtime/stages/custom_backend.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "compiler/plan/error.h"
#include "runtime/host/backend.h"

namespace contraflow {

CustomBackend::CustomBackend(const CustomStages& stages, Device device, bool fill)
    : stages_(stages.plan().stages),
      losses_(static_cast<size_t>(stages.plan().microbatches)),
      device_(stages, device, /*lanes=*/false, nullptr, 0),
      arenas_(device_.places(), stages.bytes(), fill) {
  device_.PutValues(arenas_.data(), losses_.data());
}

void CustomBackend::BeginStep(int step) {
  step_ = step;
  std::ranges::fill(losses_, std::numeric_limits<float>::quiet_NaN());
  device_.BeginStep(step, nullptr);
}

void CustomBackend::Compute(const Instruction& i) {
  const HostArenas::Uses& uses = device_.places().Of(i);
  arenas_.Enter(uses);
  device_.Compute(i, nullptr);
  arenas_.Leave(uses);
  if (!HasForward(i.op) || i.stage + 1 < stages_) return;
  if (AllFinite({&losses_[static_cast<size_t>(i.microbatch)], 1})) return;
  throw Error("step " + std::to_string(step_) + ": the loss of micro-batch " +
              std::to_string(i.microbatch) + " is not finite, or was not written");
}

std::span<std::byte> CustomBackend::Message(const Instruction& message) {
  arenas_.Enter(device_.places().Of(message));
  return device_.Message(message);
}

void CustomBackend::OptimizerStep(int stage) {
  CustomStage& copy = device_.At(stage);
  if (!AllFinite(copy.gradients())) {
    throw Error("step " + std::to_string(step_) + ": a gradient of stage " + std::to_string(stage) +
                " is not finite");
  }
  copy.OptimizerStep(nullptr);
}

DeviceStep CustomBackend::Results(std::vector<Span> spans) const {
  DeviceStep step;
  for (const int m : device_.losses_here()) {
    step.losses.emplace_back(m, losses_[static_cast<size_t>(m)]);
  }
  step.spans = std::move(spans);
  return step;
}

}  // namespace contraflow
