#include "compiler/files/cost_fields.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "compiler/files/plan_document.h"
#include "compiler/plan/error.h"
#include "compiler/plan/layer_cost.h"
#include "compiler/plan/plan.h"
#include "compiler/plan/spec.h"
#include "compiler/plan/units.h"

namespace contraflow {

Time ReadTime(const JsonCursor& field, Unit unit) {
  if (field.IsString()) {
    const GivenTime given =
        field.Checked([&] { return ParseGivenTime(field.String("a time", 64)); });
    // A number in quotes is a mistake.
    if (given.unit) return ToTicks(given, unit, field.where());
  }
  const double value = field.Number("a cost (a number >= 0)");
  if (!(value >= 0)) field.Fail("must be a cost (a number >= 0), is " + FormatReal(value));
  return ToTicks(value, unit, field.where());
}

Time ReadTime(const std::optional<JsonCursor>& field, Unit unit, Time absent) {
  return field ? ReadTime(*field, unit) : absent;
}

int64_t ReadBytes(const JsonCursor& field, int64_t least, int64_t most) {
  constexpr const char* kNoun = "a number of bytes";
  const std::string text = field.IsString() ? field.String(kNoun, 64) : "";
  if (!text.ends_with('B')) return field.Integer(kNoun, least, most);
  const int64_t bytes = ParseBytes(text, field.where().c_str());
  if (bytes < least || bytes > most) {
    field.Fail("must be at " +
               (bytes < least ? "least " + std::to_string(least) : "most " + std::to_string(most)) +
               " bytes, is \"" + text + "\"");
  }
  return bytes;
}

namespace {

/// b and w of a stage that has "bw" and not both of them.
void ReadBackward(const JsonCursor& stage, Unit unit, CostMending* mending, StageCost* cost) {
  cost->bw = ReadTime(stage.Required("bw"), unit);
  const std::optional<JsonCursor> b = stage.Optional("b"), w = stage.Optional("w");
  std::string assumed;
  if (!b && !w) {
    assumed = DivideBackward(mending->split, unit, cost);
  } else {
    const Time part = ReadTime(b ? *b : *w, unit);
    if (part > cost->bw) {
      stage.Fail("\"" + std::string(b ? "b" : "w") +
                 "\" is longer than \"bw\", so that nothing is left for \"" + (b ? "w" : "b") +
                 "\"; give that, too");
    }
    cost->b = b ? part : cost->bw - part;
    cost->w = cost->bw - cost->b;
    assumed = "\"" + std::string(b ? "w" : "b") + "\" is what the other part leaves of \"bw\"";
  }
  mending->assumed.push_back(stage.where() + ": " + assumed);
}

}  // namespace

std::string DivideBackward(double split, Unit unit, StageCost* cost) {
  cost->b = static_cast<Time>(std::llround(static_cast<double>(cost->bw) * split));
  cost->w = cost->bw - cost->b;
  return "\"bw\" without \"b\" and \"w\" is divided into " + FormatTime(cost->b, unit) + " and " +
         FormatTime(cost->w, unit) + " (b takes " + FormatReal(split) + " of it)";
}

StageCost ReadStageCost(const JsonCursor& stage, Unit unit, CostMending* mending) {
  StageCost cost;
  cost.f = ReadTime(stage.Required("f"), unit);
  if (mending && stage.Optional("bw") && !(stage.Optional("b") && stage.Optional("w"))) {
    ReadBackward(stage, unit, mending, &cost);
  } else {
    cost.b = ReadTime(stage.Required("b"), unit);
    cost.w = ReadTime(stage.Required("w"), unit);
    cost.bw = ReadTime(stage.Optional("bw"), unit, cost.b + cost.w);
  }
  cost.fb = ReadTime(stage.Optional("fb"), unit, cost.f + cost.bw);
  cost.reduce = ReadTime(stage.Optional("reduce"), unit, 0);
  cost.step = ReadTime(stage.Optional("step"), unit, 0);
  cost.r = ReadTime(stage.Optional("r"), unit, -1);
  if (!mending) return cost;
  const std::string assumed = MendNoise(&cost, unit);
  if (!assumed.empty()) mending->assumed.push_back(stage.where() + ": " + assumed);
  return cost;
}

Json StageToJson(const StageCost& cost, Unit unit) {
  Json object = Json::object();
  object["f"] = TimeToJson(cost.f, unit);
  object["b"] = TimeToJson(cost.b, unit);
  object["w"] = TimeToJson(cost.w, unit);
  object["bw"] = TimeToJson(cost.bw, unit);
  object["fb"] = TimeToJson(cost.fb, unit);
  if (cost.reduce != 0) object["reduce"] = TimeToJson(cost.reduce, unit);
  if (cost.step != 0) object["step"] = TimeToJson(cost.step, unit);
  if (cost.r >= 0) object["r"] = TimeToJson(cost.r, unit);
  return object;
}

StageLayers ReadStageLayers(const JsonCursor& field) {
  const std::string& text = field.String("the layers of a stage, such as \"pdmm\"", kMaxLayers);
  if (text.empty()) field.Fail("must have a letter for each layer, is empty");
  return field.Checked([&] { return ParseStageLayers(text); });
}

MoeCost ReadComponents(const JsonCursor& moe, Unit unit, int layers, const StageLayers& kinds) {
  MoeCost cost;
  cost.layers_per_stage = layers;
  cost.kinds = kinds;
  const auto size = static_cast<size_t>(layers);
  for (const ComponentCost& component : kComponentCosts) {
    const auto has = [&](LayerKind kind) { return Has(kind, component.op); };
    if (!kinds.empty() && !moe.Optional(component.key) && std::ranges::none_of(kinds, has)) {
      (cost.*component.times).assign(size, 0);
      continue;
    }
    const JsonCursor field = moe.Required(component.key);
    std::vector<Time>& times = cost.*component.times;
    if (!field.IsArray()) {
      times.push_back(ReadTime(field, unit));
      continue;
    }
    if (field.Size("") != size) {
      field.Fail("must be one number or a list with one for each of the " + std::to_string(layers) +
                 " layers, has " + std::to_string(field.Size("")) + " entries");
    }
    for (size_t i = 0; i < size; ++i) times.push_back(ReadTime(field.Item(i), unit));
  }
  const std::string flaw = FlawOf(cost, unit);
  if (!flaw.empty()) moe.Fail(flaw);
  return cost;
}

void AddComponents(const MoeCost& moe, Unit unit, Json* object) {
  for (const ComponentCost& component : kComponentCosts) {
    const std::vector<Time>& times = moe.*component.times;
    const auto has = [&](LayerKind kind) { return Has(kind, component.op); };
    if (!moe.kinds.empty() && std::ranges::none_of(moe.kinds, has)) continue;
    if (times.size() == 1) {
      (*object)[component.key] = TimeToJson(times[0], unit);
      continue;
    }
    Json list = Json::array();
    for (const Time time : times) list.push_back(TimeToJson(time, unit));
    (*object)[component.key] = std::move(list);
  }
}

std::vector<ValueBytes> ReadValues(const JsonCursor& values, int layers) {
  std::vector<std::string_view> known;
  for (size_t v = 0; v < kValueCount; ++v) known.push_back(Name(static_cast<Value>(v)));
  values.Keys("an object with the bytes of a layer's values", known);
  std::vector<ValueBytes> bytes(static_cast<size_t>(std::max(layers, 1)));
  for (size_t v = 0; v < kValueCount; ++v) {
    const std::optional<JsonCursor> field = values.Optional(known[v]);
    if (!field) continue;
    const bool list = layers > 0 && field->IsArray();
    if (list && field->Size("") != bytes.size()) {
      field->Fail("must be one number or a list with one for each of the " +
                  std::to_string(layers) + " layers, has " + std::to_string(field->Size("")) +
                  " entries");
    }
    for (size_t l = 0; l < bytes.size(); ++l)
      bytes[l][v] = ReadBytes(list ? field->Item(l) : *field);
  }
  JoinAlike(&bytes);
  return bytes;
}

std::pair<int64_t, int64_t> ActivationOf(std::span<const int64_t> values) {
  int64_t activation = 0, stash = 0;
  for (const Value value : kActivationOfLayer) {
    const int64_t bytes = values[static_cast<size_t>(value)];
    activation += bytes;
    if (ArenaOf(value) == Arena::kStash) stash += bytes;
  }
  return {activation, stash};
}

Json ValuesToJson(const std::vector<ValueBytes>& values) {
  Json object = Json::object();
  for (size_t v = 0; v < kValueCount; ++v) {
    if (std::ranges::all_of(values, [v](const ValueBytes& layer) { return layer[v] == 0; }))
      continue;
    Json& field = object[Name(static_cast<Value>(v))];
    if (values.size() == 1) {
      field = values[0][v];
      continue;
    }
    field = Json::array();
    for (const ValueBytes& layer : values) field.push_back(layer[v]);
  }
  return object;
}

namespace {

/// Adds the bytes that a layer with these values holds, if it does not say that itself.
void AddValues(const JsonCursor& layer, const JsonCursor& field, LayerCost* cost) {
  if (!cost->moe) {
    field.Fail(
        "say what the parts of a layer hold, and this one has none; give \"moe\" or "
        "\"dense\" in place of \"f\", \"b\" and \"w\", or drop them");
  }
  std::vector<std::string_view> parts;
  for (const Value value : kActivationOfLayer) parts.push_back(Name(value));
  field.Keys("an object with the bytes of the parts of an activation", parts);
  cost->moe->values = ReadValues(field);
  const auto [activation, stash] = ActivationOf(cost->moe->values[0]);
  if (activation == 0) field.Fail("says nothing of any part; give one at least, or drop it");
  if (!layer.Optional("activation_bytes")) {
    if (activation > kMaxBytes) {
      field.Fail("the activation of the layer adds up to more than " + std::to_string(kMaxBytes) +
                 " bytes; are they in bytes?");
    }
    cost->activation_bytes = activation;
    if (!layer.Optional("w_stash_bytes")) cost->w_stash_bytes = stash;
  } else if (activation > cost->activation_bytes) {
    field.Fail("are parts of \"activation_bytes\", " + std::to_string(cost->activation_bytes) +
               ", and input, attention, scores, rows, gate, hidden and combined add up to " +
               std::to_string(activation));
  }
}

LayerCost ReadLayer(const JsonCursor& layer, Unit unit, CostMending* mending) {
  layer.Keys("an object, a layer of the model", {"name",
                                                 "repeat",
                                                 "f",
                                                 "b",
                                                 "w",
                                                 "bw",
                                                 "fb",
                                                 "reduce",
                                                 "step",
                                                 "r",
                                                 "moe",
                                                 "dense",
                                                 "parameter_bytes",
                                                 "gradient_bytes",
                                                 "optimizer_bytes",
                                                 "activation_bytes",
                                                 "w_stash_bytes",
                                                 "output_bytes",
                                                 "tied",
                                                 "values"});
  LayerCost cost;
  cost.name = layer.Required("name").String("the name of a layer");
  if (const auto repeat = layer.Optional("repeat")) {
    cost.repeat = static_cast<int>(repeat->Integer("a number of layers", 1, kMaxModelLayers));
  }
  const std::optional<JsonCursor> moe = layer.Optional("moe"), dense = layer.Optional("dense");
  if (moe || dense) {
    const char* const given = moe ? "moe" : "dense";
    if (moe) {
      moe->Keys("an object with the costs of a layer's components",
                {"attn_f", "dispatch_f", "mlp_f", "combine_f", "combine_b", "mlp_b", "dispatch_b",
                 "attn_b", "mlp_w", "attn_w"});
      cost.moe = ReadComponents(*moe, unit, 1, {});
    } else {
      dense->Keys("an object with the costs of a layer's components",
                  {"attn_f", "mlp_f", "mlp_b", "attn_b", "mlp_w", "attn_w"});
      cost.moe = ReadComponents(*dense, unit, 1, {LayerKind::kDense});
    }
    for (const char* key : {"f", "b", "w", "bw", "fb", "r", "dense"}) {
      if (key != std::string_view(given) && layer.Optional(key)) {
        layer.Fail("has \"" + std::string(given) + "\" and \"" + key +
                   "\", which follows from it; keep one of them");
      }
    }
    cost.cost.reduce = ReadTime(layer.Optional("reduce"), unit, 0);
    cost.cost.step = ReadTime(layer.Optional("step"), unit, 0);
  } else {
    cost.cost = ReadStageCost(layer, unit, mending);
  }
  const auto bytes = [&](const char* key) -> std::optional<int64_t> {
    const std::optional<JsonCursor> field = layer.Optional(key);
    return field ? std::optional(ReadBytes(*field)) : std::nullopt;
  };
  if (const auto field = layer.Optional("parameter_bytes"); field && field->IsObject()) {
    field->Keys("a number of bytes, or an object with those of experts and of the rest",
                {"experts", "rest"});
    const auto kind = [&](const char* key) {
      const std::optional<JsonCursor> given = field->Optional(key);
      return given ? ReadBytes(*given) : 0;
    };
    cost.rest_bytes = kind("rest");
    cost.parameter_bytes = kind("experts") + *cost.rest_bytes;
    if (*cost.parameter_bytes > kMaxBytes)
      field->Fail("adds up to more than " + std::to_string(kMaxBytes) +
                  " bytes; are they in bytes?");
  } else {
    cost.parameter_bytes = bytes("parameter_bytes");
  }
  cost.gradient_bytes = bytes("gradient_bytes");
  cost.optimizer_bytes = bytes("optimizer_bytes");
  cost.activation_bytes = bytes("activation_bytes").value_or(0);
  cost.w_stash_bytes = bytes("w_stash_bytes").value_or(0);
  cost.output_bytes = bytes("output_bytes").value_or(0);
  if (const auto values = layer.Optional("values")) AddValues(layer, *values, &cost);
  if (const auto tied = layer.Optional("tied")) {
    cost.tied = tied->String("the name of the layer that has the same parameters");
  }
  const std::string flaw = FlawOf(cost, unit);
  if (!flaw.empty()) layer.Fail(flaw);
  return cost;
}

}  // namespace

std::vector<LayerCost> ReadLayers(const JsonCursor& layers, Unit unit, CostMending* mending) {
  constexpr const char* kNoun = "an array with the layers of the model";
  const size_t size = layers.Size(kNoun);
  std::vector<LayerCost> costs;
  int64_t count = 0;
  for (size_t i = 0; i < size; ++i) {
    costs.push_back(ReadLayer(layers.Item(i), unit, mending));
    count += costs.back().repeat;
  }
  if (count < 1 || count > kMaxModelLayers) {
    layers.Fail("must have 1.." + std::to_string(kMaxModelLayers) + " layers, has " +
                std::to_string(count));
  }
  // If some layers say what their experts hold, the others have no experts.
  const auto knows = [](const LayerCost& layer) { return layer.rest_bytes.has_value(); };
  for (LayerCost& layer : costs) {
    if (std::ranges::none_of(costs, knows)) break;
    if (!layer.rest_bytes) layer.rest_bytes = layer.parameter_bytes.value_or(0);
  }
  const auto silent = [](const LayerCost& layer) { return layer.moe && layer.moe->values.empty(); };
  const auto says = [](const LayerCost& layer) { return layer.moe && !layer.moe->values.empty(); };
  if (const auto at = std::ranges::find_if(costs, silent);
      at != costs.end() && std::ranges::any_of(costs, says)) {
    layers.Item(static_cast<size_t>(at - costs.begin()))
        .Fail(
            "has components and no \"values\", which other layers have; give them of each layer "
            "with components, or of none");
  }
  for (size_t i = 0; i < size; ++i) {
    if (costs[i].tied.empty()) continue;
    const auto same = [&](const LayerCost& other) { return other.name == costs[i].tied; };
    const JsonCursor tied = layers.Item(i).Required("tied");
    if (std::count_if(costs.begin(), costs.end(), same) != 1 || same(costs[i])) {
      tied.Fail("must be the name of one other layer, is \"" + costs[i].tied.substr(0, 64) + "\"");
    }
    if (!std::find_if(costs.begin(), costs.end(), same)->tied.empty()) {
      tied.Fail("must be the name of the layer that lists the parameters, and \"" +
                costs[i].tied.substr(0, 64) + "\" is tied to another");
    }
  }
  return costs;
}

Json LayersToJson(const std::vector<LayerCost>& layers, Unit unit) {
  Json list = Json::array();
  for (const LayerCost& layer : layers) {
    Json object = Json::object();
    object["name"] = layer.name;
    if (layer.repeat != 1) object["repeat"] = layer.repeat;
    if (layer.moe) {
      Json components = Json::object();
      AddComponents(*layer.moe, unit, &components);
      object[layer.moe->KindOf(0) == LayerKind::kDense ? "dense" : "moe"] = std::move(components);
      if (layer.cost.reduce != 0) object["reduce"] = TimeToJson(layer.cost.reduce, unit);
      if (layer.cost.step != 0) object["step"] = TimeToJson(layer.cost.step, unit);
    } else {
      const Json cost = StageToJson(layer.cost, unit);
      for (const auto& [key, value] : cost.items()) object[key] = value;
    }
    const std::pair<const char*, std::optional<int64_t>> known[] = {
        {"parameter_bytes", layer.parameter_bytes},
        {"gradient_bytes", layer.gradient_bytes},
        {"optimizer_bytes", layer.optimizer_bytes}};
    for (const auto& [key, bytes] : known) {
      if (bytes) object[key] = *bytes;
    }
    if (layer.rest_bytes && layer.parameter_bytes) {
      Json& kinds = object["parameter_bytes"] = Json::object();
      if (*layer.parameter_bytes > *layer.rest_bytes)
        kinds["experts"] = *layer.parameter_bytes - *layer.rest_bytes;
      kinds["rest"] = *layer.rest_bytes;
    }
    const std::pair<const char*, int64_t> others[] = {{"activation_bytes", layer.activation_bytes},
                                                      {"w_stash_bytes", layer.w_stash_bytes},
                                                      {"output_bytes", layer.output_bytes}};
    for (const auto& [key, bytes] : others) {
      if (bytes != 0) object[key] = bytes;
    }
    if (layer.moe && !layer.moe->values.empty()) object["values"] = ValuesToJson(layer.moe->values);
    if (!layer.tied.empty()) object["tied"] = layer.tied;
    list.push_back(std::move(object));
  }
  return list;
}

}  // namespace contraflow
