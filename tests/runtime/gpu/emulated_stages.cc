#include "tests/runtime/gpu/emulated_stages.h"

#include "compiler/plan/error.h"
#include "schedules/compile.h"
#include "tests/emulator/emulator.h"
#include "tests/support/support.h"

namespace contraflow {

Plan CustomPlan(const std::string& schedule, int ranks, int microbatches, Level level,
                int replicas) {
  CostModel costs = UniformCosts(1'000'000, 1'000'000, 1'000'000);
  contraflow_sizes sizes = {};
  contraflow_stages()->sizes(nullptr, &sizes);
  costs.comm.bytes = static_cast<int64_t>(sizes.message);
  costs.comm.bandwidth = 1e9;
  costs.memory.emplace();
  costs.memory->w_stash_bytes = static_cast<int64_t>(sizes.stash);
  costs.memory->activation_bytes = static_cast<int64_t>(sizes.activation + sizes.stash);
  Spec spec = MakeSpec(schedule, ranks, microbatches, costs);
  spec.data_parallel = replicas;
  return Compile(spec, {.level = level});
}

contraflow_stage_api EmulatedStages() {
  contraflow_stage_api api = *contraflow_stages();
  using Call = const char* (*)(void*, const contraflow_cell*, void*);
  static const auto give = [](const char* name, Call call, void* self, const contraflow_cell& cell,
                              void* stream) -> const char* {
    emulator::Enqueue(stream, name, [=] {
      if (const char* const wrong = call(self, &cell, nullptr)) throw Error(wrong);
    });
    return nullptr;
  };
  api.forward = [](void* self, const contraflow_cell* cell, void* stream) {
    return give("forward", contraflow_stages()->forward, self, *cell, stream);
  };
  api.backward_input = [](void* self, const contraflow_cell* cell, void* stream) {
    return give("backward_input", contraflow_stages()->backward_input, self, *cell, stream);
  };
  api.backward_weight = [](void* self, const contraflow_cell* cell, void* stream) {
    return give("backward_weight", contraflow_stages()->backward_weight, self, *cell, stream);
  };
  api.begin_step = [](void* self, int32_t step, void* stream) -> const char* {
    emulator::Enqueue(stream, "begin_step",
                      [=] { contraflow_stages()->begin_step(self, step, nullptr); });
    return nullptr;
  };
  api.optimizer_step = [](void* self, void* stream) -> const char* {
    emulator::Enqueue(stream, "optimizer_step",
                      [=] { contraflow_stages()->optimizer_step(self, nullptr); });
    return nullptr;
  };
  return api;
}

std::string WeightsOf(const CustomStage& stage) {
  const contraflow_block block = stage.Blocks().at(0);
  return {static_cast<const char*>(block.data), block.bytes};
}

}  // namespace contraflow
