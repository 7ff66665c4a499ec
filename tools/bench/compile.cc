// How long it takes to make a plan: generate, lower (which proves the result after every pass),
// verify and simulate, on one core. Ratios and absolute figures; no thresholds.
//
// First chunk plans up to level comm, then plans of MoE components up to level buffer, on
// DeepSeek's costs with 4 layers a stage.
//
// Each row is the best of several runs, in CPU time. "bytes" is the process's peak resident memory
// by the end of the row over its instructions; rows grow, so the peak is the row's own. "exponent"
// compares total time with the row before: 1 is linear.

#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <string>
#include <string_view>
#include <utility>

#include "compiler/lower/lower.h"
#include "compiler/plan/error.h"
#include "compiler/simulate/simulate.h"
#include "compiler/verify/verify.h"
#include "schedules/registry.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"
#include "tools/cli/spec_options.h"

namespace contraflow {
namespace {

/// Milliseconds that this process has computed; what others on the machine do is no part of them.
double Now() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) / 1e6;
}

struct Row {
  int64_t instructions = 0;
  double generate = 1e300, lower = 1e300, verify = 1e300, simulate = 1e300, total = 1e300;
};

Row Measure(const std::string& schedule, int ranks, int microbatches, int runs) {
  Spec spec;
  spec.schedule = schedule;
  spec.ranks = ranks;
  spec.microbatches = microbatches;
  spec.costs = UniformCosts(1'000'000, 1'000'000, 1'000'000);
  Row row;
  for (int run = 0; run < runs; ++run) {
    const double start = Now();
    Plan order = GeneratePlan(spec);
    const double generated = Now();
    const Plan plan = Lower(std::move(order), spec.costs, {.target = Level::kComm});
    const double lowered = Now();
    if (!Verify(plan).empty())
      throw InternalError("internal error: the benchmark's plan is unsound");
    const double verified = Now();
    const Simulation simulation = Simulate(plan, spec.costs);
    const double simulated = Now();
    if (simulation.makespan <= 0) throw InternalError("internal error: nothing was simulated");
    row.instructions = InstructionCount(plan);
    row.generate = std::min(row.generate, generated - start);
    row.lower = std::min(row.lower, lowered - generated);
    row.verify = std::min(row.verify, verified - lowered);
    row.simulate = std::min(row.simulate, simulated - verified);
    row.total = std::min(row.total, simulated - start);
  }
  return row;
}

void Bench(const std::string& schedule, bool large) {
  struct Size {
    int ranks, microbatches, runs;
    bool large;
  };
  constexpr Size kSizes[] = {{8, 64, 20, false},   {16, 128, 20, false},  {32, 256, 10, false},
                             {64, 512, 10, false}, {128, 1024, 3, false}, {256, 2048, 2, true},
                             {256, 4096, 2, true}};
  std::printf("%s: milliseconds of CPU, one core; B is the input gradient only\n\n",
              schedule.c_str());
  std::printf("%5s %6s %12s %9s %9s %9s %9s %9s %8s %7s %8s\n", "P", "M", "instructions",
              "generate", "lower", "verify", "simulate", "total", "M ins/s", "bytes", "exponent");
  Row before;
  double reference_total = 0;
  for (const Size& size : kSizes) {
    if (size.large && !large) continue;
    const Row row = Measure(schedule, size.ranks, size.microbatches, size.runs);
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const auto count = static_cast<double>(row.instructions);
    std::printf("%5d %6d %12lld %9.2f %9.2f %9.2f %9.2f %9.2f %8.2f %7.0f", size.ranks,
                size.microbatches, static_cast<long long>(row.instructions), row.generate,
                row.lower, row.verify, row.simulate, row.total, count / row.total / 1e3,
                static_cast<double>(usage.ru_maxrss) * 1024 / count);
    if (before.instructions > 0) {
      std::printf(" %8.2f", std::log(row.total / before.total) /
                                std::log(count / static_cast<double>(before.instructions)));
    }
    std::printf("\n");
    std::fflush(stdout);
    if (size.ranks == 64) reference_total = row.total;
    before = row;
  }
  // Figures of other systems at P = 64, M = 512, taken once on another machine of this class.
  std::printf("\nP = 64, M = 512 against others (generation and lowering only, nothing proven):\n");
  std::printf("  PyTorch DualPipeV, order and lowering   5.86 s   %6.0fx\n",
              5864 / reference_total);
  std::printf("  zero-bubble ZB-1P, order alone          1.84 s   %6.0fx\n",
              1844 / reference_total);
  std::printf("  zero-bubble ZB-1P with communication  > 100 s   > %4.0fx\n",
              100'000 / reference_total);
}

/// Generate, then each pass of lowering with its proof, verify and simulate.
struct ComponentRow {
  int64_t instructions = 0, slots = 0;
  double generate = 1e300, comm = 1e300, component = 1e300, buffer = 1e300, lower = 1e300,
         verify = 1e300, simulate = 1e300;
};

ComponentRow MeasureComponents(const std::string& schedule, int ranks, int microbatches,
                               const CostModel& costs, int runs) {
  Spec spec;
  spec.schedule = schedule;
  spec.ranks = ranks;
  spec.microbatches = microbatches;
  spec.costs = costs;
  ComponentRow row;
  for (int run = 0; run < runs; ++run) {
    const double start = Now();
    Plan order = GeneratePlan(spec);
    const double generated = Now();
    double last = generated;
    const Plan plan = Lower(std::move(order), costs, {.target = Level::kBuffer},
                            [&](std::string_view pass, const Plan&) {
                              const double now = Now();
                              double& best = pass == "comm"        ? row.comm
                                             : pass == "component" ? row.component
                                                                   : row.buffer;
                              best = std::min(best, now - last);
                              last = now;
                            });
    const double lowered = Now();
    if (!Verify(plan).empty()) {
      throw InternalError("internal error: the benchmark's plan is unsound");
    }
    const double verified = Now();
    if (Simulate(plan, costs).makespan <= 0) {
      throw InternalError("internal error: nothing was simulated");
    }
    const double simulated = Now();
    row.instructions = InstructionCount(plan);
    row.slots = 0;
    for (const auto& slots : plan.slots) row.slots += static_cast<int64_t>(slots.size());
    row.generate = std::min(row.generate, generated - start);
    row.lower = std::min(row.lower, lowered - generated);
    row.verify = std::min(row.verify, verified - lowered);
    row.simulate = std::min(row.simulate, simulated - verified);
  }
  return row;
}

void BenchComponents(const std::string& schedule) {
  CostsOption option;
  option.file = "deepseek-v3-h800";
  const CostModel costs = ResolveCosts(option, {});
  std::printf(
      "\n%s with components: milliseconds of CPU; passes include the proof of what they made\n\n",
      schedule.c_str());
  std::printf("%5s %6s %12s %9s %9s %9s %9s %9s %9s %9s %9s\n", "P", "M", "instructions", "slots",
              "generate", "comm", "component", "buffer", "lower", "verify", "simulate");
  for (const auto& [ranks, microbatches] : {std::pair(8, 32), {16, 64}, {32, 128}}) {
    const ComponentRow row = MeasureComponents(schedule, ranks, microbatches, costs, 5);
    std::printf("%5d %6d %12lld %9lld %9.2f %9.2f %9.2f %9.2f %9.2f %9.2f %9.2f\n", ranks,
                microbatches, static_cast<long long>(row.instructions),
                static_cast<long long>(row.slots), row.generate, row.comm, row.component,
                row.buffer, row.lower, row.verify, row.simulate);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace contraflow

int main(int argc, char** argv) {
  std::string schedule = "dualpipe";
  bool large = false;
  return contraflow::RunTool(
      "bench_compile", "How long it takes to make a plan. Ratios and absolute figures.", argc, argv,
      [&](CLI::App* app) {
        contraflow::AddText(app, "SCHEDULE", &schedule, "",
                            "name of a schedule (default: dualpipe)");
        contraflow::AddFlag(app, "--large", &large, "also larger plans");
      },
      [&] {
        contraflow::Bench(schedule, large);
        contraflow::BenchComponents(schedule);
        return contraflow::kExitFine;
      });
}
