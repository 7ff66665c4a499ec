#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compiler/plan/cost.h"
#include "tools/profile/layer_work.h"

namespace contraflow {

/// Ticks (nanoseconds) of the passes of one part.
struct PartTime {
  Time f = 0, b = 0, w = 0;
  bool memory_bound = false;  ///< a matmul or attention that HBM holds up in some pass
};

/// Costs of one layer, or of several alike that follow each other.
struct LayerEstimate {
  std::string name;
  int64_t repeat = 1;
  Time f = 0, b = 0, w = 0;  ///< of all parts; without all-to-alls
  /// One layer's components, where it has halves; without all-to-alls those of a dense one.
  std::optional<MoeCost> components;
  int64_t parameter_bytes = 0, gradient_bytes = 0, optimizer_bytes = 0;
  int64_t activation_bytes = 0, w_stash_bytes = 0, output_bytes = 0;
  Time reduce = 0, step = 0;  ///< as CostModel::ring has them
  /// Name of a layer whose parameters it needs, and which counts them; "": none.
  std::string tied;

  // Work that it follows from.
  WorkOfLayer work;
  std::vector<PartTime> times;  ///< of its parts
};

/// Cost of a message between stages.
struct MessageCost {
  Time latency = 0;
  int64_t bytes = 0;
  double bandwidth = 0;  ///< bytes per microsecond
};

struct ModelCosts {
  std::vector<LayerEstimate> layers;  ///< in data-flow order
  MessageCost message;
  double parameters = 0;  ///< of one device's share of all layers
};

/// The larger of FLOPs over what the GPU reaches in this kind of work and bytes over what its
/// memory or link does, part by part; each part's time is rounded to a nanosecond, so that sums are
/// exact. Throws Error if the setup does not fit the model (CheckSetup) or a layer has more bytes
/// than a cost file may say.
ModelCosts CostsOf(const ModelShape& model, const CostSetup& setup);

/// Parameters of the whole model: of its prediction modules, and of all else.
struct ParameterCount {
  double model = 0, predictions = 0;
};
ParameterCount ParametersOf(const ModelShape& model);

/// Bytes of each parameter, in the type of the activations.
inline constexpr int64_t kParameterBytes = 2;

/// Before the first byte arrives: within a node, where its GPU does not say, and between nodes.
inline constexpr Time kNodeLatency = 10'000, kNetworkLatency = 30'000;

/// Seconds as ticks.
Time TicksOf(double seconds);
/// Latency of an all-to-all among the experts' devices.
Time ExchangeLatency(const CostSetup& setup);
/// Time of an all-to-all without latency and wait, of the slower link.
Time TransferTime(const AllToAll& exchange, const CostSetup& setup);

}  // namespace contraflow
