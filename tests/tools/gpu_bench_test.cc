#include "tools/bench/gpu_bench.h"

#include <doctest/doctest.h>

#include <cmath>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "compiler/lower/interleave.h"
#include "compiler/simulate/simulate.h"
#include "schedules/compile.h"
#include "tests/emulator/emulated_gpu.h"
#include "tests/support/support.h"

namespace contraflow::gpu_bench_test {
namespace {

void CheckFigures(const std::vector<Figure>& figures, size_t least) {
  std::set<std::string> names;
  for (const Figure& figure : figures) {
    CAPTURE(figure.name);
    CHECK(names.insert(figure.name).second);
    CHECK(std::isfinite(figure.value));
    CHECK(figure.value >= 0);
  }
  CHECK(figures.size() >= least);
}

TEST_SUITE("unit") {
  // On the emulator figures mean nothing; what is measured must run and be reported all the same,
  // so that nothing is left to find out on a GPU that is lent for minutes.
  TEST_CASE("gpu bench: every kernel is measured") {
    EmulatedGpu gpu;
    gpu.Partition(1, 0);
    GpuBench bench(gpu, BenchSizes::Tiny());
    for (const auto measure : {MeasureCeilings, MeasureStreams, MeasureRouting, MeasureProducts,
                               MeasureLayers, MeasureHost}) {
      measure(&bench);
    }
    CheckFigures(bench.figures(), 40);
  }

  TEST_CASE("gpu bench: every schedule is measured") {
    std::vector<Figure> figures;
    const std::vector<std::string> failures =
        MeasureSchedules([] { return std::make_unique<EmulatedGpu>(); }, ScheduleSizes::Tiny(),
                         [&](Figure figure) { figures.push_back(std::move(figure)); });
    CHECK(failures == std::vector<std::string>{});
    CheckFigures(figures, 10);
  }

  TEST_CASE("gpu bench: every schedule of the sizes for a GPU can be built and fits it") {
    const ScheduleSizes sizes = ScheduleSizes::Full();
    std::vector<ScheduleSizes::Shape> shapes = sizes.shapes;
    shapes.push_back(sizes.overlap);
    for (const ScheduleSizes::Shape& shape : shapes) {
      for (const char* schedule : {"1f1b", "zb-1p", "dualpipe"}) {
        CAPTURE(schedule);
        CAPTURE(shape.ranks);
        CAPTURE(shape.microbatches);
        const Plan plan = BenchPlan(schedule, shape, sizes.model, AlikeCosts(), Overlap::kAll);
        REQUIRE(plan.costs);
        REQUIRE(plan.costs->memory);
        const MemoryCost& memory = *plan.costs->memory;
        const std::vector<std::vector<int>> holders = HoldersOfStage(plan);
        int64_t bytes = 0;
        for (size_t r = 0; r < plan.slots.size(); ++r) {
          for (const int64_t arena : ArenaBytes(plan.slots[r])) bytes += arena;
        }
        for (size_t s = 0; s < holders.size(); ++s) {
          bytes +=
              static_cast<int64_t>(holders[s].size()) *
              (memory.parameter_bytes[s] + memory.gradient_bytes[s] + memory.optimizer_bytes[s]);
        }
        // All devices share one GPU of 141 GB, with work memory beside this.
        CHECK(bytes * shape.expert_parallel < 120'000'000'000);
      }
    }
    const Plan published =
        BenchPlan("1f1b", sizes.overlap, sizes.model, AlikeCosts(), Overlap::kPublished);
    CHECK(published.expert_parallel == 2);
  }

  TEST_CASE("gpu bench: a table of figures with their targets") {
    CHECK(FormatFigures(
              {{"norm", 3.7, "TB/s", 4.0}, {"launch", 2, "us", 3, true}, {"x", 123.4, ""}}) ==
          "        figure  unit  target  ratio\n"
          "norm       3.7  TB/s    >= 4   0.93\n"
          "launch       2  us      <= 3   1.50\n"
          "x          123\n");
  }

  TEST_CASE("gpu bench: what hides behind compute in a simulated run is what the simulator says") {
    CostModel costs;
    costs.moe.emplace().layers_per_stage = 2;
    for (const ComponentCost& component : kComponentCosts) {
      (*costs.moe).*component.times = {1'000'000};
    }
    for (const char* schedule : {"1f1b", "dualpipe"}) {
      Spec spec = MakeSpec(schedule, 4, 8, costs);
      spec.costs.derived = Overlap::kPublished;
      const bool on = std::string(schedule) == "dualpipe";
      const Overlap overlap = on ? Overlap::kAll : Overlap::kPublished;
      DeriveChunkCosts(&spec.costs, overlap);
      const Plan plan = Compile(spec, {.level = Level::kComponent, .overlap = overlap});
      const Simulation simulation = Simulate(plan, *plan.costs);
      for (size_t r = 0; r < 4; ++r) {
        const Hiding hiding = HidingOf(plan.programs[r], simulation.timeline.ranks[r]);
        CAPTURE(schedule);
        CAPTURE(r);
        CHECK(hiding.window > 0);
        CHECK(hiding.compute <= hiding.window);
        CHECK(hiding.exposed <= simulation.ranks[r].exposed);
        CHECK(hiding.all_to_all <= simulation.ranks[r].all_to_all);
        // Nothing overlaps in 1F1B as published.
        if (!on) CHECK(hiding.exposed == hiding.all_to_all);
        if (on) CHECK(hiding.exposed < hiding.all_to_all / 2);
      }
    }
  }
}

}  // namespace
}  // namespace contraflow::gpu_bench_test
