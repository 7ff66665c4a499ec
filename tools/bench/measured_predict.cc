// Predictions of published measurements: a model's costs, the plan that was run, its simulation.

#include <algorithm>
#include <cmath>

#include "compiler/files/cost_io.h"
#include "compiler/files/file.h"
#include "compiler/plan/error.h"
#include "compiler/simulate/memory.h"
#include "compiler/simulate/simulate.h"
#include "schedules/compile.h"
#include "tools/bench/measured.h"
#include "tools/cli/compile_flags.h"
#include "tools/profile/costs_file.h"
#include "tools/profile/gpus.h"
#include "tools/profile/hf_config.h"
#include "tools/profile/layer_costs.h"

namespace contraflow {
namespace {

constexpr double kNanosecond = 1e-9;
/// Steps of the search for a factor, which is nearly one over time.
constexpr int kSteps = 4;

CostSetup SetupOf(const MeasuredRow& row, double factor) {
  CostSetup setup;
  setup.gpu = &FindGpu(row.gpu);
  setup.tensor_parallel = row.tp;
  setup.context_parallel = row.cp;
  setup.expert_parallel = row.ep;
  setup.expert_tensor = row.etp;
  setup.sequence = row.sequence;
  setup.micro_batch = row.micro_batch;
  setup.fp8 = row.fp8;
  setup.optimizer = &FindOptimizer(row.optimizer);
  setup.activations = ParseActivations(row.activations);
  setup.workspace = static_cast<int64_t>(row.workspace);
  setup.efficiency = EfficienciesOf(*setup.gpu, row.fp8);
  setup.tp_overlap = row.tp_overlap;
  setup.gpus = row.gpus;
  setup.stage_gpus = row.gpus / row.pp;
  for (double& share : setup.efficiency) share = std::min(1.0, share * factor);
  return setup;
}

CompileFlags FlagsOf(const MeasuredRow& row, const CostSetup& setup, CostModel costs) {
  const int batches = setup.parallel().batches(), dp = row.gpus / (row.tp * row.cp * row.pp);
  if (dp % batches != 0) throw Error("experts need " + std::to_string(batches) + " replicas");
  CompileFlags flags;
  flags.schedule = row.schedule;
  flags.ranks = row.pp;
  flags.chunks = row.chunks;
  flags.microbatches = row.microbatches;
  flags.data_parallel = dp / batches;
  flags.costs.read = std::move(costs);
  // Frameworks run the all-to-alls of a chunk in line with its compute, if not told otherwise.
  flags.costs.overlap = row.moe_overlap ? "all" : "published";
  flags.recompute = row.recompute;
  flags.partition = row.partition;
  // ZeRO needs copies to share.
  const Copies copies = CopiesOf(setup.parallel(), flags.data_parallel);
  const bool shares = copies.rest > 1 || (row.ep > 1 && copies.experts > 1);
  if (row.zero > 0 && shares) flags.device_memory.zero = row.zero;
  return flags;
}

}  // namespace

Predicted Predict(const MeasuredRow& row, const std::string& models, double factor) try {
  const std::string path = models + "/" + row.model + ".json";
  const ModelShape model = ReadHfConfig(ReadFile(path, kMaxHfConfigBytes), path);
  const CostSetup setup = SetupOf(row, factor);
  CostModel costs = ReadCosts(WriteCostsByLayer(model, setup, CostsOf(model, setup)), "costs");
  CompileRequest request = ResolveCompile(FlagsOf(row, setup, std::move(costs)));
  request.options.any_device = true;
  const Plan plan = Compile(request.spec, request.options);
  const Time step = Simulate(plan, *plan.costs, Keep::kFigures).makespan;
  const MemoryFigures memory =
      std::ranges::max(MemoryOf(plan, *plan.costs), {}, &MemoryFigures::total);
  return {.seconds = static_cast<double>(step) * kNanosecond,
          .bytes = static_cast<double>(memory.total())};
} catch (const Error& error) {
  throw Error(row.name + ": " + error.what());
}

double Calibrate(const MeasuredRow& row, const std::string& models) {
  double factor = 1;
  for (int i = 0; i < kSteps; ++i) factor *= Predict(row, models, factor).seconds / *row.seconds;
  return factor;
}

}  // namespace contraflow
