#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/plan/instruction.h"
#include "compiler/plan/value.h"

namespace contraflow {

/// Time inside is an integer count of ticks, so simulated figures are equal on every machine. A
/// tick is a nanosecond; for the abstract unit "unit" it is a millionth of it.
using Time = int64_t;

/// Unit of a cost file and of every figure printed for it.
enum class Unit : uint8_t { kNanoseconds, kMicroseconds, kMilliseconds, kSeconds, kUnit };

std::string_view Name(Unit unit);  ///< "ns" "us" "ms" "s" "unit"
/// Throws Error with the known names.
Unit ParseUnit(std::string_view name);
/// Ticks in one unit: 1, 1'000, 1'000'000, 1'000'000'000, 1'000'000.
Time TicksPerUnit(Unit unit);
/// Nearest tick. Throws Error if not finite, negative, above kMaxCost, or above 0 and nearest to 0
/// ticks; `place` begins the message.
Time ToTicks(double value, Unit unit, const std::string& place);
/// In the unit, exact for every value ToTicks gives.
double FromTicks(Time ticks, Unit unit);
/// The shortest decimal text of the value in its unit, exact: "18.522", "4169000".
std::string FormatTime(Time ticks, Unit unit);

/// Largest single cost in ticks (13 days in nanoseconds). CheckCosts refuses a plan whose costs
/// could sum to more than 2^62.
inline constexpr Time kMaxCost = Time{1} << 50;

/// Durations of one stage for one micro-batch, in ticks. b is the input gradient only, w the weight
/// gradient only, bw the full backward, fb one forward and one full backward overlapped.
struct StageCost {
  Time f = 0, b = 0, w = 0, bw = 0, fb = 0;
  Time reduce = 0, step = 0;  ///< summing the gradients over the copies; the optimizer step
  Time r = -1;                ///< the forward run again from the stage input; -1: as long as f

  Time recompute() const { return r < 0 ? f : r; }
  bool operator==(const StageCost&) const = default;
};

/// The size of a message: bytes, and for how many ticks it fills its directed edge.
struct MessageSize {
  int64_t bytes = 0;
  Time occupancy = 0;

  bool operator==(const MessageSize&) const = default;
};

/// One message between neighbouring stages on different ranks; times in ticks.
struct CommCost {
  Time latency = 0;      ///< "time", or "latency" with a bandwidth
  int64_t bytes = 0;     ///< of one message, the smallest of `sizes`; used with a bandwidth only
  double bandwidth = 0;  ///< bytes per Unit of the costs; 0: transfers never wait for each other
  Time occupancy = 0;    ///< bytes / bandwidth: how long a message fills its directed edge
  /// A rank computes nothing while it takes part in REDUCE: on a CPU it adds up itself.
  bool reduce_blocks = false;
  /// Sizes of messages between stages s and s + 1, either way; empty where all have `bytes`.
  std::vector<MessageSize> sizes = {};
  /// The queues through which messages pass in time; kEdge and kBuffered are alike. In memory only.
  Semantics queues = Semantics::kEdge;

  /// Sets `bytes`, `occupancy` and, where they differ, `sizes`; one entry for each pair of
  /// neighbours.
  void SetBytes(const std::vector<int64_t>& between, Unit unit);
  MessageSize SizeBetween(int s) const;  ///< of a message between stages s and s + 1
  /// How long a message between stages s and s + 1 takes on a free edge.
  Time HopBetween(int s) const { return latency + SizeBetween(s).occupancy; }
  static int PairOf(const Instruction& message);  ///< that s
  MessageSize SizeOf(const Instruction& message) const;
  MessageSize Largest() const;
  /// With a bandwidth each directed edge carries one message at a time, first in first out.
  bool exclusive() const { return bandwidth > 0; }
  /// A rank has one queue, or one for each other rank: messages wait for those before them.
  bool queued() const { return queues == Semantics::kRank || queues == Semantics::kPair; }
  bool operator==(const CommCost&) const = default;
};

/// The link between a rank and the memory of its host, one in each direction; times in ticks.
struct HostCost {
  Time latency = 0;      ///< "time", or "latency" with a bandwidth
  double bandwidth = 0;  ///< bytes per Unit of the costs; 0: a copy takes the latency alone

  bool operator==(const HostCost&) const = default;
};

/// Bytes of one stage and micro-batch.
struct MemoryCost {
  /// Held from the start of F to the end of B (less the stash); where stages differ, the least.
  int64_t activation_bytes = 0;
  /// The part of those that is held on to the end of W; at most activation_bytes.
  int64_t w_stash_bytes = 0;
  /// Bytes of one copy of a stage: one entry for every stage alike, or one each; empty: not known.
  std::vector<int64_t> parameter_bytes = {}, gradient_bytes = {}, optimizer_bytes = {};
  /// The bytes of the three above that belong to no expert, as many entries; empty: not known.
  std::vector<int64_t> parameter_rest = {}, gradient_rest = {}, optimizer_rest = {};
  /// Bytes of the values of one layer, by Value (compiler/plan/value.h), where components do not
  /// say those of each (MoeCost::values); empty: not known.
  std::vector<int64_t> values = {};
  /// Bytes that a chunk that is recomputed holds from the end of F to the start of R, its stage
  /// input; -1: not given (InputBytes).
  int64_t input_bytes = -1;
  /// How far replicas share what they would hold alike (ZeRO, arXiv 1910.02054, section 5): the
  /// optimizer state from 1 on, the gradients from 2 on, the parameters at 3.
  int zero = 0;
  int64_t workspace_bytes = 0;  ///< uncounted memory of a rank: libraries, fragments
  /// activation_bytes and w_stash_bytes of each stage; empty: every stage alike.
  std::vector<int64_t> activation_of = {}, stash_of = {};

  int64_t activation(int s) const {
    return activation_of.empty() ? activation_bytes : activation_of[static_cast<size_t>(s)];
  }
  int64_t stash(int s) const {
    return stash_of.empty() ? w_stash_bytes : stash_of[static_cast<size_t>(s)];
  }
  /// Bytes that one micro-batch holds on all of this many stages.
  int64_t ActivationOfAll(int stages) const;
  bool operator==(const MemoryCost&) const = default;
};

/// Component costs of a stage, in ticks: of each component one entry a layer in data-flow order, or
/// one for all layers. A component that a layer does not have (Has) takes no time.
struct MoeCost {
  int layers_per_stage = 0;
  std::vector<Time> attn_f, dispatch_f, mlp_f, combine_f;
  std::vector<Time> combine_b, mlp_b, dispatch_b, attn_b, mlp_w, attn_w;
  StageLayers kinds = {};  ///< empty: every layer MoE
  /// Bytes of what each layer holds, one entry a layer, or one for all layers; empty: not known.
  std::vector<ValueBytes> values = {};

  /// Ticks of a component (an op of kComponentCosts) of a layer.
  Time Of(Op op, int layer) const;
  LayerKind KindOf(int layer) const {
    return kinds.empty() ? LayerKind::kMoe : kinds[static_cast<size_t>(layer)];
  }
  /// Values of a layer, where they are known.
  const ValueBytes& ValuesOf(int layer) const {
    return values.size() == 1 ? values[0] : values[static_cast<size_t>(layer)];
  }

  bool operator==(const MoeCost&) const = default;
};

/// The one list of component costs, in the order of one layer forward and backward.
struct ComponentCost {
  const char* key;  ///< in a cost file
  Op op;
  std::vector<Time> MoeCost::*times;
};
inline constexpr std::array<ComponentCost, 10> kComponentCosts = {
    {{"attn_f", Op::ATTN_F, &MoeCost::attn_f},
     {"dispatch_f", Op::DISPATCH_F, &MoeCost::dispatch_f},
     {"mlp_f", Op::MLP_F, &MoeCost::mlp_f},
     {"combine_f", Op::COMBINE_F, &MoeCost::combine_f},
     {"combine_b", Op::COMBINE_B, &MoeCost::combine_b},
     {"mlp_b", Op::MLP_B, &MoeCost::mlp_b},
     {"dispatch_b", Op::DISPATCH_B, &MoeCost::dispatch_b},
     {"attn_b", Op::ATTN_B, &MoeCost::attn_b},
     {"mlp_w", Op::MLP_W, &MoeCost::mlp_w},
     {"attn_w", Op::ATTN_W, &MoeCost::attn_w}}};

/// Ticks of all components of a stage one after the other.
Time SerialSum(const MoeCost& cost);

/// How far chunks of MoE stages overlap. kPublished: the two halves of an F&B pair only, as in the
/// papers; bw = b + w, and a chunk's results leave at its end. kAll: weight gradients run in the
/// all-to-all gaps of their backward, neighbouring chunks share the lanes, and results leave when
/// they are ready.
enum class Overlap : uint8_t { kPublished, kAll };

std::string_view Name(Overlap overlap);  ///< "published" "all"
/// Throws Error with the known names.
Overlap ParseOverlap(std::string_view name);

struct LayerCost;  // compiler/plan/layer_cost.h, for whoever looks into CostModel::layers

/// One rank among unlike ones.
struct RankCost {
  /// Durations of its stages are those of the costs divided by this (OnRanks,
  /// compiler/plan/plan.h).
  double speed = 1;
  std::optional<int64_t> memory_bytes = {};  ///< of its device; nothing: as of every rank

  bool operator==(const RankCost&) const = default;
};

/// How the devices of one rank split a model: matrices and tokens over tp, sequences over cp, the
/// experts of a layer over ep groups, each expert over etp devices.
struct Parallel {
  int tp = 1, cp = 1, ep = 1, etp = 1;

  /// Returns the devices of one rank.
  int devices() const { return std::max(tp * cp, ep * etp); }
  /// Micro-batches that a rank works on at a time.
  int batches() const { return devices() / (tp * cp); }
  bool operator==(const Parallel&) const = default;
};

/// Why they cannot be so, or "".
std::string FlawOf(const Parallel& parallel);

/// Devices that hold the same parameters, those of experts and all others.
struct Copies {
  int64_t experts = 1, rest = 1;
};
/// Returns the copies of one stage, in this many replicas of the pipeline.
Copies CopiesOf(const Parallel& parallel, int data_parallel);

/// The device that the costs are of.
struct GpuCost {
  std::string name;
  std::optional<int64_t> memory_bytes = {};  ///< nothing: not known

  bool operator==(const GpuCost&) const = default;
};

/// Layers of each stage in data-flow order, each at least 1.
using Partition = std::vector<int>;

/// Layers in a row that have one name.
struct NamedLayers {
  std::string name;
  int repeat = 1;

  bool operator==(const NamedLayers&) const = default;
};

/// Shares of one layer of a stage in the time of its forward and in the bytes of its activation.
struct LayerShare {
  int64_t f = 1, activation_bytes = 1;

  bool operator==(const LayerShare&) const = default;
};

/// Leaves one entry of several that are all alike.
template <typename Entry>
void JoinAlike(std::vector<Entry>* entries) {
  const auto same = [&](const Entry& entry) { return entry == entries->front(); };
  if (!entries->empty() && std::ranges::all_of(*entries, same)) entries->resize(1);
}

/// Cost of each instruction: per stage, per micro-batch, per message.
struct CostModel {
  Unit unit = Unit::kUnit;
  std::string source;  ///< where the figures are from
  // How the figures were made; nothing: not known.
  std::optional<Parallel> parallel;
  std::optional<GpuCost> gpu;
  int64_t tokens = 0;  ///< of a micro-batch; 0: not known
  /// `reduce` is of a ring over many replicas, `step` of a device that shares nothing (AtReplicas).
  bool ring = false;
  /// One entry: every stage alike; else one for each stage. Empty in costs that were read from a
  /// file with `moe` alone, until DeriveChunkCosts (compiler/lower/interleave.h) fills it in, and
  /// in costs with `layers`, until a partition (schedules/partition/stages.h) makes stages of them.
  std::vector<StageCost> stages;
  /// The layers of the model in data-flow order, where no stages are made of them yet.
  std::vector<LayerCost> layers;
  Partition partition;  ///< where `stages` was made of layers
  /// The layers that it is a partition of; empty: not known.
  std::vector<NamedLayers> partition_of;
  CommCost comm;
  std::optional<HostCost> host;  ///< nothing: not known, and plans with OFFLOAD have no times
  std::optional<MemoryCost> memory;
  std::optional<MoeCost> moe;  ///< of every stage alike
  /// Layer costs of each stage, where they have unlike layers; then there is no `moe`.
  std::vector<MoeCost> stage_moe;
  /// The layers of each stage, or of every stage alike where there is one entry; empty: as the
  /// components have them, or not known. R of the first layers of a stage goes by these.
  std::vector<std::vector<LayerShare>> shares;
  /// How `stages` was (or, while it is empty, is to be) derived from `moe`; empty where chunk costs
  /// were given as such.
  std::optional<Overlap> derived;
  std::vector<RankCost> ranks;  ///< one each; empty: all alike
  /// Factors of each micro-batch's durations, empty where all are 1.
  std::vector<double> microbatch_scale;

  // Compiled once, in cost.cc: inline they were a twentieth of everything that is compiled.
  CostModel();
  CostModel(const CostModel&);
  CostModel(CostModel&&) noexcept;
  CostModel& operator=(const CostModel&);
  CostModel& operator=(CostModel&&) noexcept;
  ~CostModel();
  bool operator==(const CostModel&) const;

  const StageCost& stage(int s) const {
    return stages.size() == 1 ? stages[0] : stages[static_cast<size_t>(s)];
  }
  /// True if the components of stages are known.
  bool components() const { return moe || !stage_moe.empty(); }
  /// Layer costs of stage s.
  const MoeCost& moe_of(int s) const {
    return stage_moe.empty() ? *moe : stage_moe[static_cast<size_t>(s)];
  }
  /// True if they say what the parts of a layer take and hold.
  bool knows_parts() const;
  /// The shares of the layers of stage s; empty where `shares` is.
  std::span<const LayerShare> SharesOf(int s) const;
  /// How many layers stage s has; 0: not known.
  int LayersIn(int s) const;
  /// True if every stage and every micro-batch costs the same.
  bool uniform() const;
  /// Some micro-batches take longer than others.
  bool unlike_microbatches() const;
  /// Layers of the model, repeats counted.
  int LayerCount() const;
  /// True if a cost file of these has `layers`.
  bool by_layer() const;

  /// Ticks for which its lane is busy with F, B, W, BW, FB, R, REDUCE, STEP, OFFLOAD, RELOAD (which
  /// copy the activation of a cell) or, with `moe` or `stage_moe`, a component. FB of two different
  /// stages: f of the one + bw of the other, less the smaller of the two savings f + bw - fb, so
  /// that equal stages give fb.
  Time Duration(const Instruction& instruction) const;
};

/// Costs from figures in ticks, every stage alike, with the defaults bw = b + w and fb = f + bw.
CostModel UniformCosts(Time f, Time b, Time w, Time comm = 0);

/// Path in a cost file of this form to these bytes of a stage: "memory": {"activation_bytes": ..,
/// "input_bytes": ..} or, by layer, "activation_bytes" and "output_bytes" in "layers".
std::string MemoryKeys(const CostModel& costs, std::initializer_list<std::string_view> keys);

/// Throws Error if a plan that copies to the host's memory (`offloads`) has costs that do not say
/// how long that takes: no `host`, or a bandwidth and no bytes of activations.
void CheckHostCost(const CostModel& costs, bool offloads);

/// Why the durations of one stage contradict each other (a full backward shorter than its parts, a
/// pair shorter than its longer chain, a sum over kMaxCost), or "".
std::string FlawOf(const StageCost& cost, Unit unit);

/// Measured figures are noisy: a full backward shorter than one of its parts, or a pair shorter
/// than a part of it, is made as long as that part. A cost shorter than half of it is no noise and
/// stays as it is. Returns what was assumed, in words, or "".
std::string MendNoise(StageCost* cost, Unit unit);

/// The mean time of a component.
Time TypicalComponent(const CostModel& costs);

/// Why component costs do not hold (no layers, a list of the wrong length, a negative cost, a sum
/// over kMaxCost), or "".
std::string FlawOf(const MoeCost& cost, Unit unit);

/// Throws Error if durations of a stage contradict each other.
void CheckStageCosts(const CostModel& costs);

/// Throws Error if durations contradict each other, or if the costs do not fit a plan of this size:
/// number of stages and micro-batch factors. The latter errors have a JSON path after `place`.
void CheckCosts(const CostModel& costs, int stages, int microbatches,
                std::string_view place = "`costs`: ");

}  // namespace contraflow
