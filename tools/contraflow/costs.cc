#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "compiler/files/cost_io.h"
#include "compiler/files/file.h"
#include "compiler/files/plan_document.h"
#include "compiler/lower/interleave.h"
#include "compiler/plan/layer_cost.h"
#include "schedules/partition/stages.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"
#include "tools/cli/spec_options.h"
#include "tools/cli/terminal.h"
#include "tools/contraflow/cmd.h"
#include "tools/report/report.h"
#include "tools/report/text.h"

namespace contraflow {
namespace {

struct CostsOptions {
  std::string file;
  CostsOption costs;
  bool json = false;
};

/// The best order of a forward and a full backward chunk.
Interleaving PairOf(const MoeCost& moe) {
  return Interleave(moe, moe, {.forward = true, .backward = true, .weights = true});
}

/// "COMBINE_B l3"
std::string ComponentName(const Instruction& component) {
  return std::string(Name(component.op)) + " l" + std::to_string(component.layer);
}

Json StageToJson(const StageCost& cost, Unit unit) {
  return {{"f", TimeToJson(cost.f, unit)},
          {"b", TimeToJson(cost.b, unit)},
          {"w", TimeToJson(cost.w, unit)},
          {"bw", TimeToJson(cost.bw, unit)},
          {"fb", TimeToJson(cost.fb, unit)}};
}

/// One entry of the layers, with the costs of one layer as a stage of its own.
struct LayerRow {
  std::string name;
  int repeat = 1;
  StageCost cost;
};

std::vector<LayerRow> RowsOf(const CostModel& costs) {
  LayerStages stages(costs, costs.derived.value_or(Overlap::kAll));
  std::vector<LayerRow> rows;
  int first = 0;
  for (const LayerCost& layer : costs.layers) {
    rows.push_back({layer.name, layer.repeat, stages.CostOf(first, first + 1)});
    first += layer.repeat;
  }
  return rows;
}

std::string CostsJson(const CostModel& costs, const std::vector<std::string>& assumed) {
  Json document = Json::object();
  document["unit"] = Name(costs.unit);
  if (!costs.layers.empty()) {
    Json layers = Json::array();
    for (const LayerRow& row : RowsOf(costs)) {
      Json layer = {{"name", row.name}, {"repeat", row.repeat}};
      layer.update(StageToJson(row.cost, costs.unit));
      layers.push_back(std::move(layer));
    }
    document["layers"] = std::move(layers);
  } else if (costs.stages.size() == 1) {
    document.update(StageToJson(costs.stages[0], costs.unit));
  } else {
    Json stages = Json::array();
    for (const StageCost& cost : costs.stages) stages.push_back(StageToJson(cost, costs.unit));
    document["stages"] = std::move(stages);
  }
  if (costs.moe) {
    document["serial"] = TimeToJson(SerialSum(*costs.moe), costs.unit);
    Json order = Json::array();
    for (const Instruction& component : PairOf(*costs.moe).order) {
      order.push_back(ComponentName(component));
    }
    document["fb_order"] = std::move(order);
  }
  for (const std::string& what : assumed) document["warnings"].push_back(WithFlags(what));
  return FormatJson("costs", document);
}

/// The pair on its two lanes, a line for each component in issue order.
std::string PairText(const MoeCost& moe, Unit unit) {
  const Interleaving pair = PairOf(moe);
  const Time serial = SerialSum(moe);
  const TimeScale scale(pair.makespan, unit);
  std::string text = "F&B     a forward and a full backward of " +
                     std::to_string(moe.layers_per_stage) + " layer" +
                     (moe.layers_per_stage == 1 ? "" : "s") + ": " +
                     FormatWithUnit(pair.makespan, unit) + " overlapped, " +
                     FormatWithUnit(serial, unit) + " one after the other\n\n";
  Table table;
  table.columns = {">start", ">end", "compute", "all-to-all"};
  for (size_t i = 0; i < pair.order.size(); ++i) {
    const Instruction& component = pair.order[i];
    std::vector<std::string> row = {scale.Of(pair.spans[i].start), scale.Of(pair.spans[i].end)};
    if (WorkOf(component.op) == Work::kAllToAll) row.emplace_back();
    row.push_back(ComponentName(component));
    table.rows.push_back(std::move(row));
  }
  return text + FormatTable(table);
}

std::string CostsText(const CostModel& costs) {
  const auto text = [&](Time ticks) { return FormatTime(ticks, costs.unit); };
  Table table;
  const bool alike = costs.stages.size() == 1;
  const std::vector<LayerRow> layers =
      costs.layers.empty() ? std::vector<LayerRow>() : RowsOf(costs);
  table.columns = {
      layers.empty() ? "stage" : "layer", ">f", ">b", ">w", ">bw", ">fb", ">reduce", ">step"};
  for (const LayerRow& row : layers) {
    const StageCost& c = row.cost;
    const std::string times = row.repeat > 1 ? " x" + std::to_string(row.repeat) : "";
    table.rows.push_back({row.name + times, text(c.f), text(c.b), text(c.w), text(c.bw), text(c.fb),
                          text(c.reduce), text(c.step)});
  }
  for (size_t s = 0; s < costs.stages.size(); ++s) {
    const StageCost& c = costs.stages[s];
    table.rows.push_back({alike ? "every" : std::to_string(s), text(c.f), text(c.b), text(c.w),
                          text(c.bw), text(c.fb), text(c.reduce), text(c.step)});
  }
  std::string out;
  if (!costs.source.empty()) out += "source  " + costs.source + "\n";
  out += "unit    " + std::string(Name(costs.unit)) + "\n\n" + FormatTable(table) + "\n";
  out += "comm    " + text(costs.comm.latency) + " per message";
  if (costs.comm.exclusive()) {
    out += ", and " + text(costs.comm.occupancy) + " of its edge (" +
           FormatCount(costs.comm.bytes) + " bytes)";
  }
  out += "\n";
  if (costs.memory) {
    out += "memory  activation " + FormatCount(costs.memory->activation_bytes) +
           " bytes per stage and micro-batch; " + FormatCount(costs.memory->w_stash_bytes) +
           " of them are held until the end of W\n";
  }
  if (!costs.microbatch_scale.empty()) {
    out += "scale   of each micro-batch's compute times:";
    for (const double scale : costs.microbatch_scale) out += " " + FormatReal(scale);
    out += "\n";
  }
  if (costs.ring)
    out += "sums    ring: reduce is of many replicas, step of a device that shares nothing\n";
  if (costs.derived) {
    out +=
        "overlap " + std::string(Name(*costs.derived)) + ": stage costs derived from components\n";
  }
  if (costs.moe) out += "\n" + PairText(*costs.moe, costs.unit);
  return out +
         "\nf forward, b backward for the input gradient only, w for the weight gradient\n"
         "only, bw both in one go, fb a forward overlapped with a full backward of\n"
         "another micro-batch.\n";
}

std::function<int()> AddCosts(CLI::App* app) {
  const auto options = std::make_shared<CostsOptions>();
  // Not required: a required option would take "init" for a file.
  CLI::Option* const file =
      app->add_option("FILE|PROFILE", options->file, kCostsHelp)->type_name("");
  AddOverlapOption(app, &options->costs);
  AddJson(app, &options->json);
  CLI::App* const init =
      app->add_subcommand("init", "Write a cost file: estimated for a model, or a template");
  return [options, file, init, run_init = AddCostsInit(init)] {
    if (init->parsed()) return run_init();
    if (file->count() == 0) throw CLI::RequiredError("FILE|PROFILE");
    options->costs.file = options->file;
    std::vector<std::string> assumed;
    const CostModel costs = ResolveCosts(options->costs, UnitCosts(), &assumed);
    Warn(assumed);
    options->json ? WriteFile("-", CostsJson(costs, assumed)) : Print(CostsText(costs));
    return kExitFine;
  };
}

}  // namespace

const Command kCostsCommand = {
    .name = "costs",
    .summary =
        "show the costs of each stage and, with MoE costs, how a forward and a backward interleave",
    .example = "contraflow costs deepseek-v3-h800",
    .add = AddCosts,
};

}  // namespace contraflow
