#include "compiler/files/profiles.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "compiler/files/file.h"
#include "compiler/plan/error.h"
#include "compiler/plan/layer_cost.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"
#include "tools/cli/terminal.h"
#include "tools/contraflow/cmd.h"
#include "tools/report/report.h"
#include "tools/report/text.h"

namespace contraflow {
namespace {

struct ProfilesOptions {
  std::string name;
  bool json = false;
};

/// For how many ranks a profile is meant, which its name ends in: "-pp16"; 0: any.
int RanksOf(const std::string& name) {
  constexpr std::string_view kPipeline = "-pp";
  const size_t at = name.rfind(kPipeline);
  if (at == std::string::npos) return 0;
  int ranks = 0;
  const char* const end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + at + kPipeline.size(), end, ranks);
  return error == std::errc() && stop == end ? ranks : 0;
}

/// Subject of its costs.
std::string WhatOf(const CostModel& costs) {
  if (!costs.layers.empty()) return Counted(costs.LayerCount(), "layer");
  if (costs.moe) return Counted(costs.moe->layers_per_stage, "MoE layer") + " a stage, components";
  return costs.stages.size() > 1 ? Counted(static_cast<int64_t>(costs.stages.size()), "stage")
                                 : "stages, all alike";
}

Json ProfileJson(const std::string& name, const CostModel& costs) {
  Json row = {{"name", name}, {"unit", Name(costs.unit)}, {"what", WhatOf(costs)}};
  if (RanksOf(name) > 0) row["ranks"] = RanksOf(name);
  row["source"] = costs.source;
  return row;
}

int RunProfiles(const ProfilesOptions& options) {
  std::vector<std::string> names = ProfileNames();
  if (!options.name.empty()) {
    if (std::ranges::count(names, options.name) == 0) {
      throw Error("there is no profile \"" + options.name.substr(0, 64) + "\"" +
                  DidYouMean(options.name, names) + "; contraflow profiles lists them");
    }
    names = {options.name};
  }
  Json rows = Json::array();
  Table table;
  table.columns = {"profile", "costs of", ">ranks", "unit"};
  std::string source;
  for (const std::string& name : names) {
    const CostModel costs = ReadCostsOrProfile(name);
    const int ranks = RanksOf(name);
    rows.push_back(ProfileJson(name, costs));
    table.rows.push_back({name, WhatOf(costs), ranks > 0 ? std::to_string(ranks) : "any",
                          costs.unit == Unit::kUnit ? "relative" : std::string(Name(costs.unit))});
    source = costs.source;
  }
  if (options.json) {
    WriteFile("-", FormatJson("profiles", {{"profiles", std::move(rows)}}));
  } else if (options.name.empty()) {
    Print(FormatTable(table) +
          "\nranks: of the pipeline that it is meant for. contraflow profiles NAME says\n"
          "where one is from, contraflow costs NAME what it has.\n");
  } else {
    Print(FormatTable(table) + "\nsource  " + source + "\n");
  }
  return kExitFine;
}

std::function<int()> AddProfiles(CLI::App* app) {
  const auto options = std::make_shared<ProfilesOptions>();
  app->add_option("NAME", options->name, "describe this one (default: list them all)")
      ->type_name("");
  AddJson(app, &options->json);
  return [options] { return RunProfiles(*options); };
}

}  // namespace

const Command kProfilesCommand = {
    .name = "profiles",
    .summary = "list the cost profiles that ship, or describe one",
    .example = "contraflow profiles llama-3-405b-pp16",
    .add = AddProfiles,
};

}  // namespace contraflow
