#include "tools/bench/gpu_bench.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "compiler/files/file.h"
#include "compiler/lower/interleave.h"
#include "compiler/simulate/simulate.h"
#include "schedules/compile.h"
#include "tests/emulator/emulated_gpu.h"
#include "tests/support/failure.h"
#include "tests/support/support.h"
#include "tools/bench/sm_probe.h"

namespace contraflow {

/// Substitute where there is no SM: every block of every call has one of its own.
void ProbeSms(gpu::Stream, int blocks, uint64_t, int* sm_of_block) {
  static int next = 0;
  for (int block = 0; block < blocks; ++block) sm_of_block[block] = next++;
}

namespace gpu_bench_test {
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
  // On the emulator figures mean nothing. All measurements must still run and be reported, since
  // time on a real GPU is short.
  TEST_CASE("gpu bench: every kernel is measured") {
    EmulatedGpu gpu;
    gpu.Partition(1, 0);
    GpuBench bench(gpu, BenchSizes::Tiny());
    for (const KernelFamily& family : KernelFamilies()) family.measure(&bench);
    CheckFigures(bench.figures(), 40);
  }

  TEST_CASE("gpu bench: partitions are measured") {
    std::vector<Figure> figures;
    MeasurePartitions([] { return std::make_unique<EmulatedGpu>(); }, BenchSizes::Tiny(),
                      [&](const Figure& figure) { figures.push_back(figure); });
    CheckFigures(figures, 22);
    CHECK(figures[1].value == 4 * 32);
  }

  TEST_CASE("gpu bench: figures as JSON, one a line") {
    const std::string path =
        std::filesystem::temp_directory_path() / ("figures-" + std::to_string(getpid()));
    AppendFigure(path, "norms", {"norm \"a\"", 3.7, "TB/s", 4.0});
    AppendFigure(path, "host", {"launch", 2, "us", 3, true});
    AppendFigure(path, "host", {"none", std::nan(""), ""});
    const std::string text = ReadFile(path, 4096);
    std::filesystem::remove(path);
    CHECK(text ==
          "{\"part\":\"norms\",\"figure\":\"norm \\\"a\\\"\",\"value\":3.7,\"unit\":\"TB/s\","
          "\"target\":4.0,\"ratio\":0.925}\n"
          "{\"part\":\"host\",\"figure\":\"launch\",\"value\":2.0,\"unit\":\"us\","
          "\"target\":3.0,\"ratio\":1.5}\n"
          "{\"part\":\"host\",\"figure\":\"none\",\"value\":null,\"unit\":\"\","
          "\"target\":null,\"ratio\":null}\n");
    CHECK(Failure([] { AppendFigure("/", "a", {}); }) == "/: the figures cannot be appended");
  }

  TEST_CASE("gpu bench: every schedule is measured") {
    std::vector<Figure> figures;
    const ScheduleSizes sizes = ScheduleSizes::Tiny();
    for (const std::string& name : sizes.Names()) {
      MeasureSchedule(
          name, [] { return std::make_unique<EmulatedGpu>(); }, sizes,
          [&](Figure figure) { figures.push_back(std::move(figure)); });
    }
    CheckFigures(figures, 16);
  }

  TEST_CASE("gpu bench: names of what one process measures, the most valuable first") {
    const std::vector<std::string> names = ScheduleSizes::Full().Names();
    CHECK(std::set<std::string>(names.begin(), names.end()).size() == 10);
    CHECK(names[0] == "dualpipe-4-16");
    CHECK(names[1] == "overlap");
    CHECK(names[2] == "zb-1p-4-16");
    CHECK(Failure([] { MeasureSchedule("dualpipe-4", nullptr, ScheduleSizes::Full(), nullptr); }) ==
          "there is no schedule \"dualpipe-4\" to measure");
  }

  TEST_CASE("gpu bench: how fast a GPU is said to copy, if it is") {
    CHECK(CopyTarget("NVIDIA H200") == 4.3);
    CHECK(CopyTarget("NVIDIA H100 80GB HBM3") == 3.0);
    CHECK(CopyTarget("NVIDIA H100 PCIe") == 0);
  }

  TEST_CASE("gpu bench: published efficiencies") {
    const auto percent = [](const char* schedule, int ranks, int microbatches, ComputeTimes chunk) {
      return std::lround(1000 * PublishedEfficiency(schedule, {ranks, microbatches, 1}, chunk));
    };
    // All three alike, then as in DeepSeek's trace.
    CHECK(percent("1f1b", 4, 16, {1, 1, 1}) == 842);
    CHECK(percent("zb-1p", 8, 16, {1, 1, 1}) == 873);
    CHECK(percent("dualpipe", 4, 8, {1, 1, 1}) == 923);
    CHECK(percent("zb-1p", 4, 8, {8.7, 14.7, 8.0}) == 845);
    CHECK(percent("dualpipe", 8, 20, {8.7, 14.7, 8.0}) == 874);
  }

  TEST_CASE("gpu bench: every schedule of the sizes for a GPU can be built and fits it") {
    const ScheduleSizes sizes = ScheduleSizes::Full();
    std::vector<ScheduleSizes::Run> runs = sizes.runs;
    for (const char* schedule : {"1f1b", "dualpipe"}) runs.push_back({schedule, sizes.overlap});
    for (const auto& [schedule, shape] : runs) {
      CAPTURES(schedule, shape.ranks, shape.microbatches);
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
        bytes += static_cast<int64_t>(holders[s].size()) *
                 (memory.parameter_bytes[s] + memory.gradient_bytes[s] + memory.optimizer_bytes[s]);
      }
      // All devices share one GPU, of 80 GB at least, with work memory in addition to this.
      CHECK(bytes * shape.expert_parallel < 65'000'000'000);
    }
    const Plan published =
        BenchPlan("1f1b", sizes.overlap, sizes.model, AlikeCosts(), Overlap::kPublished);
    CHECK(published.expert_parallel == 2);
    for (const int ranks : {4, 8}) {  // kernels alone
      CHECK(BenchPlan("1f1b", {ranks, 1, 1}, sizes.model, AlikeCosts(), Overlap::kPublished)
                .microbatches == 1);
    }
  }

  TEST_CASE("gpu bench: a table of figures with their targets") {
    CHECK(FormatFigures(
              {{"norm", 3.7, "TB/s", 4.0}, {"launch", 2, "us", 3, true}, {"x", 123.4, ""}}) ==
          "        figure  unit  target  ratio\n"
          "norm       3.7  TB/s    >= 4   0.93\n"
          "launch       2  us      <= 3   1.50\n"
          "x          123\n");
  }

  TEST_CASE(
      "gpu bench: all-to-all hidden by compute in a simulated run is what the simulator says") {
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
        CAPTURES(schedule, r);
        CHECK(hiding.window > 0);
        CHECK(hiding.compute <= hiding.window);
        CHECK(hiding.exposed <= simulation.ranks[r].exposed);
        CHECK(hiding.all_to_all <= simulation.ranks[r].all_to_all);
        // No communication overlaps in 1F1B as published.
        if (!on) CHECK(hiding.exposed == hiding.all_to_all);
        if (on) CHECK(hiding.exposed < hiding.all_to_all / 2);
      }
    }
  }
}

}  // namespace
}  // namespace gpu_bench_test
}  // namespace contraflow
