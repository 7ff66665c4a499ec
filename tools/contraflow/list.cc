#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "compiler/files/file.h"
#include "schedules/registry.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"
#include "tools/cli/terminal.h"
#include "tools/contraflow/cmd.h"
#include "tools/report/report.h"
#include "tools/report/text.h"

namespace contraflow {
namespace {

std::string_view FormulaText(const Schedule& schedule) {
  return schedule.formula == nullptr ? "" : schedule.formula->text;
}

std::string ListJson() {
  Json schedules = Json::array();
  for (const Schedule* schedule : Schedules()) {
    Json row = Json::object();
    row["name"] = schedule->name;
    row["summary"] = schedule->summary;
    row["limits"] = WithFlags(schedule->limits);
    row["memory"] = WithFlags(schedule->memory);
    if (schedule->formula != nullptr) row["formula"] = FormulaText(*schedule);
    schedules.push_back(std::move(row));
  }
  Json document = Json::object();
  document["schedules"] = std::move(schedules);
  return FormatJson("list", document);
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
  return text +
         "P ranks, M micro-batches, V stages per rank (--chunks); r is a rank, from 0 to\n"
         "P-1. An activation of half a rank is that of half a rank's layers.\n" +
         std::string(kFormulaLegend);
}

std::function<int()> AddList(CLI::App* app) {
  const auto json = std::make_shared<bool>(false);
  AddJson(app, json.get());
  return [json] {
    *json ? WriteFile("-", ListJson()) : Print(ListText());
    return kExitFine;
  };
}

}  // namespace

const Command kListCommand = {
    .name = "list",
    .summary =
        "list the schedules: what each is, which P and M it takes, how many activations it holds",
    .example = "contraflow list",
    .add = AddList,
};

}  // namespace contraflow
