#include "tools/cli/compare_flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "schedules/compile.h"
#include "schedules/published/rows.h"
#include "schedules/registry.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"

namespace contraflow {

void AddCompareOptions(CLI::App* app, CompareFlags* flags) {
  AddInteger(app, "--ranks", &flags->ranks, "P", "ranks of the pipeline")->required();
  app->add_option("--microbatches", flags->microbatches,
                  "micro-batches per replica and step; with expert groups, per device;\n"
                  "a list such as 16,32,64 makes a sweep")
      ->type_name("M,...")
      ->required();
  AddInteger(app, "--chunks", &flags->chunks, "V",
             "stages per rank of interleaved schedules (default: 2)", 1);
  AddCostsOptions(app, &flags->costs, "f = b = w = 1, without a unit of time");
  AddText(app, "--memory-limit", &flags->memory_limit, "BYTES|Nx,...",
          "schedules that hold more on a rank do not fit; a list such as\n1x,1.5x makes a sweep; "
          "none: no limit (default: 1x, or none if the\ndevice memory is known); see contraflow "
          "compile --help");
  AddInteger(app, "--data-parallel", &flags->data_parallel, "N",
             "replicas of the pipeline (default: 1)");
  AddExpertParallel(app, &flags->expert_parallel);
  AddDeviceMemoryOptions(app, &flags->device_memory);
  AddSearchOptions(app, &flags->search);
  app->add_option("--recompute", flags->recompute,
                  "stages that run their forward again, in every schedule; see\n"
                  "contraflow compile --help")
      ->type_name("STAGES");
  app->add_option("--offload", flags->offload,
                  "stages whose activations wait in host memory, in every schedule; see\n"
                  "contraflow compile --help")
      ->type_name("STAGES");
  AddPartitionOption(app, &flags->partition,
                     "layers of each stage, in every schedule; see contraflow compile --help");
  AddForOption(app, &flags->target);
  AddText(app, "--schedules", &flags->schedules, "NAME,...",
          "compare these schedules only (default: all)");
  AddInteger(
      app, "--global-batch", &flags->global_batch, "N",
      "samples of a step, of all replicas. Over a list of --microbatches,\nthe times and "
      "bytes of a micro-batch scale to keep it; the costs are\nthose of the first in the list");
  app->add_option("--sort", flags->sort,
                  "sort the rows by step, bubble, gap, memory or total, the smallest "
                  "first\n(default: step if no COLUMN is given)")
      ->type_name("[COLUMN]")
      ->expected(0, 1);
  app->add_flag("--no-auto", flags->no_auto, "compare published schedules only; do not search");
}

namespace {

std::vector<std::string> SchedulesOf(const CompareFlags& flags) {
  std::vector<std::string> names;
  for (size_t begin = 0; begin < flags.schedules.size();) {
    const size_t end = std::min(flags.schedules.find(',', begin), flags.schedules.size());
    const std::string name = ScheduleName(flags.schedules.substr(begin, end - begin));
    names.emplace_back(ReadOption([&] { return FindSchedule(name).name; }));
    begin = end + 1;
  }
  if (flags.no_auto && std::ranges::count(names, kAuto.name) > 0) {
    throw UsageError("`no_auto` contradicts `schedules`, which names auto; drop one of them");
  }
  if (flags.no_auto) {
    RefuseSearchOptions(flags.search, "with `no_auto` what is compared");
  } else if (!names.empty() && std::ranges::count(names, kAuto.name) == 0) {
    RefuseSearchOptions(flags.search, "what `schedules` names");
  }
  return names;
}

}  // namespace

CompareRequest ResolveCompare(CompareFlags flags, std::vector<std::string>* assumed) {
  const Target target = ReadFor(flags.target);
  AssumeOverlap(target, &flags.costs);
  CompareRequest request = {
      .spec = {.schedule = "",
               .ranks = flags.ranks,
               .microbatches = 0,
               .chunks = flags.chunks,
               .data_parallel = flags.data_parallel,
               .expert_parallel =
                   flags.expert_parallel > 0 ? std::optional(flags.expert_parallel) : std::nullopt,
               .costs = ResolveCosts(flags.costs, UnitCosts(), assumed),
               .memory_limit = {},
               .search = ResolveSearch(flags.search),
               .recompute = ReadOption([&] { return ParseRecompute(flags.recompute); }),
               .offload = ReadOption([&] { return ParseOffload(flags.offload); }),
               .target = target},
      .memory_limit = "",
      .no_auto = flags.no_auto,
      .schedules = {}};
  request.schedules = SchedulesOf(flags);
  request.spec.partition = ReadPartition(flags.partition, request.spec.costs);
  ApplyDeviceMemory(flags.device_memory, &request.spec);
  const CostsOption& costs = flags.costs;
  const bool chunks_given = costs.f || costs.b || costs.w || costs.bw || costs.fb;
  request.components = request.spec.costs.moe && request.spec.costs.derived && !chunks_given;
  return request;
}

}  // namespace contraflow
