#include "compiler/plan/provenance.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "compiler/files/json.h"
#include "compiler/plan/error.h"
#include "compiler/plan/plan.h"

namespace contraflow {
namespace {

constexpr size_t kMaxText = 200;
constexpr int64_t kMost = int64_t{1} << 62;

/// Text that goes to a terminal as it stands.
std::string ReadText(const JsonCursor& field, const char* noun) {
  const std::string& text = field.String(noun, kMaxText);
  const auto plain = [](char c) { return c >= ' ' && c <= '~'; };
  if (text.empty() || !std::all_of(text.begin(), text.end(), plain)) {
    field.Fail("must be plain ASCII text and not empty");
  }
  return text;
}

Time ReadTime(const JsonCursor& field, const char* noun, Unit unit) {
  // As long as a plan can take, which is more than a single cost.
  constexpr double kMostTicks = 0x1p62;
  const auto per_unit = static_cast<double>(TicksPerUnit(unit));
  const double ticks = field.Number(noun, 0, kMostTicks / per_unit) * per_unit;
  return static_cast<Time>(std::min(ticks, kMostTicks) + 0.5);
}

/// Whole numbers only where a double holds them, since that is what they are read into.
Json TimeToJson(Time ticks, Unit unit) {
  constexpr Time kExact = Time{1} << 53;
  const Time per_unit = TicksPerUnit(unit);
  if (ticks % per_unit == 0 && ticks / per_unit <= kExact) return {ticks / per_unit};
  return {FromTicks(ticks, unit)};
}

}  // namespace

Provenance ReadProvenance(const JsonCursor& field, Unit unit) {
  field.Keys("an object that says where the plan comes from",
             {"placement", "from", "cost_stages", "memory_limit", "makespan", "bound", "budget_ns",
              "seed", "noise", "interrupted"});
  Provenance provenance;
  provenance.placement = ReadText(field.Required("placement"), "the name of a placement");
  provenance.from = ReadText(field.Required("from"), "what the order was made by");
  if (const auto stages = field.Optional("cost_stages")) {
    provenance.cost_stages = static_cast<int>(stages->Integer("a number of stages", 1, kMaxStages));
  }
  if (const auto limit = field.Optional("memory_limit")) {
    provenance.memory_limit = limit->Integer("bytes or activations", 1, kMost);
  }
  provenance.makespan = ReadTime(field.Required("makespan"), "a makespan", unit);
  provenance.bound = ReadTime(field.Required("bound"), "a bound", unit);
  if (provenance.makespan < provenance.bound) {
    field.Required("makespan").Fail("must be no shorter than \"bound\", which is proven");
  }
  provenance.budget = field.Required("budget_ns").Integer("nanoseconds", 0, INT64_MAX);
  provenance.seed = static_cast<uint64_t>(field.Required("seed").Integer("a seed", 0, INT64_MAX));
  if (const auto noise = field.Optional("noise")) {
    provenance.noise = noise->Number("a relative standard deviation", 0, 1);
  }
  if (const auto interrupted = field.Optional("interrupted")) {
    provenance.interrupted = interrupted->Boolean("true or false");
  }
  return provenance;
}

Json ProvenanceToJson(const Provenance& provenance, Unit unit) {
  CF_ASSERT(provenance.seed <= static_cast<uint64_t>(INT64_MAX));
  auto object = std::make_unique<JsonObject>();
  object->Add("placement", {provenance.placement});
  object->Add("from", {provenance.from});
  if (provenance.cost_stages) object->Add("cost_stages", {int64_t{*provenance.cost_stages}});
  if (provenance.memory_limit) object->Add("memory_limit", {*provenance.memory_limit});
  object->Add("makespan", TimeToJson(provenance.makespan, unit));
  object->Add("bound", TimeToJson(provenance.bound, unit));
  object->Add("budget_ns", {provenance.budget});
  object->Add("seed", {static_cast<int64_t>(provenance.seed)});
  if (provenance.noise != 0) object->Add("noise", {provenance.noise});
  if (provenance.interrupted) object->Add("interrupted", {true});
  return {std::move(object)};
}

}  // namespace contraflow
