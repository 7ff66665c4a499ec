#include <memory>
#include <optional>
#include <vector>

#include "compiler/cbor.h"
#include "compiler/cost_io.h"
#include "compiler/error.h"
#include "compiler/file.h"
#include "compiler/json.h"
#include "compiler/plan_io.h"

namespace contraflow {
namespace {

Json IntegersToJson(const std::vector<int>& integers) {
  Json::Array list;
  list.reserve(integers.size());
  for (const int integer : integers) list.push_back({int64_t{integer}});
  return {std::move(list)};
}

/// Everything but the programs, in the order of the file.
JsonObject HeadToJson(const Plan& plan, std::optional<int> rank) {
  JsonObject head;
  head.Add("format", {std::string(kPlanFormat)});
  head.Add("version", {int64_t{kPlanVersion}});
  head.Add("schedule", {plan.schedule});
  head.Add("level", {std::string(Name(plan.level))});
  head.Add("ranks", {int64_t{plan.ranks}});
  if (rank) head.Add("rank", {int64_t{*rank}});
  head.Add("stages", {int64_t{plan.stages}});
  head.Add("microbatches", {int64_t{plan.microbatches}});
  if (plan.data_parallel != 1) head.Add("data_parallel", {int64_t{plan.data_parallel}});
  Json::Array routes;
  for (const Route& route : plan.routes) {
    auto object = std::make_unique<JsonObject>();
    object->Add("ranks", IntegersToJson(route.ranks));
    object->Add("microbatches", IntegersToJson(route.microbatches));
    routes.push_back({std::move(object)});
  }
  head.Add("routes", {std::move(routes)});
  if (plan.costs) head.Add("costs", CostsToJson(*plan.costs));
  return head;
}

/// The programs to write: all of them, or the one of a rank.
std::vector<const Program*> Rows(const Plan& plan, std::optional<int> rank) {
  if (rank) return {&plan.programs.at(static_cast<size_t>(*rank))};
  std::vector<const Program*> rows;
  for (const Program& program : plan.programs) rows.push_back(&program);
  return rows;
}

std::string WriteText(const Plan& plan, std::optional<int> rank) {
  const JsonObject head = HeadToJson(plan, rank);
  std::string out = "{\n";
  for (size_t i = 0; i < head.keys.size(); ++i) {
    const std::string& key = head.keys[i];
    const bool new_line = key == "ranks" || key == "routes" || key == "costs";
    if (i > 0) out += new_line ? ",\n" : ", ";
    out += QuoteJson(key) + ": ";
    if (key == "costs") {
      WriteCosts(*plan.costs, &out);
    } else {
      WriteJson(head.values[i], &out);
    }
  }
  out += ",\n\"programs\": [\n";
  bool first_row = true;
  for (const Program* program : Rows(plan, rank)) {
    out += first_row ? "[" : ",\n[";
    first_row = false;
    const char* separator = "\n\"";
    for (const Instruction& instruction : *program) {
      out += separator;
      // An instruction's text has nothing to escape.
      out += ToString(instruction);
      out += '"';
      separator = ",\n\"";
    }
    out += "\n]";
  }
  return out + "\n]\n}\n";
}

}  // namespace

std::string WritePlan(const Plan& plan) { return WriteText(plan, std::nullopt); }

std::string WriteRankPlan(const Plan& plan, int rank) {
  CF_ASSERT(rank >= 0 && rank < plan.ranks);
  return WriteText(plan, rank);
}

std::string WritePlanBinary(const Plan& plan) {
  const JsonObject head = HeadToJson(plan, std::nullopt);
  std::string out;
  BeginCborMap(head.keys.size() + 1, &out);
  for (size_t i = 0; i < head.keys.size(); ++i) {
    WriteCborString(head.keys[i], &out);
    WriteCbor(head.values[i], &out);
  }
  WriteCborString("programs", &out);
  BeginCborArray(plan.programs.size(), &out);
  for (const Program& program : plan.programs) {
    BeginCborArray(program.size(), &out);
    for (const Instruction& instruction : program) WriteCborString(ToString(instruction), &out);
  }
  return out;
}

void WritePlanFile(const std::string& path, const Plan& plan) {
  constexpr std::string_view kBinary = ".cbor";
  const bool binary = path.size() >= kBinary.size() &&
                      path.compare(path.size() - kBinary.size(), kBinary.size(), kBinary) == 0;
  WriteFile(path, binary ? WritePlanBinary(plan) : WritePlan(plan));
}

}  // namespace contraflow
