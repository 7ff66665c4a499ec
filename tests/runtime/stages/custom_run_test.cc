#include "runtime/launch/custom_run.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "compiler/plan/error.h"
#include "runtime/stages/custom_check.h"
#include "runtime/stages/stage_api.h"
#include "schedules/compile.h"
#include "tests/support/failure.h"
#include "tests/support/support.h"

namespace contraflow::custom_run_test {
namespace {

/// Opaque stages with the sizes of the example's values.
CostModel Costs() {
  CostModel costs = UniformCosts(1'000'000, 1'000'000, 1'000'000);
  contraflow_sizes sizes = {};
  contraflow_stages()->sizes(nullptr, &sizes);
  costs.comm.bytes = static_cast<int64_t>(sizes.message);
  costs.comm.bandwidth = 1e9;
  costs.memory.emplace();
  costs.memory->w_stash_bytes = static_cast<int64_t>(sizes.stash);
  costs.memory->activation_bytes = static_cast<int64_t>(sizes.activation + sizes.stash);
  return costs;
}

Plan PlanOf(const std::string& schedule, int ranks, int microbatches, Level level,
            int replicas = 1) {
  Spec spec = MakeSpec(schedule, ranks, microbatches, Costs());
  spec.data_parallel = replicas;
  return Compile(spec, {.level = level});
}

std::string Difference(CustomRun* run, const Plan& plan, int step, CustomCheck* check,
                       int64_t* bytes) {
  const StepResult result = run->Step(step);
  CHECK(result.losses.size() == MicrobatchesOfStep(plan));
  return check->DifferenceIn(step, result, bytes);
}

/// Trains some steps, and compares with the same training without a pipeline; "" if all is equal.
std::string Train(const CustomStages& stages, int steps, bool strict = true) {
  CustomRun run(stages, {.strict = strict}, /*fill=*/true);
  CustomCheck check(stages, run);
  int64_t values = 0;
  for (int step = 1; step <= steps; ++step) {
    const std::string difference = Difference(&run, stages.plan(), step, &check, &values);
    if (!difference.empty()) return difference;
  }
  return values > 0 ? "" : "nothing was compared";
}

/// The example's table, of which a test changes something.
contraflow_stage_api Table() { return *contraflow_stages(); }

TEST_SUITE("equivalence") {
  TEST_CASE("custom stages train as without a pipeline, bit for bit, under every schedule") {
    for (const char* schedule : {"gpipe", "1f1b", "interleaved-1f1b", "zb-1p", "zb-v", "chimera",
                                 "dualpipe", "dualpipe-v"}) {
      for (const Level level : {Level::kComm, Level::kBuffer}) {
        CAPTURES(schedule, Name(level));
        const Plan plan = PlanOf(schedule, 4, 8, level);
        const CustomStages stages(*contraflow_stages(), plan, false, 7, "");
        CHECK(Train(stages, 2) == "");
      }
    }
    const Plan replicas = PlanOf("dualpipe", 2, 4, Level::kBuffer, 2);
    CHECK(Train(CustomStages(*contraflow_stages(), replicas, false, 7, ""), 2) == "");
  }

  TEST_CASE("custom stages run again where the plan recomputes") {
    Spec spec = MakeSpec("1f1b", 3, 6, Costs());
    spec.recompute = ParseRecompute("full");
    const Plan plan = Compile(spec, {.level = Level::kBuffer});
    CHECK(RecomputedCells(plan).any());
    CHECK(Train(CustomStages(*contraflow_stages(), plan, false, 7, ""), 2) == "");
  }

  TEST_CASE("custom stages learn, and any number of ranks learns the same") {
    std::vector<double> losses;
    for (const int ranks : {1, 2, 4}) {
      Spec spec = MakeSpec(ranks == 4 ? "zb-1p" : "interleaved-1f1b", ranks, 4, Costs());
      if (ranks < 4) spec.chunks = 4 / ranks;
      const Plan plan = Compile(spec);
      REQUIRE(plan.stages == 4);
      const CustomStages stages(*contraflow_stages(), plan, false, 7, "");
      CustomRun run(stages, {});
      const double first = run.Step(1).loss;
      double last = first;
      for (int step = 2; step <= 60; ++step) last = run.Step(step).loss;
      CHECK(last < 0.5 * first);
      losses.push_back(last);
    }
    CHECK(losses[0] == losses[1]);
    CHECK(losses[0] == losses[2]);
  }
}

TEST_SUITE("unit") {
  TEST_CASE("custom stages: what differs is found") {
    static std::atomic<bool> changed;
    changed = false;
    contraflow_stage_api api = Table();
    api.backward_weight = [](void* self, const contraflow_cell* cell, void* stream) {
      const char* const wrong = contraflow_stages()->backward_weight(self, cell, stream);
      float* values = nullptr;
      size_t count = 0;
      contraflow_stages()->gradients(self, &values, &count);
      // The change is to the last micro-batch, so that no rounding takes it back, and not of the
      // serial run, which comes second.
      if (cell->microbatch == 3 && !changed.exchange(true)) {
        values[5] = std::nextafter(values[5], 1e9f);
      }
      return wrong;
    };
    const Plan plan = PlanOf("1f1b", 2, 4, Level::kComm);
    const std::string difference = Train(CustomStages(api, plan, false, 7, ""), 1);
    CHECK(difference.find("step 1: the gradient of stage ") == 0);
    CHECK(Contains(difference, "is not the same as without a pipeline"));
  }

  TEST_CASE("custom stages: copies that do not begin alike are found") {
    contraflow_stage_api api = Table();
    api.create = [](const contraflow_job* job, const contraflow_copy* copy, void** self) {
      const char* const wrong = contraflow_stages()->create(job, copy, self);
      contraflow_block block = {};
      contraflow_stages()->block(*self, 0, &block);
      static_cast<float*>(block.data)[7] += static_cast<float>(copy->rank);
      return wrong;
    };
    const Plan plan = PlanOf("dualpipe", 2, 4, Level::kComm);
    const std::string difference = Train(CustomStages(api, plan, false, 7, ""), 1);
    CHECK(Contains(difference, "is not the same as that of the copy on replica 0 rank "));
  }

  TEST_CASE("custom stages: calls have what the interface says") {
    static std::vector<std::string> flaws;
    flaws.clear();
    contraflow_stage_api api = Table();
    static const auto require = [](bool holds, const char* what) {
      static std::mutex mutex;
      const std::lock_guard lock(mutex);
      if (!holds) flaws.push_back(what);
    };
    api.forward = [](void* self, const contraflow_cell* cell, void* stream) {
      require(stream == nullptr, "a stream on the host");
      require(cell->doutput == nullptr && cell->dinput == nullptr, "gradients in a forward");
      require(cell->activation != nullptr && cell->stash != nullptr, "nowhere to keep something");
      require((cell->loss == nullptr) == (cell->output != nullptr), "a loss but in the last stage");
      return contraflow_stages()->forward(self, cell, stream);
    };
    api.backward_weight = [](void* self, const contraflow_cell* cell, void* stream) {
      require(cell->stash != nullptr, "no stash");
      require(cell->activation == nullptr && cell->doutput == nullptr && cell->dinput == nullptr &&
                  cell->input == nullptr && cell->output == nullptr,
              "more than the stash");
      return contraflow_stages()->backward_weight(self, cell, stream);
    };
    api.backward_input = [](void* self, const contraflow_cell* cell, void* stream) {
      require(cell->doutput != nullptr || cell->dinput != nullptr, "no gradients");
      require(cell->input == nullptr && cell->output == nullptr, "activations in a backward");
      return contraflow_stages()->backward_input(self, cell, stream);
    };
    const Plan plan = PlanOf("zb-v", 2, 4, Level::kBuffer);
    const CustomStages stages(api, plan, false, 7, "");
    CustomRun(stages, {.strict = true}).Step(1);
    CHECK(flaws == std::vector<std::string>{});
  }

  TEST_CASE("custom stages: forward_backward has both cells") {
    static std::atomic<int> pairs;
    pairs = 0;
    contraflow_stage_api api = Table();
    api.forward_backward = [](void* one, const contraflow_cell* forward, void* other,
                              const contraflow_cell* backward, void* stream) {
      ++pairs;
      const char* wrong = contraflow_stages()->backward_input(other, backward, stream);
      if (wrong == nullptr) wrong = contraflow_stages()->forward(one, forward, stream);
      if (wrong == nullptr) wrong = contraflow_stages()->backward_weight(other, backward, stream);
      return wrong;
    };
    api.backward = [](void* self, const contraflow_cell* cell, void* stream) {
      const char* const wrong = contraflow_stages()->backward_input(self, cell, stream);
      return wrong != nullptr ? wrong : contraflow_stages()->backward_weight(self, cell, stream);
    };
    const Plan plan = PlanOf("dualpipe", 2, 8, Level::kBuffer);
    int expected = 0;
    for (const Program& program : plan.programs) {
      expected += static_cast<int>(
          std::ranges::count_if(program, [](const Instruction& i) { return i.op == Op::FB; }));
    }
    CHECK(expected > 0);
    const CustomStages stages(api, plan, false, 7, "");
    CustomRun run(stages, {}, true);
    CustomCheck check(stages, run);
    int64_t values = 0;
    CHECK(Difference(&run, plan, 1, &check, &values) == "");
  }

  TEST_CASE("custom stages: what is wrong with them is an error that names the stage") {
    const Plan plan = PlanOf("1f1b", 2, 4, Level::kComm);
    const auto fails = [&](const contraflow_stage_api& api) {
      return Failure([&] {
        const CustomStages stages(api, plan, false, 7, "");
        CustomRun(stages, {}).Step(1);
      });
    };
    contraflow_stage_api api = Table();
    api.version = 9;
    CHECK(fails(api) ==
          "the stages are of version 9 of the stage interface, this is version 1; compile them "
          "with this version's stage_api.h");
    api = Table();
    api.size = 8;
    CHECK(fails(api).find("the table of the stages has 8 bytes, version 1 has ") == 0);
    api = Table();
    api.backward_input = nullptr;
    CHECK(fails(api) == "the table of the stages has no function `backward_input`");
    api = Table();
    api.create = [](const contraflow_job* job, const contraflow_copy* copy, void** self) {
      if (copy->stage == 1) return "no such file";
      return contraflow_stages()->create(job, copy, self);
    };
    CHECK(fails(api) == "stage 1, create: no such file");
    api.create = [](const contraflow_job*, const contraflow_copy*, void**) -> const char* {
      return nullptr;
    };
    CHECK(fails(api) == "stage 0, create: gave no stage; set *stage");
    api = Table();
    api.backward_input = [](void*, const contraflow_cell*, void*) -> const char* {
      return "out of luck";
    };
    CHECK(fails(api).find("rank 1, instruction ") == 0);
    CHECK(Contains(fails(api), ": stage 1, backward_input: out of luck"));
    api.backward_input = [](void*, const contraflow_cell*, void*) -> const char* {
      throw std::runtime_error("boom");
    };
    CHECK(Contains(fails(api), "stage 1, backward_input: let an exception out: boom"));
    api = Table();
    api.block = [](void* self, int32_t, contraflow_block* block) {
      return contraflow_stages()->block(self, 0, block);
    };
    CHECK(fails(api) ==
          "stage 0, block: number 1 needs a name of its own, of letters, digits, '.', '_' and '-'");
    api = Table();
    api.forward = [](void*, const contraflow_cell*, void*) -> const char* { return nullptr; };
    CHECK(Contains(fails(api), "the loss of micro-batch 0 is not finite, or was not written"));
    api = Table();
    api.sizes = [](const contraflow_job*, contraflow_sizes* sizes) -> const char* {
      *sizes = {0, 0, 64};
      return nullptr;
    };
    CHECK(fails(api) == "the stages: messages of no bytes; `sizes` must say what stages hand on");
  }

  TEST_CASE("custom stages: plans that are not for them are refused, with the remedy") {
    Plan plan = PlanOf("1f1b", 2, 4, Level::kCompute);
    const auto fails = [&](const contraflow_stage_api& api) {
      return Failure([&] {
        const CustomStages stages(api, plan, false, 7, "");
        CustomRun(stages, {});
      });
    };
    CHECK(fails(Table()) ==
          "custom stages have whole chunks and messages, this plan is of level compute; compile "
          "it with `level` comm");
    plan = PlanOf("1f1b", 2, 4, Level::kBuffer);
    contraflow_stage_api api = Table();
    api.sizes = [](const contraflow_job*, contraflow_sizes* sizes) -> const char* {
      *sizes = {8192, 1 << 20, 1 << 10};
      return nullptr;
    };
    CHECK(fails(api) ==
          "the plan has 12288 bytes for value activation, the stages need 1048576; compile it for "
          "costs with \"memory\": {\"activation_bytes\": 1049600, \"w_stash_bytes\": 1024} and "
          "\"comm\": {\"bytes\": 8192, ..}, or with `level` comm");
  }
}

}  // namespace
}  // namespace contraflow::custom_run_test
