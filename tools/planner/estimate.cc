#include "tools/planner/estimate.h"

#include <algorithm>

#include "compiler/files/cost_io.h"
#include "compiler/plan/layer_cost.h"
#include "tools/profile/costs_file.h"
#include "tools/profile/layer_work.h"

namespace contraflow {
namespace {

/// Share of all-to-alls that a searched schedule, or one with F&B pairs, leaves uncovered, and of a
/// pipeline's fill; for the guess alone.
constexpr double kExposed = 0.3, kFill = 0.5;

/// Times of one micro-batch through one layer.
struct LayerTimes {
  Time compute = 0;     ///< of the compute lane
  Time chain = 0;       ///< of forward and input gradient on the compute lane
  Time forward = 0;     ///< of the forward on the compute lane
  Time all_to_all = 0;  ///< of the other lane
};

LayerTimes TimesOf(const LayerCost& layer) {
  if (!layer.moe) {
    const StageCost& cost = layer.cost;
    return {.compute = cost.f + cost.b + cost.w, .chain = cost.f + cost.b, .forward = cost.f};
  }
  const MoeCost& moe = *layer.moe;
  LayerTimes times;
  for (const ComponentCost& component : kComponentCosts) {
    const Time time = moe.Of(component.op, 0);
    const bool weight = component.op == Op::MLP_W || component.op == Op::ATTN_W;
    const bool compute = WorkOf(component.op) != Work::kAllToAll;
    (compute ? times.compute : times.all_to_all) += time;
    if (compute && !weight) times.chain += time;
    if (component.op == Op::MLP_F || component.op == Op::ATTN_F) times.forward += time;
  }
  return times;
}

/// Bytes of the state of a layer on one device.
double StateOf(const LayerCost& layer, const Configuration& configuration, const Copies& copies) {
  double bytes = 0;
  int least_zero = 3;  // parameters, gradients, optimizer state, in the order of kStateBytes
  for (const StateBytes& state : kStateBytes) {
    const auto all = static_cast<double>((layer.*state.of_layer).value_or(0));
    const bool shared = configuration.zero >= least_zero--;
    const double rest = layer.rest_bytes ? static_cast<double>(RestOf(layer, state)) : all;
    bytes += shared ? rest / static_cast<double>(copies.rest) +
                          (all - rest) / static_cast<double>(copies.experts)
                    : all;
  }
  return bytes;
}

/// Time of the gradient sum and the optimizer step of a layer.
double UpdateOf(const LayerCost& layer, const Configuration& configuration, const Copies& copies) {
  const auto all = static_cast<double>(layer.parameter_bytes.value_or(0));
  const double rest =
      layer.rest_bytes && all > 0 ? static_cast<double>(*layer.rest_bytes) / all : 1.0;
  const double share =
      rest / static_cast<double>(copies.rest) + (1 - rest) / static_cast<double>(copies.experts);
  return static_cast<double>(layer.cost.reduce) * (1 - share) +
         static_cast<double>(layer.cost.step) * (configuration.zero > 0 ? share : 1.0);
}

double FlopsOf(const WorkOfLayer& work) {
  double flops = 0;
  for (const LayerPart& part : work.parts) flops += part.f.flops;
  return flops;
}

}  // namespace

bool Estimate::Tight(const Configuration& configuration, int64_t memory, double times) const {
  const double held = times * std::min(configuration.pp, configuration.microbatches);
  return static_cast<double>(fixed) + held * static_cast<double>(one_batch) >
         static_cast<double>(memory);
}

std::string PlannerCosts::TextOf(const Configuration& configuration) const {
  const CostSetup setup = request_.SetupOf(configuration);
  return WriteCostsByLayer(request_.model, setup, CostsOf(request_.model, setup));
}

const CostModel& PlannerCosts::Of(const Configuration& configuration) {
  // The sum over the copies of a stage goes over another link outside a node.
  const bool node = request_.SetupOf(configuration).sums_in_node();
  const std::array<int, 6> key = {configuration.tp,  configuration.cp,          configuration.ep,
                                  configuration.etp, configuration.micro_batch, node ? 1 : 0};
  const auto made = made_.find(key);
  if (made != made_.end()) return made->second;
  return made_.emplace(key, ReadCosts(TextOf(configuration), "costs")).first->second;
}

Estimate PlannerCosts::EstimateOf(const Configuration& configuration) {
  const CostModel& costs = Of(configuration);
  const Copies copies = CopiesOf(configuration.parallel(), configuration.replicas());
  LayerTimes sum;
  Time longest = 0;
  double updates = 0, state = 0, activations = 0, inputs = 0;
  for (const LayerCost& layer : costs.layers) {
    const LayerTimes times = TimesOf(layer);
    sum.compute += times.compute * layer.repeat;
    sum.chain += times.chain * layer.repeat;
    sum.forward += times.forward * layer.repeat;
    sum.all_to_all += times.all_to_all * layer.repeat;
    longest = std::max(longest, times.compute);
    updates += layer.repeat * UpdateOf(layer, configuration, copies);
    state += layer.repeat * StateOf(layer, configuration, copies);
    activations += static_cast<double>(layer.activation_bytes) * layer.repeat;
    inputs +=
        static_cast<double>(std::min(layer.output_bytes, layer.activation_bytes)) * layer.repeat;
  }
  const Time pp = configuration.pp, m = configuration.microbatches;
  // Two routes have each layer on two ranks.
  const Time share = std::max(m * sum.compute / pp, m * longest / 2);
  const auto ranks = static_cast<double>(pp);
  // Share of the layers that run again so that 1F1B fits; more than 1 where it never does.
  const double held = static_cast<double>(std::min(pp, m)) / ranks;
  const double room = static_cast<double>(request_.room()) - state / ranks;
  const double lacks = held * activations - room;
  double again = lacks > 0 ? lacks / std::max(1.0, held * (activations - inputs)) : 0;
  if (again > 0 && request_.recomputes_all()) again = std::max(again, 1.0);
  const auto guess = [&](double exposed) {
    const auto serial = [&](Time compute, Time all_to_all) {
      return static_cast<double>(compute) + exposed * static_cast<double>(all_to_all);
    };
    const double all =
        serial(sum.compute, sum.all_to_all) + again * serial(sum.forward, sum.all_to_all / 2);
    const double busy = std::max(all / ranks, static_cast<double>(longest));
    return static_cast<Time>(busy * (static_cast<double>(m) + kFill * (ranks - 1)) +
                             updates / ranks);
  };
  return {.bound = std::max(share, sum.chain),
          .guess = guess(kExposed),
          .exposed = guess(1),
          .fixed = static_cast<int64_t>(state / ranks),
          .one_batch = static_cast<int64_t>(activations / ranks)};
}

double ModelFlops(const PlanRequest& request) {
  const CostSetup setup = request.SetupOf({});
  const ModelShape& model = request.model;
  double forward = FlopsOf(EmbeddingWork(model, setup)) + FlopsOf(HeadWork(model, setup));
  for (const LayerShape& layer : model.layers) forward += FlopsOf(BlockWork(model, setup, layer));
  for (int64_t i = 0; i < model.predictions; ++i) {
    forward += FlopsOf(PredictionWork(model, setup, i));
  }
  return 3 * forward * request.global_batch;
}

}  // namespace contraflow
