#include "tools/cli/compile_flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <utility>
#include <vector>

#include "compiler/plan/error.h"
#include "compiler/plan/layer_cost.h"
#include "runtime/model/gpu_views.h"
#include "runtime/model/views.h"
#include "schedules/partition/stages.h"
#include "schedules/published/rows.h"
#include "schedules/registry.h"
#include "schedules/search/candidates.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"

namespace contraflow {
namespace {

Spec SpecOf(const CompileFlags& flags, const CostModel& costs) {
  std::optional<PartitionChoice> partition = ReadPartition(flags.partition, costs);
  // Like compare.
  if (!partition && flags.schedule == kAuto.name) partition.emplace();
  return {.schedule = flags.schedule,
          .ranks = flags.ranks,
          .microbatches = flags.microbatches,
          .chunks = flags.chunks,
          .data_parallel = flags.data_parallel,
          .expert_parallel =
              flags.expert_parallel > 0 ? std::optional(flags.expert_parallel) : std::nullopt,
          .costs = costs,
          .memory_limit = {},
          .search = ResolveSearch(flags.search),
          .recompute = ReadOption([&] { return ParseRecompute(flags.recompute); }),
          .offload = ReadOption([&] { return ParseOffload(flags.offload); }),
          .partition = partition,
          .target = ReadFor(flags.target)};
}

void CheckDevice(const CompileFlags& flags) {
  if (flags.device == "cuda" && !flags.model) {
    throw UsageError("`device`: says what the values of a `model` are stored in; give one");
  }
  if (flags.device == "cuda" && ParseLevel(flags.level) != Level::kBuffer) {
    throw UsageError("`device` cuda: runs plans of level buffer only, this would be one of level " +
                     flags.level + "; give `level` buffer");
  }
}

/// Gives each layer the bytes of one stage, and the costs those of values.
void SetLayerBytes(const MemoryCost& of_layers, CostModel* costs) {
  size_t at = 0;
  for (LayerCost& layer : costs->layers) {
    for (const StateBytes& state : kStateBytes) {
      layer.*state.of_layer = (of_layers.*state.of_stages)[at];
    }
    layer.rest_bytes.reset();
    layer.activation_bytes = of_layers.activation_bytes;
    layer.w_stash_bytes = of_layers.w_stash_bytes;
    if (layer.moe) layer.moe->values.clear();
    at += static_cast<size_t>(layer.repeat);
  }
  if (!costs->memory) costs->memory.emplace();
  costs->memory->values = of_layers.values;
}

/// The costs with the memory of the model that --model names in place of their own.
CostModel CostsOf(const CompileFlags& flags, const Schedule& schedule,
                  std::vector<std::string>* assumed) {
  CostModel costs = ResolveCosts(flags.costs, UnitCosts(), assumed);
  const Level level = ParseLevel(flags.level);
  if (costs.moe && level >= Level::kComponent) RefuseChunkCosts(flags.costs);
  if (flags.capacity) {
    if (!flags.model) throw UsageError("`capacity`: is for the experts of a `model`; give one");
    CheckCapacity(*flags.capacity);
  }
  CheckDevice(flags);
  if (!flags.model) return costs;
  // The model is another than that of the costs, on other devices.
  costs.parallel.reset();
  costs.gpu.reset();
  costs.tokens = 0;
  const bool on_gpus = flags.device == "cuda";
  Model model = ReadModel(*flags.model);
  if (flags.capacity) model.capacity_factor = static_cast<float>(*flags.capacity);
  const auto footprint = [&](int stages, int layers) {
    const int members = std::max(flags.expert_parallel, 1);
    return on_gpus ? GpuFootprintOf(model, stages, layers, members)
                   : FootprintOf(model, stages, layers, members);
  };
  if (HasComponents(costs.layers)) {
    costs = FoldEnds(costs);
    const int layers = costs.LayerCount();
    SetLayerBytes(footprint(layers, 1), &costs);
    return costs;
  }
  if (!costs.moe) {
    throw Error(
        "`model`: the sizes of its values are for plans of components; give costs with \"moe\", "
        "such as "
        "`costs` moe-unit");
  }
  const Spec spec = SpecOf(flags, costs);
  ReadOption([&] { CheckSpec(spec); });
  const std::string why_not = schedule.reject(spec);
  if (!why_not.empty()) throw Error(spec.schedule + " " + why_not);
  costs.memory = footprint(schedule.stages(spec), costs.moe->layers_per_stage);
  return costs;
}

}  // namespace

void AddCompileOptions(CLI::App* app, CompileFlags* flags) {
  app->add_option(
         "--schedule", flags->schedule,
         "name of a schedule, in any spelling (DualPipe, zb_v);\ncontraflow list shows them all")
      ->type_name("NAME")
      ->transform(CLI::Validator(
          [](std::string& text) {
            text = ScheduleName(text);
            return std::string();
          },
          ""))
      ->required();
  AddInteger(app, "--ranks", &flags->ranks, "P", "ranks of the pipeline")->required();
  AddInteger(app, "--microbatches", &flags->microbatches, "M",
             "micro-batches per replica and step; with expert groups, per device")
      ->required();
  AddInteger(app, "--chunks", &flags->chunks, "V", "stages per rank (default: the schedule's)", 1);
  AddInteger(app, "--data-parallel", &flags->data_parallel, "N",
             "replicas of the pipeline, whose gradients are summed (default: 1)");
  AddExpertParallel(app, &flags->expert_parallel);
  AddCostsOptions(app, &flags->costs, "f = b = w = 1, without a unit of time");
  app->add_option("--model", flags->model,
                  "model file of contraflow-run, or preset: default or tiny. Its sizes\nreplace "
                  "\"memory\" in the costs, which must have \"moe\"")
      ->type_name("FILE|PRESET");
  AddNumber(app, "--capacity", &flags->capacity, "X",
            "each expert takes at most X times its even share of tokens\n"
            "(default: the model's capacity_factor)");
  AddChoice(app, "--device", &flags->device, "cpu|cuda",
            "where the plan will run; sets the sizes of a --model (default: cpu)");
  AddText(
      app, "--memory-limit", &flags->memory_limit, "BYTES|Nx",
      "most activations of a rank, stashes for W included: bytes, a count if\nthe costs give no "
      "bytes, or Nx, N times the peak of 1F1B; none: no limit.\nDefault: 1x for auto unless "
      "the device memory is known, else none;\noverlapping then never raises the peak of the "
      "schedule");
  AddDeviceMemoryOptions(app, &flags->device_memory);
  AddSearchOptions(app, &flags->search);
  app->add_option(
         "--recompute", flags->recompute,
         "stages that run their forward again, and keep only their input:\nnone, full, a list "
         "such as 0,3,5-7, or auto (the cheapest that fits\nthe limits). layers=2: the "
         "first two layers of each stage;\nlayers=2,2,1,0: a number for each stage. "
         "attention, experts or\nall-but-attention: that part alone. :0,3 after a part "
         "or number:\nof these stages (default: none)")
      ->type_name("STAGES");
  app->add_option(
         "--offload", flags->offload,
         "stages whose activations wait in host memory, as many as the link\n(\"host\" in the "
         "costs) can move in time: none, full, a list such as\n0,3,5-7, or auto (as few as fit "
         "--memory-limit)\n(default: none)")
      ->type_name("STAGES");
  AddPartitionOption(app, &flags->partition,
                     "layers of each stage: auto (the shortest step), even, a list such as\n"
                     "5,4x14,3, or a layout of Megatron-LM such as Et*3|(tt|)*29,m|L\n"
                     "(default: auto, for costs with \"layers\"). For costs of stages, even\n"
                     "cuts or merges them to the number that the schedule has");
  AddForOption(app, &flags->target);
  app->add_option("--level", flags->level,
                  "how far to lower: compute (an order of F, B and W), comm (plus\nmessages; the "
                  "default), component (plus attention, experts and\nall-to-alls of MoE layers) or "
                  "buffer (plus memory addresses)")
      ->type_name("LEVEL");
}

void CheckChunks(const Spec& spec) {
  const Placement placement = spec.search.placement;
  if (spec.schedule != kAuto.name || spec.chunks == 0 || IsChoice(placement)) return;
  const int chunks = StagesOf(spec, placement) / spec.ranks;
  if (chunks == spec.chunks) return;
  throw UsageError("`placement` " + std::string(Name(placement)) + ": has " +
                   std::to_string(chunks) + (chunks == 1 ? " stage" : " stages") +
                   " a rank, `chunks` is " + std::to_string(spec.chunks) +
                   "; leave `chunks` out, or give `placement` interleaved or wave");
}

CompileRequest ResolveCompile(CompileFlags flags, std::vector<std::string>* assumed) {
  const Level level = ReadOption([&] { return ParseLevel(flags.level); });
  // The name first: nothing else matters if it is misspelt.
  const Schedule& schedule = *ReadOption([&] { return &FindSchedule(flags.schedule); });
  const Target target = ReadFor(flags.target);
  AssumeOverlap(target, &flags.costs);
  if (level >= Level::kComponent && (target == Target::kTorch || target == Target::kMegatron)) {
    throw UsageError("`for` " + std::string(Name(target)) +
                     ": plans of level comm are exported to it, and `level` is " + flags.level);
  }
  if (flags.schedule != kAuto.name) RefuseSearchOptions(flags.search, flags.schedule);
  const CostModel costs = CostsOf(flags, schedule, assumed);
  CompileRequest request = {.spec = SpecOf(flags, costs),
                            .options = {.level = level, .overlap = OverlapOf(flags.costs, costs)}};
  Spec& spec = request.spec;
  ApplyDeviceMemory(flags.device_memory, &spec);
  ReadOption([&] {
    NamingCosts(flags.costs, [&] {
      CheckSpec(spec);
      request.assumed_limit =
          flags.memory_limit.empty() && spec.schedule == kAuto.name && DevicesOf(spec).empty();
      if (request.assumed_limit) {
        spec.memory_limit = LimitOf1F1B(spec, HeldBy1F1B(spec));
      } else if (!flags.memory_limit.empty() && flags.memory_limit != "none") {
        SetMemoryLimit(flags.memory_limit, 0, &spec);
      }
    });
  });
  return request;
}

}  // namespace contraflow
