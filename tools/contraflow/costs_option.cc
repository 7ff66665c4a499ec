#include "tools/contraflow/costs_option.h"

#include <CLI/CLI.hpp>
#include <utility>

#include "compiler/files/profiles.h"
#include "compiler/lower/interleave.h"
#include "compiler/plan/error.h"
#include "tools/contraflow/exit.h"
#include "tools/contraflow/options.h"

namespace contraflow {
namespace {

Time Ticks(double value, Unit unit, const char* flag) {
  return ReadOption([&] { return ToTicks(value, unit, flag); });
}

/// Puts the figures that are given over one stage.
void Override(const CostsOption& option, Unit unit, StageCost* cost) {
  if (option.f) cost->f = Ticks(*option.f, unit, "--f");
  if (option.b) cost->b = Ticks(*option.b, unit, "--b");
  if (option.w) cost->w = Ticks(*option.w, unit, "--w");
  if (option.b || option.w) cost->bw = cost->b + cost->w;
  if (option.bw) cost->bw = Ticks(*option.bw, unit, "--bw");
  if (option.f || option.b || option.w || option.bw) cost->fb = cost->f + cost->bw;
  if (option.fb) cost->fb = Ticks(*option.fb, unit, "--fb");
}

}  // namespace

void AddCostsOptions(CLI::App* app, CostsOption* option, const std::string& otherwise) {
  app->add_option("--costs", option->file,
                  "cost file, or a profile such as deepseek-v3-h800\n(default: " + otherwise + ")")
      ->type_name("FILE|PROFILE");
  AddNumber(app, "--f", &option->f, "T", "forward of a stage; this and the next override the file");
  AddNumber(app, "--b", &option->b, "T", "backward for the input gradient only");
  AddNumber(app, "--w", &option->w, "T", "backward for the weight gradient only");
  AddNumber(app, "--bw", &option->bw, "T", "full backward (default: b + w)");
  AddNumber(app, "--fb", &option->fb, "T",
            "a forward overlapped with a full backward (default: f + bw)");
  AddNumber(app, "--comm", &option->comm, "T", "one hop between neighbouring stages");
  AddOverlapOption(app, option);
}

void AddOverlapOption(CLI::App* app, CostsOption* option) {
  app->add_option("--overlap", option->overlap,
                  "how far MoE components overlap: published (F&B pairs only,\n"
                  "as in the papers) or all (default: all)")
      ->type_name("published|all");
}

CostModel UnitCosts() {
  const Time one = TicksPerUnit(Unit::kUnit);
  return UniformCosts(one, one, one);
}

CostModel ResolveCosts(const CostsOption& option, const CostModel& base) {
  CostModel costs = option.file ? ReadCostsOrProfile(*option.file) : base;
  const Overlap overlap = OverlapOf(option, costs);
  if (option.overlap && !costs.moe) {
    throw Error(
        "--overlap: says how components overlap, and these costs have none; drop it, or give costs "
        "with \"moe\", such as --costs deepseek-v3-h800");
  }
  // Derived with the other overlap or not at all; figures that were given as such stay.
  if (costs.moe && (costs.stages.empty() || (option.overlap && costs.derived))) {
    DeriveChunkCosts(&costs, overlap);
  }
  for (StageCost& stage : costs.stages) Override(option, costs.unit, &stage);
  if (option.comm) costs.comm = {.latency = Ticks(*option.comm, costs.unit, "--comm")};
  return costs;
}

void RefuseChunkCosts(const CostsOption& option) {
  const std::pair<const char*, bool> flags[] = {{"--f", option.f.has_value()},
                                                {"--b", option.b.has_value()},
                                                {"--w", option.w.has_value()},
                                                {"--bw", option.bw.has_value()},
                                                {"--fb", option.fb.has_value()}};
  for (const auto& [name, given] : flags) {
    if (!given) continue;
    throw Error(std::string(name) +
                ": a plan of components takes the times in \"moe\", chunks have none of their own; "
                "give --costs with other times there");
  }
}

CostModel CostsForPlan(const CostsOption& option, const Plan& plan) {
  if (plan.layers > 0) {
    RefuseChunkCosts(option);
    if (option.overlap) {
      throw Error(
          "--overlap: how far the components of this plan overlap was settled when it was "
          "compiled; "
          "give it to contraflow compile");
    }
  }
  CostModel costs = ResolveCosts(option, plan.costs ? *plan.costs : UnitCosts());
  CheckCosts(costs, plan.stages, plan.microbatches, plan.layers);
  return costs;
}

Overlap OverlapOf(const CostsOption& option, const CostModel& costs) {
  if (!option.overlap) return costs.derived.value_or(Overlap::kAll);
  try {
    return ParseOverlap(*option.overlap);
  } catch (const Error& error) {
    throw UsageError("--overlap: " + std::string(error.what()));
  }
}

std::string DescribeCosts(const CostModel& costs) {
  const auto text = [&](Time ticks) { return FormatTime(ticks, costs.unit); };
  const StageCost& c = costs.stage(0);
  std::string line;
  if (costs.stages.size() > 1) {
    line = std::to_string(costs.stages.size()) + " stages, each its own costs";
  } else {
    line = "f " + text(c.f) + ", b " + text(c.b) + ", w " + text(c.w) + ", bw " + text(c.bw) +
           ", fb " + text(c.fb);
    if (c.reduce > 0) line += ", reduce " + text(c.reduce);
    if (c.step > 0) line += ", step " + text(c.step);
  }
  line += ", comm " + text(costs.comm.latency + costs.comm.occupancy);
  if (!costs.microbatch_scale.empty()) line += ", scaled by micro-batch";
  line += " (" + std::string(Name(costs.unit)) + ")";
  if (costs.derived) line += ", overlap " + std::string(Name(*costs.derived));
  return line;
}

}  // namespace contraflow
