#include "tools/profile/layer_costs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "compiler/plan/error.h"
#include "compiler/plan/layer_cost.h"

namespace contraflow {
namespace {

/// Most bytes that the reader of cost files takes.
constexpr double kMaxBytes = 0x1p40;
/// More than an hour; a layer's parts and all-to-alls then add up to less than kMaxCost.
constexpr double kLongestPart = 0x1p42;

int64_t ToBytes(double bytes, const std::string& layer, const char* what) {
  if (!(bytes <= kMaxBytes)) {
    throw Error("layer \"" + layer + "\": more than " +
                std::to_string(static_cast<int64_t>(kMaxBytes)) + " bytes of " + what +
                " on one device; use a smaller `seq` or `micro_batch`, or a larger `tp` or `ep`");
  }
  return static_cast<int64_t>(bytes);
}

/// FLOP/s that a part reaches.
double SpeedOf(const LayerPart& part, const CostSetup& setup) {
  return (part.fp8 ? setup.gpu->fp8 : setup.gpu->bf16) * setup.of(part.kind);
}

/// Bytes/s of the sum over copies of a stage.
double SumSpeed(const CostSetup& setup) {
  return setup.sums_in_node() ? setup.gpu->nvlink * setup.of(WorkKind::kTensorParallel)
                              : setup.gpu->network * setup.of(WorkKind::kP2p);
}

/// Latency of this many collectives in a node.
Time NodeLatency(const GpuSheet& gpu, int64_t devices, double times) {
  if (gpu.collective == 0) return kNodeLatency;
  return TicksOf(times * (gpu.collective + gpu.hop * static_cast<double>(devices - 1)));
}

/// Time of the messages of context parallelism, which run concurrently with attention.
Time RingTime(const PassWork& work, const CostSetup& setup) {
  if (work.ring == 0) return 0;
  const bool node = setup.sequence_in_node();
  const double link = node ? setup.gpu->nvlink : setup.gpu->network;
  const Time latency = (setup.context_parallel - 1) * (node ? kNodeLatency : kNetworkLatency);
  return latency + TicksOf(work.ring / (link * setup.of(WorkKind::kP2p)));
}

PartTime TimeOf(const LayerPart& part, const CostSetup& setup) {
  PartTime time;
  const auto pass = [&](const PassWork& work) {
    if (part.kind == WorkKind::kTensorParallel) {
      const bool node = setup.tensor_parallel <= setup.gpu->node;
      const double link = node ? setup.gpu->nvlink : setup.gpu->network;
      if (work.bytes == 0) return Time{0};
      const Time latency =
          node ? NodeLatency(*setup.gpu, setup.tensor_parallel, work.times) : kNetworkLatency;
      const double shown = setup.tp_overlap ? 1 / static_cast<double>(setup.tensor_parallel) : 1;
      return latency + TicksOf(shown * work.bytes / (link * setup.of(part.kind)));
    }
    const Time bytes = TicksOf(work.bytes / (setup.gpu->hbm * setup.of(WorkKind::kMemory)));
    if (work.flops == 0) return bytes;
    const Time flops = TicksOf(work.flops / SpeedOf(part, setup));
    if (bytes > flops) time.memory_bound = true;
    return std::max({flops, bytes, RingTime(work, setup)});
  };
  time.f = pass(part.f);
  time.b = pass(part.b);
  time.w = pass(part.w);
  return time;
}

MoeCost ComponentsOf(const LayerEstimate& layer, const CostSetup& setup) {
  Time attn[3] = {}, mlp[3] = {};
  for (size_t i = 0; i < layer.times.size(); ++i) {
    Time* const half = layer.work.parts[i].mlp ? mlp : attn;
    half[0] += layer.times[i].f;
    half[1] += layer.times[i].b;
    half[2] += layer.times[i].w;
  }
  Time dispatch = 0, combine = 0;
  if (layer.work.exchanges) {
    const auto compute = static_cast<double>(layer.f + layer.b + layer.w);
    const Time wait = std::llround(compute * setup.wait) + ExchangeLatency(setup);
    dispatch = wait + TransferTime(layer.work.dispatch, setup);
    combine = wait + TransferTime(layer.work.combine, setup);
  }
  MoeCost cost = {.layers_per_stage = 1,
                  .attn_f = {attn[0]},
                  .dispatch_f = {dispatch},
                  .mlp_f = {mlp[0]},
                  .combine_f = {combine},
                  .combine_b = {dispatch},
                  .mlp_b = {mlp[1]},
                  .dispatch_b = {combine},
                  .attn_b = {attn[1]},
                  .mlp_w = {mlp[2]},
                  .attn_w = {attn[2]}};
  if (!layer.work.exchanges) cost.kinds = {LayerKind::kDense};
  return cost;
}

LayerEstimate CostOf(std::string name, WorkOfLayer work, const CostSetup& setup) {
  LayerEstimate cost;
  cost.name = std::move(name);
  cost.work = std::move(work);
  for (const LayerPart& part : cost.work.parts) {
    const PartTime time = TimeOf(part, setup);
    cost.f += time.f;
    cost.b += time.b;
    cost.w += time.w;
    cost.times.push_back(time);
  }
  double activation = 0, stash = 0;
  std::array<double, kValueCount> values = {};
  for (const Kept& kept : cost.work.kept) {
    if (kept.until != KeptUntil::kFromBToW) activation += kept.bytes;
    if (kept.until != KeptUntil::kB) stash += kept.bytes;
    if (kept.value) values[static_cast<size_t>(*kept.value)] += kept.bytes;
  }
  const auto bytes = [&](double each, const char* what) { return ToBytes(each, cost.name, what); };
  const double parameters = cost.work.parameters, matrices = cost.work.matrix_parameters;
  const OptimizerSheet& optimizer = *setup.optimizer;
  const double gradients = parameters * static_cast<double>(optimizer.gradient);
  const double states = matrices * static_cast<double>(optimizer.of_matrices) +
                        (parameters - matrices) * static_cast<double>(optimizer.of_others);
  cost.parameter_bytes = bytes(parameters * kParameterBytes, "parameters");
  cost.gradient_bytes = bytes(gradients, "gradients");
  cost.optimizer_bytes = bytes(states, "optimizer state");
  // Twice: the sums to one of the ring each, and from there to all.
  cost.reduce = TicksOf(2 * gradients / SumSpeed(setup));
  // Gradients and state are read, state and parameters are written.
  cost.step = TicksOf((gradients + 2 * states + parameters * kParameterBytes) /
                      (setup.gpu->hbm * setup.of(WorkKind::kMemory)));
  if (optimizer.orthogonal) {
    cost.step +=
        TicksOf(cost.work.orthogonal_flops / (setup.gpu->bf16 * setup.of(WorkKind::kMatmul)));
  }
  cost.activation_bytes = bytes(activation, "activations");
  cost.w_stash_bytes = bytes(std::min(stash, activation), "weight stash");
  if (cost.work.halves) {
    cost.components = ComponentsOf(cost, setup);
    ValueBytes& of_values = cost.components->values.emplace_back();
    for (size_t v = 0; v < kValueCount; ++v) of_values[v] = static_cast<int64_t>(values[v]);
  }
  cost.output_bytes = bytes(cost.work.output_bytes, "messages");
  return cost;
}

/// "moe sliding": its MLP, and its mixer where others of the model differ in that.
std::string KindOf(const LayerShape& layer, const ModelShape& model) {
  const auto differs = [&](auto of) {
    return std::any_of(model.layers.begin(), model.layers.end(),
                       [&](const LayerShape& other) { return of(other) != of(layer); });
  };
  const AttentionDims& a = layer.attention;
  std::string name = layer.moe.experts > 0 ? "moe" : layer.dense_width > 0 ? "dense" : "";
  const auto add = [&](const char* word) { name += (name.empty() ? "" : " ") + std::string(word); };
  const bool unlike = differs([](const LayerShape& other) { return other.linear.heads > 0; }) ||
                      differs([](const LayerShape& other) { return other.mixes(); });
  if (layer.linear.heads > 0 && (unlike || name.empty())) {
    constexpr const char* kNames[] = {"mamba", "mamba", "linear", "linear", "conv"};
    add(kNames[static_cast<size_t>(layer.linear.kind)]);
  }
  if (a.heads == 0) return name;
  const auto span = [](const LayerShape& other) {
    return std::pair(other.attention.window, other.attention.chunk);
  };
  const bool spans =
      std::any_of(model.layers.begin(), model.layers.end(), [&](const LayerShape& other) {
        return other.attention.heads > 0 && span(other) != span(layer);
      });
  if (a.out_groups > 0) {
    add(a.compress == 0 ? "window" : a.indexer.heads > 0 ? "sparse" : "compressed");
  } else if (spans) {
    add(a.chunk > 0 ? "chunked" : a.latents() ? "shared" : a.window > 0 ? "sliding" : "full");
  } else if (unlike || name.empty()) {
    add("attention");
  }
  if (a.borrows) add("borrowed");
  return name;
}

}  // namespace

Time TicksOf(double seconds) {
  const double ticks = seconds * 1e9;
  if (!(ticks <= kLongestPart)) {
    throw Error(
        "a part of a layer would take more than an hour; use a smaller `seq` or `micro_batch`, or "
        "higher efficiencies");
  }
  return std::llround(ticks);
}

Time ExchangeLatency(const CostSetup& setup) {
  const int64_t devices = setup.expert_parallel * setup.expert_tensor;
  return setup.experts_in_node() ? NodeLatency(*setup.gpu, devices, 1) : kNetworkLatency;
}

Time TransferTime(const AllToAll& exchange, const CostSetup& setup) {
  const double share = setup.of(WorkKind::kAllToAll);
  return std::max(TicksOf(exchange.network_bytes / (setup.gpu->network * share)),
                  TicksOf(exchange.nvlink_bytes / (setup.gpu->nvlink * share)));
}

namespace {

/// Adds the all-to-alls of a layer to its f and b.
void WaitForEach(LayerEstimate* layer) {
  if (!layer->components) return;
  for (const ComponentCost& component : kComponentCosts) {
    if (WorkOf(component.op) != Work::kAllToAll) continue;
    const bool forward = component.op == Op::DISPATCH_F || component.op == Op::COMBINE_F;
    (forward ? layer->f : layer->b) += layer->components->Of(component.op, 0);
  }
  layer->components.reset();
}

}  // namespace

ModelCosts CostsOf(const ModelShape& model, const CostSetup& setup) {
  CheckSetup(setup, model);
  ModelCosts costs;
  std::vector<LayerEstimate>& layers = costs.layers;
  layers.push_back(CostOf("embedding", EmbeddingWork(model, setup), setup));
  if (model.tied) layers.back().tied = "head";
  std::vector<std::string> kinds;
  for (const LayerShape& layer : model.layers) kinds.push_back(KindOf(layer, model));
  for (size_t i = 0, end = 0; i < model.layers.size(); i = end) {
    const LayerShape& layer = model.layers[i];
    while (end < model.layers.size() && model.layers[end] == layer) ++end;
    std::string name = kinds[i];
    // A repeated kind has the number of its first layer in its name.
    if (std::ranges::count(kinds, name) > static_cast<ptrdiff_t>(end - i)) {
      name += " " + std::to_string(i);
    }
    layers.push_back(CostOf(std::move(name), BlockWork(model, setup, layer), setup));
    layers.back().repeat = static_cast<int64_t>(end - i);
  }
  for (int64_t i = 0; i < model.predictions; ++i) {
    std::string name = "mtp";
    if (model.predictions > 1) name += " " + std::to_string(i);
    layers.push_back(CostOf(std::move(name), PredictionWork(model, setup, i), setup));
    layers.back().tied = model.tied ? "head" : "embedding";
  }
  layers.push_back(CostOf("head", HeadWork(model, setup), setup));
  if (!setup.components) std::ranges::for_each(layers, [](auto& layer) { WaitForEach(&layer); });
  for (const LayerEstimate& layer : layers) {
    costs.parameters += layer.work.parameters * static_cast<double>(layer.repeat);
  }
  const bool node = setup.messages_in_node();
  const double link = node ? setup.gpu->nvlink : setup.gpu->network;
  costs.message = {.latency = node ? kNodeLatency : kNetworkLatency,
                   .bytes = layers[1].output_bytes,
                   .bandwidth = link * setup.of(WorkKind::kP2p) / 1e6};
  return costs;
}

ParameterCount ParametersOf(const ModelShape& model) {
  CostSetup one;
  one.sequence = 1;
  ParameterCount count;
  count.model = EmbeddingWork(model, one).parameters + HeadWork(model, one).parameters;
  for (const LayerShape& layer : model.layers) {
    count.model += BlockWork(model, one, layer).parameters;
  }
  for (int64_t i = 0; i < model.predictions; ++i) {
    count.predictions += PredictionWork(model, one, i).parameters;
  }
  return count;
}

}  // namespace contraflow
