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

/// Everything but programs and slots, in the order of the file.
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
  if (plan.expert_parallel != 1) head.Add("expert_parallel", {int64_t{plan.expert_parallel}});
  if (plan.layers != 0) head.Add("layers", {int64_t{plan.layers}});
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

/// Appends a member with a list for each rank, or that of one rank: an entry a line.
template <typename Entry>
void WriteRows(const char* key, const std::vector<std::vector<Entry>>& rows,
               std::optional<int> rank, std::string* out) {
  const size_t first = rank ? static_cast<size_t>(*rank) : 0;
  const size_t end = rank ? first + 1 : rows.size();
  *out += ",\n" + QuoteJson(key) + ": [\n";
  for (size_t r = first; r < end; ++r) {
    *out += r == first ? "[" : ",\n[";
    const char* separator = "\n\"";
    for (const Entry& entry : rows.at(r)) {
      *out += separator;
      // The text of an instruction or slot has nothing to escape.
      *out += ToString(entry);
      *out += '"';
      separator = ",\n\"";
    }
    *out += "\n]";
  }
  *out += "\n]";
}

template <typename Entry>
void WriteBinaryRows(const char* key, const std::vector<std::vector<Entry>>& rows,
                     std::string* out) {
  WriteCborString(key, out);
  BeginCborArray(rows.size(), out);
  for (const std::vector<Entry>& row : rows) {
    BeginCborArray(row.size(), out);
    for (const Entry& entry : row) WriteCborString(ToString(entry), out);
  }
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
  WriteRows("programs", plan.programs, rank, &out);
  if (!plan.slots.empty()) WriteRows("slots", plan.slots, rank, &out);
  return out + "\n}\n";
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
  BeginCborMap(head.keys.size() + (plan.slots.empty() ? 1 : 2), &out);
  for (size_t i = 0; i < head.keys.size(); ++i) {
    WriteCborString(head.keys[i], &out);
    WriteCbor(head.values[i], &out);
  }
  WriteBinaryRows("programs", plan.programs, &out);
  if (!plan.slots.empty()) WriteBinaryRows("slots", plan.slots, &out);
  return out;
}

void WritePlanFile(const std::string& path, const Plan& plan) {
  constexpr std::string_view kBinary = ".cbor";
  const bool binary = path.size() >= kBinary.size() &&
                      path.compare(path.size() - kBinary.size(), kBinary.size(), kBinary) == 0;
  WriteFile(path, binary ? WritePlanBinary(plan) : WritePlan(plan));
}

}  // namespace contraflow
