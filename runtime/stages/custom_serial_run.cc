#include "runtime/stages/custom_serial_run.h"

#include <algorithm>
#include <bit>

#include "compiler/plan/error.h"
#include "runtime/host/check.h"

namespace contraflow {

std::byte* CustomPlace::Allocate(size_t bytes) { return memory_.emplace_back(bytes).data(); }

void CustomPlace::Sum(const std::vector<std::span<float>>& parts) {
  const std::span<float> sum = parts.front();
  for (const std::span<float> more : std::span(parts).subspan(1)) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
  }
  for (const std::span<float> other : std::span(parts).subspan(1)) {
    std::ranges::copy(sum, other.begin());
  }
}

std::span<const std::byte> CustomPlace::Read(const void* at, size_t bytes,
                                             std::vector<std::byte>* /*room*/) {
  return {static_cast<const std::byte*>(at), bytes};
}

CustomSerialRun::CustomSerialRun(const CustomStages& stages, CustomPlace& place)
    : plan_(stages.plan()),
      place_(place),
      order_(plan_),
      losses_(reinterpret_cast<float*>(
          place.Allocate(MicrobatchesOfStep(stages.plan()) * sizeof(float)))),
      route_of_(RouteOfMicrobatch(plan_)),
      values_(static_cast<size_t>(plan_.stages)) {
  for (const Device& device : AllDevices(plan_)) {
    for (const int s : StagesOf(plan_, device.rank)) {
      copies_[{DeviceNumber(plan_, device), s}] =
          std::make_unique<CustomStage>(stages, s, device, place.stream(), place.sms());
    }
  }
  for (std::vector<std::byte*>& values : values_) {
    for (const int64_t bytes : stages.bytes()) {
      values.push_back(bytes == 0 ? nullptr : place.Allocate(static_cast<size_t>(bytes)));
    }
  }
}

std::vector<float> CustomSerialRun::Step(int step) {
  for (const auto& [key, copy] : copies_) copy->BeginStep(step, place_.stream());
  const int replicas = plan_.data_parallel * plan_.expert_parallel;
  for (int replica = 0; replica < replicas; ++replica) {
    for (const SerialOrder::Pass& pass : order_.passes()) Train(pass, replica);
  }
  const std::vector<std::vector<int>> holders = HoldersOfStage(plan_);
  for (int s = 0; s < plan_.stages; ++s) {
    std::vector<CustomStage*> all;
    for (int replica = 0; replica < replicas; ++replica) {
      for (const int rank : holders[static_cast<size_t>(s)]) {
        const Device device = {replica / plan_.expert_parallel, replica % plan_.expert_parallel,
                               rank};
        all.push_back(&At(device, s));
      }
    }
    std::vector<std::span<float>> gradients;
    for (const CustomStage* const copy : all) {
      gradients.push_back(copy->gradients());
      CF_ASSERT(gradients.back().size() == gradients.front().size());
    }
    if (gradients.size() > 1) place_.Sum(gradients);
    for (CustomStage* const copy : all) copy->OptimizerStep(place_.stream());
  }
  std::vector<float> losses(MicrobatchesOfStep(plan_));
  std::vector<std::byte> room;
  std::ranges::copy(place_.Read(losses_, losses.size() * sizeof(float), &room),
                    std::as_writable_bytes(std::span(losses)).begin());
  return losses;
}

void CustomSerialRun::Train(const SerialOrder::Pass& pass, int replica) {
  const int m = pass.microbatch, last = plan_.stages - 1;
  const Route& route = plan_.routes[static_cast<size_t>(route_of_[static_cast<size_t>(m)])];
  const auto copy = [&](int s) -> CustomStage& {
    const int rank = route.ranks[static_cast<size_t>(s)];
    return At({replica / plan_.expert_parallel, replica % plan_.expert_parallel, rank}, s);
  };
  const auto value = [&](int s, Value v) -> void* {
    return values_[static_cast<size_t>(s)][static_cast<size_t>(v)];
  };
  const auto cell = [&](int s) {
    contraflow_cell kept = {};
    kept.microbatch = m;
    kept.activation = value(s, Value::activation);
    kept.stash = value(s, Value::stash);
    return kept;
  };
  for (int s = 0; s <= last; ++s) {
    contraflow_cell forward = cell(s);
    if (s > 0) forward.input = value(s, Value::input);
    if (s < last) forward.output = value(s + 1, Value::input);
    if (s == last) {
      forward.loss = losses_ + MicrobatchPlace(plan_, 0, replica, m);
    }
    copy(s).Forward(forward, place_.stream());
  }
  for (int s = last; s >= 0; --s) {
    contraflow_cell backward = cell(s);
    if (s < last) backward.doutput = value(s, Value::doutput);
    if (s > 0) backward.dinput = value(s - 1, Value::doutput);
    const bool adds = std::ranges::binary_search(pass.stages, s);
    copy(s).BackwardInput(backward, place_.stream());
    if (adds) copy(s).BackwardWeight(WeightCell(backward), place_.stream());
  }
}

std::string DifferenceOf(const Plan& plan, int step, const StepResult& result,
                         const std::vector<Device>& devices,
                         const std::function<CustomDevice&(Device)>& device_at,
                         CustomSerialRun& serial, int64_t* bytes) {
  const std::vector<float> losses = serial.Step(step);
  const std::string at = "step " + std::to_string(step) + ": ";
  std::vector<std::byte> rooms[2];
  const auto same = [&](const void* here, const void* there, size_t size) {
    return std::ranges::equal(serial.place().Read(here, size, &rooms[0]),
                              serial.place().Read(there, size, &rooms[1]));
  };
  for (size_t i = 0; i < result.losses.size(); ++i) {
    *bytes += static_cast<int64_t>(sizeof(float));
    if (std::bit_cast<uint32_t>(losses[i]) != std::bit_cast<uint32_t>(result.losses[i])) {
      return at + NameOfLoss(plan, i) + " is " + std::to_string(result.losses[i]) +
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
  const std::vector<std::vector<int>> holders = HoldersOfStage(plan);
  for (const Device& device : devices) {
    for (const int s : device_at(device).Held()) {
      const std::string where = " of stage " + std::to_string(s) + " on replica " +
                                std::to_string(device.replica) + " rank " +
                                std::to_string(device.rank) + " is not the same as ";
      CustomStage &here = device_at(device).At(s), &there = serial.At(device, s);
      const std::span<float> gradients = here.gradients();
      *bytes += static_cast<int64_t>(gradients.size_bytes());
      if (gradients.size() != there.gradients().size() ||
          !same(gradients.data(), there.gradients().data(), gradients.size_bytes())) {
        return at + "the gradient" + where + "without a pipeline";
      }
      std::string block = differs(here, there, true);
      if (!block.empty()) return at + "block \"" + block + "\"" + where + "without a pipeline";
      const int first = holders[static_cast<size_t>(s)].front();
      block = differs(here, serial.At({0, 0, first}, s), false);
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
