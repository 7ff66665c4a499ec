#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "compiler/files/cost_fields.h"
#include "compiler/files/cost_io.h"
#include "compiler/files/plan_document.h"
#include "compiler/plan/error.h"
#include "compiler/plan/layer_cost.h"
#include "compiler/plan/units.h"
#include "compiler/plan/value.h"

namespace contraflow {
namespace {

Json CommToJson(const CommCost& comm, Unit unit) {
  Json object = Json::object();
  if (comm.bandwidth == 0 && comm.bytes == 0) {
    object["time"] = TimeToJson(comm.latency, unit);
  } else {
    object["latency"] = TimeToJson(comm.latency, unit);
    object["bytes"] = comm.bytes;
    if (!comm.sizes.empty()) {
      object["bytes"] = Json::array();
      for (const MessageSize& size : comm.sizes) object["bytes"].push_back(size.bytes);
    }
    if (comm.bandwidth != 0) object["bandwidth"] = comm.bandwidth;
  }
  if (comm.reduce_blocks) object["reduce_blocks"] = true;
  return object;
}

Json HostToJson(const HostCost& host, Unit unit) {
  if (host.bandwidth == 0) return {{"time", TimeToJson(host.latency, unit)}};
  Json object = Json::object();
  if (host.latency != 0) object["latency"] = TimeToJson(host.latency, unit);
  object["bandwidth"] = host.bandwidth;
  return object;
}

void AddStageBytes(const char* key, const std::vector<int64_t>& bytes, Json* object) {
  if (!bytes.empty()) (*object)[key] = bytes.size() == 1 ? Json(bytes[0]) : Json(bytes);
}

Json MemoryToJson(const MemoryCost& memory, bool of_layers) {
  Json object = Json::object();
  if (!of_layers) object["activation_bytes"] = memory.activation_bytes;
  if (!of_layers) object["w_stash_bytes"] = memory.w_stash_bytes;
  AddStageBytes("activation_bytes", memory.activation_of, &object);
  AddStageBytes("w_stash_bytes", memory.stash_of, &object);
  Json rest = Json::object();
  for (const StateBytes& state : kStateBytes) {
    AddStageBytes(state.key, memory.*state.of_stages, &object);
    AddStageBytes(state.key, memory.*state.rest_of_stages, &rest);
  }
  if (!rest.empty()) object["rest"] = std::move(rest);
  if (!memory.values.empty()) {
    ValueBytes values;
    std::ranges::copy(memory.values, values.begin());
    object["values"] = ValuesToJson({values});
  }
  if (memory.input_bytes >= 0) object["input_bytes"] = memory.input_bytes;
  if (memory.zero != 0) object["zero"] = memory.zero;
  if (memory.workspace_bytes != 0) object["workspace_bytes"] = memory.workspace_bytes;
  return object;
}

/// Adds what is known of its layers to a stage.
void AddShares(std::span<const LayerShare> shares, Unit unit, Json* stage) {
  if (shares.empty()) return;
  const auto is_one = [](int64_t share) { return share == 1; };
  Json lists = Json::object();
  if (!std::ranges::all_of(shares, is_one, &LayerShare::f)) {
    Json& list = lists["f"] = Json::array();
    for (const LayerShare& layer : shares) list.push_back(TimeToJson(layer.f, unit));
  }
  if (!std::ranges::all_of(shares, is_one, &LayerShare::activation_bytes)) {
    Json& list = lists["activation_bytes"] = Json::array();
    for (const LayerShare& layer : shares) list.push_back(layer.activation_bytes);
  }
  (*stage)["layers"] = lists.empty() ? Json(shares.size()) : std::move(lists);
}

}  // namespace

Json TimeToJson(Time ticks, Unit unit) {
  // Largest whole number that readers keep exact, in a double.
  constexpr Time kExact = Time{1} << 53;
  const Time per_unit = TicksPerUnit(unit);
  if (ticks % per_unit == 0 && ticks / per_unit <= kExact) return ticks / per_unit;
  return FromTicks(ticks, unit);
}

Json ParallelToJson(const Parallel& parallel) {
  return {{"tp", parallel.tp}, {"cp", parallel.cp}, {"ep", parallel.ep}, {"etp", parallel.etp}};
}

Json CostsToJson(const CostModel& costs) {
  CF_ASSERT(!costs.stages.empty() || costs.components() || !costs.layers.empty());
  Json object = Json::object();
  object["unit"] = Name(costs.unit);
  if (!costs.source.empty()) object["source"] = costs.source;
  if (costs.parallel) object["parallel"] = ParallelToJson(*costs.parallel);
  if (costs.gpu) {
    object["gpu"] = {{"name", costs.gpu->name}};
    if (costs.gpu->memory_bytes) object["gpu"]["memory_bytes"] = *costs.gpu->memory_bytes;
  }
  if (costs.tokens > 0) object["tokens"] = costs.tokens;
  if (costs.ring) object["sums"] = "ring";
  if (costs.stages.size() == 1) {
    object["stage"] = StageToJson(costs.stages[0], costs.unit);
    AddShares(costs.SharesOf(0), costs.unit, &object["stage"]);
  } else if (!costs.stages.empty()) {
    Json stages = Json::array();
    for (size_t s = 0; s < costs.stages.size(); ++s) {
      stages.push_back(StageToJson(costs.stages[s], costs.unit));
      AddShares(costs.SharesOf(static_cast<int>(s)), costs.unit, &stages.back());
    }
    object["stages"] = std::move(stages);
  }
  if (!costs.layers.empty()) object["layers"] = LayersToJson(costs.layers, costs.unit);
  if (!costs.partition.empty()) object["partition"] = costs.partition;
  if (!costs.partition_of.empty()) {
    Json names = Json::array();
    for (const NamedLayers& run : costs.partition_of) {
      names.push_back(Json::object());
      names.back()["name"] = run.name;
      if (run.repeat > 1) names.back()["repeat"] = run.repeat;
    }
    object["partition_of"] = std::move(names);
  }
  object["comm"] = CommToJson(costs.comm, costs.unit);
  if (costs.host) object["host"] = HostToJson(*costs.host, costs.unit);
  if (costs.moe) {
    object["moe"] = {{"layers_per_stage", costs.moe->layers_per_stage}};
    AddComponents(*costs.moe, costs.unit, &object["moe"]);
  }
  if (!costs.stage_moe.empty()) {
    Json list = Json::array();
    for (const MoeCost& moe : costs.stage_moe) {
      Json stage = Json::object();
      if (moe.kinds.empty()) {
        stage["layers_per_stage"] = moe.layers_per_stage;
      } else {
        stage["layers"] = ToString(moe.kinds);
      }
      AddComponents(moe, costs.unit, &stage);
      if (!moe.values.empty()) stage["values"] = ValuesToJson(moe.values);
      list.push_back(std::move(stage));
    }
    object["moe"] = std::move(list);
  }
  if (costs.derived) object["overlap"] = Name(*costs.derived);
  if (costs.memory) {
    object["memory"] = MemoryToJson(*costs.memory, !costs.layers.empty());
  }
  if (!costs.ranks.empty()) {
    Json ranks = Json::array();
    for (const RankCost& rank : costs.ranks) {
      Json entry = Json::object();
      if (rank.speed != 1) entry["speed"] = rank.speed;
      if (rank.memory_bytes) entry["memory_bytes"] = *rank.memory_bytes;
      ranks.push_back(std::move(entry));
    }
    object["ranks"] = std::move(ranks);
  }
  if (!costs.microbatch_scale.empty()) object["microbatch_scale"] = costs.microbatch_scale;
  return object;
}

void WriteCosts(const CostModel& costs, std::string* out) {
  const Json json = CostsToJson(costs);
  const char* separator = "{\n";
  for (const auto& [key, value] : json.items()) {
    *out += separator + QuoteJson(key) + ": ";
    WriteJson(value, out);
    separator = ",\n";
  }
  *out += "\n}";
}

std::string WriteCosts(const CostModel& costs) {
  std::string out;
  WriteCosts(costs, &out);
  return out + "\n";
}

}  // namespace contraflow
