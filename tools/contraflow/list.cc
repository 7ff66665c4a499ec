#include <CLI/CLI.hpp>
#include <memory>

#include "compiler/files/file.h"
#include "schedules/registry.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"
#include "tools/contraflow/cmd.h"
#include "tools/report/report.h"
#include "tools/report/text.h"

namespace contraflow {
namespace {

std::string_view FormulaText(const Schedule& schedule) {
  return schedule.formula == nullptr ? "" : schedule.formula->text;
}

std::string ListJson() {
  Json::Array schedules;
  for (const Schedule* schedule : Schedules()) {
    auto row = std::make_unique<JsonObject>();
    row->Add("name", {std::string(schedule->name)});
    row->Add("summary", {std::string(schedule->summary)});
    row->Add("limits", {WithFlags(schedule->limits)});
    row->Add("memory", {WithFlags(schedule->memory)});
    if (schedule->formula != nullptr) row->Add("formula", {std::string(FormulaText(*schedule))});
    schedules.push_back({std::move(row)});
  }
  auto document = std::make_unique<JsonObject>();
  document->Add("schedules", {std::move(schedules)});
  return FormatJson({std::move(document)});
}

std::string ListText() {
  std::string text;
  for (const Schedule* schedule : Schedules()) {
    text += std::string(schedule->name) + "\n";
    text += "  " + std::string(schedule->summary) + "\n";
    text += "  fits    " + WithFlags(schedule->limits) + "\n";
    text += "  memory  " + WithFlags(schedule->memory) + "\n";
    if (schedule->formula != nullptr) {
      text += "  bubble  " + std::string(FormulaText(*schedule)) + "\n";
    }
    text += "\n";
  }
  return text + "P ranks, M micro-batches, r a rank.\n" + std::string(kFormulaLegend);
}

std::function<int()> AddList(CLI::App* app) {
  const auto json = std::make_shared<bool>(false);
  AddJson(app, json.get());
  return [json] {
    WriteFile("-", *json ? ListJson() : ListText());
    return kExitFine;
  };
}

}  // namespace

const Command kListCommand = {
    .name = "list",
    .summary = "the schedules: what they are, what they fit, what they hold",
    .example = "contraflow list",
    .add = AddList,
};

}  // namespace contraflow
