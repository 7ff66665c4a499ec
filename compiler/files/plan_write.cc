#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <vector>

#include "compiler/files/cost_io.h"
#include "compiler/files/plan_document.h"
#include "compiler/files/plan_io.h"
#include "compiler/plan/error.h"

namespace contraflow {
namespace {

/// Collects what is written and hands it on in pieces.
class Pieces {
 public:
  explicit Pieces(const PutBytes& put) : put_(put) {}

  std::string& text() { return text_; }
  /// Hands on what there is, if it is enough for a piece.
  void Spill() {
    constexpr size_t kFlush = size_t{1} << 17;
    if (text_.size() >= kFlush) Finish();
  }
  void Finish() {
    put_(text_);
    text_.clear();
  }

 private:
  const PutBytes& put_;
  std::string text_;
};

void AppendText(const Instruction& instruction, std::string* out) { Append(instruction, out); }
void AppendText(const Slot& slot, std::string* out) { *out += ToString(slot); }
void AppendText(const Mark& mark, std::string* out) { *out += ToString(mark); }

/// Appends a member with a list for each rank, or that of one rank: an entry a line.
template <typename Entry>
void WriteRows(const char* key, const std::vector<std::vector<Entry>>& rows,
               std::optional<int> rank, Pieces* pieces) {
  std::string* const out = &pieces->text();
  const size_t first = rank ? static_cast<size_t>(*rank) : 0;
  const size_t end = rank ? first + 1 : rows.size();
  *out += ",\n" + QuoteJson(key) + ": [\n";
  for (size_t r = first; r < end; ++r) {
    *out += r == first ? "[" : ",\n[";
    const char* separator = "\n\"";
    for (const Entry& entry : rows.at(r)) {
      *out += separator;
      // The text of an instruction, slot or mark has nothing to escape.
      AppendText(entry, out);
      *out += '"';
      separator = ",\n\"";
      pieces->Spill();
    }
    *out += "\n]";
  }
  *out += "\n]";
}

void WriteEntry(const Instruction& instruction, std::string* out) {
  const PackedInstruction packed(instruction);
  BeginCborArray(packed.size, out);
  for (const int64_t number : packed.list()) WriteCborInteger(number, out);
}

void WriteEntry(const Slot& slot, std::string* out) { WriteCborString(ToString(slot), out); }
void WriteEntry(const Mark& mark, std::string* out) { WriteCborString(ToString(mark), out); }

template <typename Entry>
void WriteBinaryRows(const char* key, std::span<const std::vector<Entry>> rows, Pieces* pieces) {
  std::string* const out = &pieces->text();
  WriteCborString(key, out);
  BeginCborArray(rows.size(), out);
  for (const std::vector<Entry>& row : rows) {
    BeginCborArray(row.size(), out);
    for (const Entry& entry : row) {
      WriteEntry(entry, out);
      pieces->Spill();
    }
  }
}

void WriteNames(std::string* out) {
  const std::vector<std::vector<std::string_view>> lists = PackedNames();
  WriteCborString("names", out);
  BeginCborArray(lists.size(), out);
  for (const auto& names : lists) {
    BeginCborArray(names.size(), out);
    for (const std::string_view name : names) WriteCborString(name, out);
  }
}

void WriteText(const Plan& plan, std::optional<int> rank, const PutBytes& put) {
  const Json head = HeadToJson(plan, rank);
  Pieces pieces(put);
  std::string& out = pieces.text();
  out = "{\n";
  for (const auto& [key, value] : head.items()) {
    const bool new_line =
        key == "ranks" || key == "routes" || key == "costs" || key == "provenance";
    if (out.size() > 2) out += new_line ? ",\n" : ", ";
    out += QuoteJson(key) + ": ";
    if (key == "costs") {
      WriteCosts(*plan.costs, &out);
    } else {
      WriteJson(value, &out);
    }
  }
  WriteRows("programs", plan.programs, rank, &pieces);
  if (!plan.slots.empty()) WriteRows("slots", plan.slots, rank, &pieces);
  if (!plan.marks.empty()) WriteRows("marks", plan.marks, rank, &pieces);
  out += "\n}\n";
  pieces.Finish();
}

void WriteBinary(const Plan& plan, const PutBytes& put) {
  WriteBinaryRanks(HeadToJson(plan, std::nullopt), plan, 0, static_cast<int>(plan.programs.size()),
                   put);
}

/// All that `write` puts.
std::string Collect(const std::function<void(const PutBytes& put)>& write) {
  std::string all;
  write([&all](std::string_view piece) { all += piece; });
  return all;
}

bool EndsWith(const std::string& path, std::string_view end) {
  return path.size() >= end.size() && path.compare(path.size() - end.size(), end.size(), end) == 0;
}

}  // namespace

Json ProvenanceToJson(const Provenance& provenance, Unit unit) {
  CF_ASSERT(provenance.seed <= static_cast<uint64_t>(INT64_MAX));
  Json object = Json::object();
  object["placement"] = provenance.placement;
  object["from"] = provenance.from;
  if (provenance.cost_stages) object["cost_stages"] = *provenance.cost_stages;
  if (provenance.memory_limit) object["memory_limit"] = *provenance.memory_limit;
  object["makespan"] = TimeToJson(provenance.makespan, unit);
  object["bound"] = TimeToJson(provenance.bound, unit);
  if (provenance.bound_of_all) {
    object["bound_of_all"] = TimeToJson(*provenance.bound_of_all, unit);
  }
  object["budget_ns"] = provenance.budget;
  object["seed"] = static_cast<int64_t>(provenance.seed);
  if (provenance.noise != 0) object["noise"] = provenance.noise;
  if (provenance.interrupted) object["interrupted"] = true;
  return object;
}

/// Everything but programs, slots and marks, in the order of the file.
Json HeadToJson(const Plan& plan, std::optional<int> rank) {
  Json head = Json::object();
  head["format"] = kPlanFormat;
  head["version"] = kPlanVersion;
  head["schedule"] = plan.schedule;
  head["level"] = Name(plan.level);
  head["ranks"] = plan.ranks;
  if (rank) head["rank"] = *rank;
  head["stages"] = plan.stages;
  head["microbatches"] = plan.microbatches;
  if (plan.data_parallel != 1) head["data_parallel"] = plan.data_parallel;
  if (plan.expert_parallel != 1) head["expert_parallel"] = plan.expert_parallel;
  if (!plan.stage_layers.empty()) {
    Json list = Json::array();
    for (const StageLayers& layers : plan.stage_layers) list.push_back(ToString(layers));
    head["stage_layers"] = std::move(list);
  } else if (plan.layers != 0) {
    head["layers"] = plan.layers;
  }
  if (plan.semantics != Semantics::kRank) head["semantics"] = Name(plan.semantics);
  Json routes = Json::array();
  for (const Route& route : plan.routes) {
    routes.push_back({{"ranks", route.ranks}, {"microbatches", route.microbatches}});
  }
  head["routes"] = std::move(routes);
  if (plan.costs) head["costs"] = CostsToJson(*plan.costs);
  if (plan.provenance) {
    CF_ASSERT(plan.costs);
    head["provenance"] = ProvenanceToJson(*plan.provenance, plan.costs->unit);
  }
  return head;
}

void WriteBinaryRanks(const Json& head, const Plan& plan, int first, int last,
                      const PutBytes& put) {
  Pieces pieces(put);
  std::string* const out = &pieces.text();
  BeginCborMap(head.size() + 2 + (plan.slots.empty() ? 0 : 1) + (plan.marks.empty() ? 0 : 1), out);
  for (const auto& [key, value] : head.items()) {
    WriteCborString(key, out);
    WriteCbor(value, out);
  }
  WriteNames(out);
  const auto from = static_cast<size_t>(first), count = static_cast<size_t>(last - first);
  WriteBinaryRows<Instruction>("programs", std::span(plan.programs).subspan(from, count), &pieces);
  if (!plan.slots.empty()) {
    WriteBinaryRows<Slot>("slots", std::span(plan.slots).subspan(from, count), &pieces);
  }
  if (!plan.marks.empty()) {
    WriteBinaryRows<Mark>("marks", std::span(plan.marks).subspan(from, count), &pieces);
  }
  pieces.Finish();
}

std::string WritePlan(const Plan& plan) {
  return Collect([&](const PutBytes& put) { WriteText(plan, std::nullopt, put); });
}

std::string WriteRankPlan(const Plan& plan, int rank) {
  CF_ASSERT(rank >= 0 && rank < plan.ranks);
  return Collect([&](const PutBytes& put) { WriteText(plan, rank, put); });
}

std::string WritePlanBinary(const Plan& plan) {
  return Collect([&](const PutBytes& put) { WriteBinary(plan, put); });
}

void WritePlanFile(const std::string& path, const Plan& plan) {
  if (EndsWith(path, "/")) return WriteRankFiles(path, plan);
  const bool binary = EndsWith(path, ".cbor");
  WriteFile(path, [&](const PutBytes& put) {
    binary ? WriteBinary(plan, put) : WriteText(plan, std::nullopt, put);
  });
}

}  // namespace contraflow
