#include <memory>
#include <utility>

#include "compiler/files/cost_io.h"
#include "compiler/plan/error.h"
#include "compiler/plan/value.h"

namespace contraflow {
namespace {

/// A time as it is written: in the unit, whole where it is whole.
Json TimeToJson(Time time, Unit unit) {
  const Time per_unit = TicksPerUnit(unit);
  if (time % per_unit == 0) return {int64_t{time / per_unit}};
  return {FromTicks(time, unit)};
}

Json StageToJson(const StageCost& cost, Unit unit) {
  auto object = std::make_unique<JsonObject>();
  object->Add("f", TimeToJson(cost.f, unit));
  object->Add("b", TimeToJson(cost.b, unit));
  object->Add("w", TimeToJson(cost.w, unit));
  object->Add("bw", TimeToJson(cost.bw, unit));
  object->Add("fb", TimeToJson(cost.fb, unit));
  if (cost.reduce != 0) object->Add("reduce", TimeToJson(cost.reduce, unit));
  if (cost.step != 0) object->Add("step", TimeToJson(cost.step, unit));
  if (cost.r >= 0) object->Add("r", TimeToJson(cost.r, unit));
  return {std::move(object)};
}

Json CommToJson(const CommCost& comm, Unit unit) {
  auto object = std::make_unique<JsonObject>();
  if (comm.bandwidth == 0 && comm.bytes == 0) {
    object->Add("time", TimeToJson(comm.latency, unit));
  } else {
    object->Add("latency", TimeToJson(comm.latency, unit));
    object->Add("bytes", {comm.bytes});
    if (comm.bandwidth != 0) object->Add("bandwidth", {comm.bandwidth});
  }
  return {std::move(object)};
}

void AddStageBytes(const char* key, const std::vector<int64_t>& bytes, JsonObject* object) {
  if (bytes.empty()) return;
  if (bytes.size() == 1) return object->Add(key, {bytes[0]});
  Json::Array list;
  for (const int64_t entry : bytes) list.push_back({entry});
  object->Add(key, {std::move(list)});
}

Json MemoryToJson(const MemoryCost& memory) {
  auto object = std::make_unique<JsonObject>();
  object->Add("activation_bytes", {memory.activation_bytes});
  object->Add("w_stash_bytes", {memory.w_stash_bytes});
  AddStageBytes("parameter_bytes", memory.parameter_bytes, object.get());
  AddStageBytes("gradient_bytes", memory.gradient_bytes, object.get());
  AddStageBytes("optimizer_bytes", memory.optimizer_bytes, object.get());
  if (!memory.values.empty()) {
    auto values = std::make_unique<JsonObject>();
    for (size_t v = 0; v < kValueCount; ++v) {
      if (memory.values[v] == 0) continue;
      values->Add(std::string(Name(static_cast<Value>(v))), {memory.values[v]});
    }
    object->Add("values", {std::move(values)});
  }
  if (memory.input_bytes >= 0) object->Add("input_bytes", {memory.input_bytes});
  return {std::move(object)};
}

Json MoeToJson(const MoeCost& moe, Unit unit) {
  auto object = std::make_unique<JsonObject>();
  object->Add("layers_per_stage", {int64_t{moe.layers_per_stage}});
  for (const ComponentCost& component : kComponentCosts) {
    const std::vector<Time>& times = moe.*component.times;
    if (times.size() == 1) {
      object->Add(component.key, TimeToJson(times[0], unit));
      continue;
    }
    Json::Array list;
    for (const Time time : times) list.push_back(TimeToJson(time, unit));
    object->Add(component.key, {std::move(list)});
  }
  return {std::move(object)};
}

}  // namespace

Json CostsToJson(const CostModel& costs) {
  CF_ASSERT(!costs.stages.empty() || costs.moe);
  auto object = std::make_unique<JsonObject>();
  object->Add("unit", {std::string(Name(costs.unit))});
  if (!costs.source.empty()) object->Add("source", {costs.source});
  if (costs.stages.size() == 1) {
    object->Add("stage", StageToJson(costs.stages[0], costs.unit));
  } else if (!costs.stages.empty()) {
    Json::Array stages;
    for (const StageCost& stage : costs.stages) stages.push_back(StageToJson(stage, costs.unit));
    object->Add("stages", {std::move(stages)});
  }
  object->Add("comm", CommToJson(costs.comm, costs.unit));
  if (costs.moe) object->Add("moe", MoeToJson(*costs.moe, costs.unit));
  if (costs.derived) object->Add("overlap", {std::string(Name(*costs.derived))});
  if (costs.memory) object->Add("memory", MemoryToJson(*costs.memory));
  if (!costs.microbatch_scale.empty()) {
    Json::Array scale;
    for (const double factor : costs.microbatch_scale) scale.push_back({factor});
    object->Add("microbatch_scale", {std::move(scale)});
  }
  return {std::move(object)};
}

void WriteCosts(const CostModel& costs, std::string* out) {
  const Json json = CostsToJson(costs);
  const JsonObject& object = *std::get<std::unique_ptr<JsonObject>>(json.value);
  *out += "{\n";
  for (size_t i = 0; i < object.keys.size(); ++i) {
    if (i > 0) *out += ",\n";
    *out += QuoteJson(object.keys[i]) + ": ";
    WriteJson(object.values[i], out);
  }
  *out += "\n}";
}

std::string WriteCosts(const CostModel& costs) {
  std::string out;
  WriteCosts(costs, &out);
  return out + "\n";
}

}  // namespace contraflow
