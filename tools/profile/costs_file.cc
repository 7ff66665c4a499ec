#include "tools/profile/costs_file.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "compiler/files/cost_fields.h"
#include "compiler/files/cost_io.h"
#include "compiler/files/json.h"
#include "compiler/files/plan_document.h"
#include "compiler/plan/layer_cost.h"
#include "tools/report/text.h"

namespace contraflow {
namespace {

constexpr Unit kUnit = Unit::kMicroseconds;

/// "90.18 GFLOP"
std::string Quantity(double value, const char* noun) {
  constexpr const char* kPrefixes[] = {"", "k", "M", "G", "T", "P", "E"};
  size_t prefix = 0;
  while (value >= 1000 && prefix + 1 < std::size(kPrefixes)) {
    value /= 1000;
    ++prefix;
  }
  char buffer[32];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::general, 4);
  return std::string(buffer, end.ptr) + " " + kPrefixes[prefix] + noun;
}

std::string Count(double whole) { return FormatCount(std::llround(whole)); }

std::string Times(Time f, Time b, Time w) {
  return FormatTime(f, kUnit) + ", " + FormatTime(b, kUnit) + ", " + FormatTime(w, kUnit);
}

/// Source of the efficiencies that nobody chose.
std::string SharesText(const GpuSheet& gpu, bool fp8) {
  const std::string& own = fp8 ? gpu.shares.fp8 : gpu.shares.bf16;
  if (own.empty()) return "";
  return "\n//            (" + own + ": " + gpu.shares.source + ")";
}

/// ", cp 2", or "" where sequences are not split.
/// How fp8 is scaled, unless that is by a factor for each tensor.
std::string RecipeText(const CostSetup& setup) {
  if (!setup.fp8 || setup.recipe == &kFp8Recipes[0]) return "";
  return " (" + std::string(setup.recipe->name) + ": " + std::string(setup.recipe->text) + ")";
}

std::string CpText(const CostSetup& setup) {
  return setup.context_parallel == 1 ? "" : ", cp " + std::to_string(setup.context_parallel);
}

/// "12", or "8 of matrices, 12 of others".
std::string StateText(const OptimizerSheet& optimizer) {
  std::string text = std::to_string(optimizer.of_matrices);
  if (optimizer.of_others == optimizer.of_matrices) return text;
  return text + " of matrices, " + std::to_string(optimizer.of_others) + " of others";
}

std::string Heading(const ModelShape& model, const CostSetup& setup, const ModelCosts& costs) {
  const GpuSheet& gpu = *setup.gpu;
  const ParameterCount whole = ParametersOf(model);
  std::string text =
      "// Costs by layer, on one device for one micro-batch: estimates of `contraflow costs "
      "init`.\n"
      "// Replace them with measured times where there are some.\n"
      "//\n"
      "// model      " +
      model.model_type + ", " + std::to_string(model.layers.size()) + " layers, width " +
      std::to_string(model.hidden) + ", vocabulary " + std::to_string(model.vocabulary) + "; " +
      Count(whole.model) + " parameters";
  if (model.predictions > 0) {
    text += " and " + Count(whole.predictions) + " of prediction modules";
  }
  if (!model.defaults.empty()) {
    text += "\n//            (not in the config.json, defaults of transformers:";
    for (const std::string& taken : model.defaults) {
      text += (&taken == &model.defaults.front() ? " " : ", ") + taken;
    }
    text += ")";
  }
  for (const std::string& note : model.notes) text += "\n//            (" + note + ")";
  if (!model.unread.empty()) text += "\n//            (not in these costs: " + model.unread + ")";
  text +=
      "\n// split      tp " + std::to_string(setup.tensor_parallel) + CpText(setup) + ", ep " +
      std::to_string(setup.expert_parallel) + ", etp " + std::to_string(setup.expert_tensor) +
      ": " + Count(costs.parameters) + " parameters on a device that had all layers" +
      (model.has_experts() && setup.expert_tensor == 1 ? "; each expert is on one device\n" : "\n");
  if (setup.tp_overlap) {
    text += "//            (messages of tp overlap matmuls, all but one part of " +
            std::to_string(setup.tensor_parallel) + ")\n";
  }
  text += "// step       micro-batches of " + std::to_string(setup.micro_batch) + " x " +
          std::to_string(setup.sequence) + " tokens; matmuls in " + (setup.fp8 ? "fp8" : "bf16") +
          RecipeText(setup) + "; tokens spread evenly over experts; nothing recomputed\n";
  text += "// gpu        " + gpu.name + ": bf16 " + Quantity(gpu.bf16, "FLOP/s");
  if (gpu.fp8 > 0) text += ", fp8 " + Quantity(gpu.fp8, "FLOP/s");
  text += ", HBM " + Quantity(gpu.hbm, "B/s") + ", " + gpu.link + " " +
          Quantity(gpu.nvlink, "B/s") + " and network " + Quantity(gpu.network, "B/s") +
          " each way, " + Quantity(static_cast<double>(gpu.memory), "B") + "\n//            (" +
          gpu.source + ")\n// efficiency";
  for (size_t kind = 0; kind < kWorkKinds; ++kind) {
    text += (kind == 0 ? " " : ", ") + std::string(Name(static_cast<WorkKind>(kind))) + " " +
            FormatReal(setup.efficiency[kind]);
  }
  if (setup.efficiency == EfficienciesOf(gpu, setup.fp8)) text += SharesText(gpu, setup.fp8);
  if (!setup.efficiency_note.empty()) text += "\n//            (" + setup.efficiency_note + ")";
  text +=
      "\n// time       of each part the longer of FLOPs / (FLOP/s x efficiency) and bytes / (HBM "
      "B/s x efficiency\n"
      "//            of memory); attention, router and head are in bf16; b and w of a matmul have "
      "the FLOPs of f,\n"
      "//            b of attention 2.5 times those of f; * is bound by memory\n"
      "// bytes      of a parameter: " +
      std::to_string(kParameterBytes) + " (bf16), of its gradient " +
      std::to_string(setup.optimizer->gradient) + ", of its optimizer state " +
      StateText(*setup.optimizer) +
      "\n"
      "//            (" +
      std::string(setup.optimizer->name) + ": " + std::string(setup.optimizer->text) +
      "), not sharded over replicas;\n"
      "//            activations (" +
      std::string(Name(setup.activations)) +
      "): bytes that f keeps for b and w; w_stash: inputs and "
      "output gradients of\n"
      "//            matmuls, kept from the end of b to that of w, at most the activations\n"
      "// update     reduce: a ring of many replicas over " +
      (setup.sums_in_node() ? gpu.link +
                                  ", 2 x gradient bytes / (B/s x efficiency of "
                                  "tensor-parallel), of\n"
                            : "the network, 2 x gradient bytes / (B/s x efficiency of p2p), of\n") +

      "//            which n replicas take (n - 1) / n; step: " +
      std::to_string(setup.optimizer->gradient + 2 * setup.optimizer->of_matrices +
                     kParameterBytes) +
      " bytes a parameter through the HBM" +
      (setup.optimizer->orthogonal ? " and Newton-Schulz iterations" : "") +
      ", 1 / n of\n"
      "//            it with ZeRO; n counts devices with the same parameters, so that of experts "
      "is smaller\n";
  return text;
}

std::string PartsText(const LayerEstimate& layer) {
  Table table;
  table.columns = {"part", "kind", "f, b, w in us", "work"};
  for (size_t i = 0; i < layer.times.size(); ++i) {
    const LayerPart& part = layer.work.parts[i];
    const PartTime& time = layer.times[i];
    std::string work = part.formula;
    if (part.f.flops > 0) work += " = " + Quantity(part.f.flops, "FLOP");
    table.rows.push_back({part.name, std::string(Name(part.kind)) + (part.fp8 ? " fp8" : ""),
                          Times(time.f, time.b, time.w) + (time.memory_bound ? " *" : ""), work});
  }
  return FormatTable(table);
}

std::string ExchangeText(const LayerEstimate& layer, const CostSetup& setup) {
  const bool node = setup.experts_in_node();
  const Time latency = ExchangeLatency(setup);
  const Time compute = layer.f + layer.b + layer.w;
  std::string text = "all-to-all over " + (node ? setup.gpu->link : "the network") + ": " +
                     FormatTime(latency, kUnit) + " us + " + FormatReal(setup.wait) +
                     " of the layer's compute, " + FormatTime(compute, kUnit) +
                     " us, as wait + bytes / (B/s x efficiency)\n";
  const auto line = [&](const char* name, const AllToAll& exchange) {
    text += std::string(name) + exchange.formula + " = " +
            Quantity(node ? exchange.nvlink_bytes : exchange.network_bytes, "B") + ", " +
            FormatTime(TransferTime(exchange, setup), kUnit) + " us\n";
  };
  line("  dispatch_f, combine_b  ", layer.work.dispatch);
  line("  combine_f, dispatch_b  ", layer.work.combine);
  return text;
}

std::string KeptText(const LayerEstimate& layer) {
  std::string text;
  const auto list = [&](KeptUntil until, const char* title) {
    std::string line;
    for (const Kept& kept : layer.work.kept) {
      if (kept.until != until) continue;
      line += (line.empty() ? title : "; ") + kept.name + " " + Quantity(kept.bytes, "B");
    }
    if (!line.empty()) text += line + "\n";
  };
  list(KeptUntil::kB, "kept from f to b: ");
  list(KeptUntil::kW, "kept from f to w: ");
  list(KeptUntil::kFromBToW, "kept from b to w: ");
  return text;
}

/// Which of what a layer keeps from f each of its "values" is.
std::string ValuesText(const LayerEstimate& layer) {
  std::string text = "values: ";
  for (size_t v = 0; v < kValueCount; ++v) {
    std::string parts;
    for (const Kept& kept : layer.work.kept) {
      if (kept.value == static_cast<Value>(v)) parts += (parts.empty() ? "" : " + ") + kept.name;
    }
    if (parts.empty()) continue;
    text += (text.ends_with(": ") ? "" : "; ") + std::string(Name(static_cast<Value>(v))) + " = " +
            parts;
  }
  return text + "\n";
}

/// Each line after "// ".
std::string Commented(const std::string& text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    out += "// " + text.substr(at, end - at) + "\n";
    at = end + 1;
  }
  return out;
}

std::string LayerJson(const LayerEstimate& layer) {
  Json json = Json::object();
  json["name"] = layer.name;
  if (layer.repeat > 1) json["repeat"] = layer.repeat;
  if (!layer.tied.empty()) json["tied"] = layer.tied;
  if (layer.components) {
    Json components = Json::object();
    AddComponents(*layer.components, kUnit, &components);
    json[layer.work.exchanges ? "moe" : "dense"] = std::move(components);
  } else {
    json["f"] = TimeToJson(layer.f, kUnit);
    json["b"] = TimeToJson(layer.b, kUnit);
    json["w"] = TimeToJson(layer.w, kUnit);
  }
  if (layer.parameter_bytes > 0) {
    json["reduce"] = TimeToJson(layer.reduce, kUnit);
    json["step"] = TimeToJson(layer.step, kUnit);
  }
  Json bytes = Json::object();
  bytes["parameter_bytes"] = layer.parameter_bytes;
  if (layer.work.expert_parameters > 0) {
    const auto experts = static_cast<int64_t>(layer.work.expert_parameters * kParameterBytes);
    bytes["parameter_bytes"] = {{"experts", experts}, {"rest", layer.parameter_bytes - experts}};
  }
  bytes["gradient_bytes"] = layer.gradient_bytes;
  bytes["optimizer_bytes"] = layer.optimizer_bytes;
  bytes["activation_bytes"] = layer.activation_bytes;
  bytes["w_stash_bytes"] = layer.w_stash_bytes;
  bytes["output_bytes"] = layer.output_bytes;
  // Times on one line, bytes on another, and those of the parts.
  std::string text, second;
  WriteJson(json, &text);
  WriteJson(bytes, &second);
  text.replace(text.size() - 1, 1, ",\n ");
  if (layer.components) {
    second.replace(second.size() - 1, 1, ",\n \"values\": ");
    WriteJson(ValuesToJson(layer.components->values), &second);
    second += "}";
  }
  return text + second.substr(1);
}

/// The name without the number that tells layers alike apart.
std::string KindOf(const std::string& name) {
  const size_t space = name.rfind(' ');
  const bool number = space != std::string::npos &&
                      name.find_first_not_of("0123456789", space + 1) == std::string::npos;
  return number ? name.substr(0, space) : name;
}

}  // namespace

std::string WriteCostsByLayer(const ModelShape& model, const CostSetup& setup,
                              const ModelCosts& costs) {
  std::string text = Heading(model, setup, costs);
  text += "{\n\"unit\": \"us\",\n\"source\": " +
          QuoteJson("estimated from a config.json of " + model.model_type + " for " +
                    setup.gpu->name + ", tp " + std::to_string(setup.tensor_parallel) +
                    CpText(setup) + ", ep " + std::to_string(setup.expert_parallel) +
                    ", micro-batches of " + std::to_string(setup.micro_batch) + " x " +
                    std::to_string(setup.sequence) + " tokens, " + (setup.fp8 ? "fp8" : "bf16")) +
          ",\n";
  Json made = {{"parallel", ParallelToJson(setup.parallel())},
               {"gpu", {{"name", setup.gpu->name}, {"memory_bytes", setup.gpu->memory}}},
               {"tokens", setup.tokens()},
               {"sums", "ring"}};
  for (const auto& [key, value] : made.items()) {
    text += "\"" + key + "\": ";
    WriteJson(value, &text);
    text += ",\n";
  }
  if (setup.workspace > 0) {
    text += "\"memory\": {\"workspace_bytes\": " + std::to_string(setup.workspace) + "},\n";
  }
  text += "\"layers\": [\n";
  std::vector<std::string> shown;
  for (size_t i = 0; i < costs.layers.size(); ++i) {
    const LayerEstimate& layer = costs.layers[i];
    const std::string kind = KindOf(layer.name);
    if (std::find(shown.begin(), shown.end(), kind) == shown.end()) {
      shown.push_back(kind);
      text += Commented(kind + ": " + Count(layer.work.parameters) + " parameters\n" +
                        PartsText(layer) +
                        (layer.work.exchanges ? ExchangeText(layer, setup) : std::string()) +
                        KeptText(layer) + (layer.components ? ValuesText(layer) : std::string()));
    }
    text += LayerJson(layer) + (i + 1 < costs.layers.size() ? ",\n" : "\n");
  }
  Json comm = Json::object();
  comm["latency"] = TimeToJson(costs.message.latency, kUnit);
  comm["bytes"] = costs.message.bytes;
  comm["bandwidth"] = costs.message.bandwidth;
  text += "],\n// a message between stages, over " +
          (setup.messages_in_node() ? setup.gpu->link : "the network") +
          ": latency + bytes / bandwidth\n\"comm\": ";
  WriteJson(comm, &text);
  return text + "\n}\n";
}

}  // namespace contraflow
