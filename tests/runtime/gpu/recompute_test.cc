// Recompute on a GPU: what R makes is what F made, bit for bit.

#include "schedules/recompute/recompute.h"

#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "compiler/lower/interleave.h"
#include "compiler/lower/lower.h"
#include "runtime/gpu/run.h"
#include "runtime/model/gpu_views.h"
#include "schedules/registry.h"
#include "tests/emulator/emulated_gpu.h"
#include "tests/runtime/gpu/gpu_plan.h"
#include "tests/support/run_support.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"

namespace contraflow::recompute_test {
namespace {

Plan PlanOf(std::string_view schedule, const Model& model, int layers, int members,
            const std::vector<int>& recomputed, const RecomputeExtent& extent = {}) {
  CostModel costs;
  costs.moe = MoeCost{layers, {9}, {4}, {7}, {5}, {5}, {7}, {4}, {8}, {6}, {9}};
  DeriveChunkCosts(&costs, Overlap::kAll);
  Plan plan = GeneratePlan(MakeSpec(schedule, 2, 2, costs));
  plan.expert_parallel = members;
  costs.memory = GpuFootprintOf(model, plan.stages, layers, members);
  return Lower(InsertRecompute(std::move(plan), recomputed, extent), costs,
               {.target = Level::kBuffer});
}

void Append(std::span<const float> values, std::string* bits) {
  const size_t begin = bits->size();
  bits->resize(begin + values.size_bytes());
  if (!values.empty()) std::memcpy(bits->data() + begin, values.data(), values.size_bytes());
}

/// Losses, gradients and weights of a step, bit for bit, and how many tokens were dropped.
std::pair<std::string, int64_t> Train(const Plan& plan, const Model& model,
                                      const GpuRunOptions& options) {
  const Dataset dataset = SmallDataset();
  EmulatedGpu gpu(EmulatedGpuOptions{.seed = 5});
  GpuRun run(plan, model, dataset, 1, gpu, options);
  std::string bits;
  const StepResult result = run.Step(1);
  Append(result.losses, &bits);
  for (const Device& device : run.devices()) {
    Stage& stage = run.At(device).StageAt(device.rank);
    Append(stage.gradients(), &bits);
    Append(stage.parameters(), &bits);
  }
  return {bits, result.dropped};
}

TEST_SUITE("kernel") {
  TEST_CASE("GPU run: recompute changes no bit") {
    const Model model = SmallGpuModel(0.6f);
    const auto plain = Train(PlanOf("1f1b", model, 2, 1, {}), model, {{.graph = true}});
    CHECK(plain.first.size() > 10'000);
    CHECK(plain.second > 0);
    CHECK(Train(PlanOf("1f1b", model, 2, 1, {0, 1}), model, {{.graph = true}}) == plain);
    if (kSanitized) return;
    CHECK(Train(PlanOf("1f1b", model, 2, 1, {0, 1}, {RecomputePart::kFull, 1}), model,
                {{.graph = true}}) == plain);
    CHECK(Train(PlanOf("1f1b", model, 2, 1, {1}), model, {{.graph = false, .run_ahead = 4}}) ==
          plain);
    const auto group = Train(PlanOf("zb-1p", model, 1, 2, {}), model, {{.graph = false}});
    CHECK(Train(PlanOf("zb-1p", model, 1, 2, {0, 1}), model, {{.graph = true}}) == group);
  }
}

}  // namespace
}  // namespace contraflow::recompute_test
