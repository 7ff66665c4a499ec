#include "schedules/compile.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>

#include "compiler/files/plan_io.h"
#include "compiler/plan/error.h"
#include "kernels/gpu/exchange.h"
#include "runtime/gpu/views.h"
#include "runtime/model/views.h"
#include "schedules/partition/stages.h"
#include "schedules/published/rows.h"
#include "schedules/registry.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"
#include "tools/cli/spec_options.h"
#include "tools/contraflow/cmd.h"
#include "tools/report/progress.h"

namespace contraflow {
namespace {

struct CompileFlags {
  std::string schedule;
  int ranks = 0, microbatches = 0, chunks = 0, data_parallel = 1, expert_parallel = 1;
  CostsOption costs;
  std::optional<std::string> model;
  std::optional<double> capacity;
  std::string device = "cpu";
  std::string memory_limit;
  SearchOption search;
  std::string recompute = "none", offload = "none";
  std::optional<std::string> partition;
  DeviceMemoryOption device_memory;
  std::string level = "comm";
  std::string dump_after;
  std::string output;
};

void CheckPassName(const std::string& name) {
  std::vector<std::string> known = {"all"};
  for (const std::string_view pass : PassNames()) known.emplace_back(pass);
  if (std::find(known.begin(), known.end(), name) != known.end()) return;
  std::string list;
  for (const std::string& pass : known) list += (list.empty() ? "" : ", ") + pass;
  const std::string shown = name.substr(0, 64);
  throw UsageError("--dump-after: unknown pass \"" + shown + "\"" + DidYouMean(shown, known) +
                   "; passes are " + list);
}

/// Prints the plan after each pass that is asked for and changed it.
PassObserver Dumper(const std::string& dump_after) {
  if (dump_after.empty()) return {};
  return [dump_after, last = std::string()](std::string_view pass, const Plan& plan) mutable {
    std::string text = WritePlan(plan);
    const bool wanted = dump_after == "all" || dump_after == pass;
    if (wanted && text != last) {
      std::fprintf(stderr, "after %.*s:\n%s", static_cast<int>(pass.size()), pass.data(),
                   text.c_str());
    }
    last = std::move(text);
  };
}

Spec SpecOf(const CompileFlags& options, const CostModel& costs) {
  std::optional<PartitionChoice> partition = ReadPartition(options.partition);
  // As compare has it.
  if (!partition && options.schedule == kAuto.name) partition.emplace();
  return {.schedule = options.schedule,
          .ranks = options.ranks,
          .microbatches = options.microbatches,
          .chunks = options.chunks,
          .data_parallel = options.data_parallel,
          .expert_parallel = options.expert_parallel,
          .costs = costs,
          .memory_limit = {},
          .search = ResolveSearch(options.search),
          .recompute = ReadOption([&] { return ParseRecompute(options.recompute); }),
          .offload = ReadOption([&] { return ParseOffload(options.offload); }),
          .partition = partition};
}

void CheckDevice(const CompileFlags& options) {
  const std::vector<std::string> known = {"cpu", "cuda"};
  if (std::find(known.begin(), known.end(), options.device) == known.end()) {
    const std::string shown = options.device.substr(0, 64);
    throw UsageError("--device: unknown device \"" + shown + "\"" + DidYouMean(shown, known) +
                     "; devices are cpu, cuda");
  }
  if (options.device == "cuda" && !options.model) {
    throw UsageError("--device: says what the values of a --model are stored in; give one");
  }
  if (options.device == "cuda" && ParseLevel(options.level) != Level::kBuffer) {
    throw UsageError("--device cuda: runs plans of level buffer only, this would be one of level " +
                     options.level + "; give --level buffer");
  }
  if (options.device == "cuda" && options.expert_parallel > gpu::kMaxPeers) {
    throw UsageError("--device cuda: an expert group has at most " +
                     std::to_string(gpu::kMaxPeers) + " members there, is to have " +
                     std::to_string(options.expert_parallel) +
                     "; give a smaller --expert-parallel");
  }
}

/// The costs with the memory of the model that --model names in place of their own.
CostModel CostsOf(const CompileFlags& options, const Schedule& schedule) {
  CostModel costs = ResolveCosts(options.costs, UnitCosts());
  const Level level = ParseLevel(options.level);
  if (!costs.layers.empty() &&
      (level == Level::kComponent || (level == Level::kBuffer && options.model))) {
    const Spec spec = SpecOf(options, UnitCosts());
    ReadOption([&] { CheckSpec(spec); });
    costs = AlikeStages(costs, schedule.stages(spec), OverlapOf(options.costs, costs));
  }
  if (costs.moe && level >= Level::kComponent) RefuseChunkCosts(options.costs);
  if (options.capacity) {
    if (!options.model) throw UsageError("--capacity: is for the experts of a --model; give one");
    CheckCapacity(*options.capacity);
  }
  CheckDevice(options);
  if (!options.model) return costs;
  if (!costs.moe) {
    throw Error(
        "--model: the sizes of its values are for plans of components; give costs with \"moe\", "
        "such as "
        "--costs moe-unit");
  }
  const Spec spec = SpecOf(options, costs);
  ReadOption([&] { CheckSpec(spec); });
  const std::string why_not = schedule.reject(spec);
  if (!why_not.empty()) throw Error(spec.schedule + " " + why_not);
  const bool on_gpus = options.device == "cuda";
  Model model = ReadModel(*options.model);
  if (options.capacity) model.capacity_factor = static_cast<float>(*options.capacity);
  const auto footprint = on_gpus ? GpuFootprintOf : FootprintOf;
  costs.memory =
      footprint(model, schedule.stages(spec), costs.moe->layers_per_stage, options.expert_parallel);
  return costs;
}

int RunCompile(const CompileFlags& options) {
  const Level level = ReadOption([&] { return ParseLevel(options.level); });
  if (!options.dump_after.empty()) CheckPassName(options.dump_after);
  // The name first: nothing else matters if it is misspelt.
  const Schedule& schedule = *ReadOption([&] { return &FindSchedule(options.schedule); });
  const bool searched = options.schedule == kAuto.name;
  if (!searched) RefuseSearchOptions(options.search, options.schedule);
  RefuseOverwrite({"--output", options.output}, {{"--costs", options.costs.file.value_or("")},
                                                 {"--model", options.model.value_or("")}});
  const CostModel costs = CostsOf(options, schedule);
  Spec spec = SpecOf(options, costs);
  ApplyDeviceMemory(options.device_memory, &spec);
  ReadOption([&] {
    CheckSpec(spec);
    if (options.memory_limit.empty()) return;
    spec.memory_limit = MemoryLimitOf(spec, options.memory_limit);
  });
  std::optional<Progress> progress;
  if (options.dump_after.empty() && options.output != "-") {
    progress.emplace("compiling " + spec.schedule);
  }
  std::optional<Interrupt> interrupt;
  SearchControl control;
  if (searched) {
    interrupt.emplace();
    control = WatchSearch(Interrupt::stop(), progress ? &*progress : nullptr, costs.unit);
  }
  const Plan plan = Compile(spec, {.level = level,
                                   .overlap = OverlapOf(options.costs, costs),
                                   .observer = Dumper(options.dump_after),
                                   .control = control});
  WritePlanFile(options.output, plan);
  progress.reset();
  if (const std::string text = DescribeInterrupt(plan); !text.empty()) {
    std::fprintf(stderr, "contraflow: %s\n", text.c_str());
  }
  return kExitFine;
}

std::function<int()> AddCompile(CLI::App* app) {
  const auto options = std::make_shared<CompileFlags>();
  app->add_option("--schedule", options->schedule,
                  "name of a schedule; contraflow list shows them all")
      ->type_name("NAME")
      ->required();
  AddInteger(app, "--ranks", &options->ranks, "P", "ranks of the pipeline")->required();
  AddInteger(app, "--microbatches", &options->microbatches, "M",
             "micro-batches per step, of each replica and of each device of an\nexpert group")
      ->required();
  AddInteger(app, "--chunks", &options->chunks, "V", "stages per rank (default: the schedule's)",
             1);
  AddInteger(app, "--data-parallel", &options->data_parallel, "N",
             "replicas of the pipeline, whose gradients are summed (default: 1)");
  AddInteger(app, "--expert-parallel", &options->expert_parallel, "N",
             "devices per rank, which split its experts (default: 1)");
  AddCostsOptions(app, &options->costs, "f = b = w = 1, without a unit of time");
  app->add_option(
         "--model", options->model,
         "model file (runtime/model/README.md), or preset: default or tiny.\nIts sizes replace "
         "\"memory\" in the costs, which must have \"moe\"")
      ->type_name("FILE|PRESET");
  AddNumber(app, "--capacity", &options->capacity, "X",
            "each expert takes at most X times its even share of tokens\n"
            "(default: the model's capacity_factor)");
  app->add_option("--device", options->device,
                  "where the plan will run, cpu or cuda; sets the size of the values\nof a --model "
                  "(default: cpu)")
      ->type_name("DEVICE");
  AddText(app, "--memory-limit", &options->memory_limit, "BYTES|Nx",
          "most bytes of activations per rank, including what W still needs (a\ncount if the costs "
          "give no bytes), or N times what 1F1B's first\nrank holds of the same model; without it "
          "nothing is limited, except\nthat overlapping "
          "never raises the schedule's own peak");
  AddDeviceMemoryOptions(app, &options->device_memory);
  AddSearchOptions(app, &options->search);
  app->add_option(
         "--recompute", options->recompute,
         "stages that run their forward again before their backward and\nhold only their "
         "input in between: none, full (all stages), a list\nsuch as 0,3,5-7, or auto: the "
         "cheapest stages that make the\nschedule fit --memory-limit; without a limit none "
         "(default: none)")
      ->type_name("STAGES");
  app->add_option(
         "--offload", options->offload,
         "stages whose activations wait for their backward in the memory of\nthe host, as far as "
         "the link (\"host\" in the costs) keeps up: none, full, a list such\nas 0,3,5-7, or auto: "
         "those that make the schedule fit --memory-limit\n(default: none)")
      ->type_name("STAGES");
  AddPartitionOption(app, &options->partition,
                     "layers of each stage, for costs with \"layers\": auto (the shortest step\n"
                     "that is found), even, or a list such as 5,4x14,3 (default: auto). For\n"
                     "costs of stages, even cuts or merges those of P stages, or as many as\n"
                     "are listed, into what the schedule makes (default: as they are)");
  app->add_option(
         "--level", options->level,
         "how far to lower: compute (an order of F, B and W), comm (plus\nmessages; the default), "
         "component (plus attention, experts and\nall-to-alls of MoE layers) or buffer (plus "
         "memory addresses)")
      ->type_name("LEVEL");
  app->add_option("--dump-after", options->dump_after,
                  "print the plan to stderr after this pass: comm, component or buffer;\n"
                  "all: after each")
      ->type_name("PASS|all");
  AddText(app, "-o,--output", &options->output, "FILE",
          "plan file; - is stdout, .cbor is binary,\nFOLDER/ is one binary file per rank")
      ->required();
  return [options] { return RunCompile(*options); };
}

}  // namespace

const Command kCompileCommand = {
    .name = "compile",
    .summary = "make a plan: generate a schedule, lower it, prove it, write it",
    .example =
        "contraflow compile --schedule dualpipe --ranks 8 --microbatches 20 "
        "--costs deepseek-v3-h800 -o plan.json",
    .add = AddCompile,
};

}  // namespace contraflow
