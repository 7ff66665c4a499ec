// Limits of costs and contradictions in them: FlawOf as text, Check as an Error.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "compiler/plan/cost.h"
#include "compiler/plan/error.h"
#include "compiler/plan/layer_cost.h"
#include "compiler/plan/plan.h"
#include "compiler/plan/value.h"

namespace contraflow {
namespace {

/// SerialSum of any costs; exact enough for a limit.
double SumOf(const MoeCost& cost) {
  double sum = 0;
  for (const ComponentCost& component : kComponentCosts) {
    const std::vector<Time>& times = cost.*component.times;
    const double repeats = times.size() == 1 ? cost.layers_per_stage : 1;
    for (const Time time : times) sum += static_cast<double>(time) * repeats;
  }
  return sum;
}

/// Throws Error if a list of bytes is not for a plan with this many stages.
void CheckStageBytes(const std::string& memory, const char* key, const std::vector<int64_t>& bytes,
                     int stages) {
  if (bytes.size() <= 1 || bytes.size() == static_cast<size_t>(stages)) return;
  throw Error(memory + key + ": has " + std::to_string(bytes.size()) + " entries, this plan has " +
              std::to_string(stages) +
              " stages; give one number (every stage alike) or one for each stage");
}

void CheckMemory(const MemoryCost& memory, const CostModel& costs, int stages, int microbatches,
                 const std::string& at) {
  for (const StateBytes& state : kStateBytes) {
    CheckStageBytes(at, state.key, memory.*state.of_stages, stages);
  }
  CheckStageBytes(at, "activation_bytes", memory.activation_of, stages);
  CheckStageBytes(at, "w_stash_bytes", memory.stash_of, stages);
  const double chunks = static_cast<double>(stages) * microbatches;
  int64_t most = memory.activation_bytes;
  for (const int64_t bytes : memory.activation_of) most = std::max(most, bytes);
  if (static_cast<double>(most) * chunks > 0x1p62) {
    throw Error(at +
                "activation_bytes: of all cells add up to more than 2^62 bytes; is it in bytes?");
  }
  const double layer = std::accumulate(memory.values.begin(), memory.values.end(), 0.0);
  int layers = costs.moe ? costs.moe->layers_per_stage : 1;
  for (const MoeCost& moe : costs.stage_moe) layers = std::max(layers, moe.layers_per_stage);
  double own = 0;  // of the stage that has most
  for (const MoeCost& moe : costs.stage_moe) {
    double sum = 0;
    for (int l = 0; !moe.values.empty() && l < moe.layers_per_stage; ++l) {
      sum = std::accumulate(moe.ValuesOf(l).begin(), moe.ValuesOf(l).end(), sum);
    }
    own = std::max(own, sum);
  }
  if (std::max(layer * layers, own) * chunks > 0x1p62) {
    throw Error(at + "values: of all cells add up to more than 2^62 bytes; are they in bytes?");
  }
}

}  // namespace

std::string FlawOf(const Parallel& parallel) {
  const int of_matrices = parallel.tp * parallel.cp, of_experts = parallel.ep * parallel.etp;
  if (parallel.devices() % of_matrices == 0 && parallel.devices() % of_experts == 0) return "";
  return "tp x cp is " + std::to_string(of_matrices) + " and ep x etp is " +
         std::to_string(of_experts) + "; one must be a multiple of the other";
}

void CheckHostCost(const CostModel& costs, bool offloads) {
  if (!offloads) return;
  if (!costs.host) {
    throw Error(
        "the plan copies activations to the host (OFFLOAD), and the costs do not say how long that "
        "takes; give \"host\": {\"bandwidth\": ..} or {\"time\": ..}");
  }
  if (costs.host->bandwidth == 0) return;
  if (costs.memory && costs.memory->activation_bytes > 0) return;
  throw Error(
      "\"host\" gives a bandwidth, and the costs do not say how many bytes are copied; give " +
      MemoryKeys(costs, {"activation_bytes"}) + ", or \"host\": {\"time\": ..}");
}

std::string FlawOf(const StageCost& cost, Unit unit) {
  const auto format = [unit](Time time) { return FormatTime(time, unit); };
  const Time part = std::max(cost.b, cost.w);
  if (cost.bw < part) {
    return "\"bw\" is the full backward and cannot be shorter than \"b\" or \"w\": must be >= " +
           format(part) + ", is " + format(cost.bw);
  }
  // Against b and not bw: in a pair W may fill gaps that it does not fill in a lone backward.
  const Time longest = std::max({cost.f, cost.b, cost.w});
  if (cost.fb < longest) {
    return "\"fb\" is a forward and a full backward overlapped and cannot be shorter than \"f\", "
           "\"b\" or \"w\": must be >= " +
           format(longest) + ", is " + format(cost.fb);
  }
  // Derived defaults add up to three costs; the sum has the limit of a single one.
  if (cost.bw > kMaxCost || cost.fb > kMaxCost) {
    return "the costs of one stage add up to more than " + format(kMaxCost) + " " +
           std::string(Name(unit)) + ", the largest cost there is";
  }
  return "";
}

std::string MendNoise(StageCost* cost, Unit unit) {
  std::string assumed;
  const auto mend = [&](const char* key, Time* time, Time least, const char* parts) {
    if (*time >= least || 2 * *time < least) return;
    assumed += (assumed.empty() ? "" : ", and ") + ("\"" + std::string(key)) + "\" is " +
               FormatTime(*time, unit) + ", shorter than " + parts + ", and taken as " +
               FormatTime(least, unit);
    *time = least;
  };
  // Without an overlap fb is a sum, and stays one.
  const bool apart = cost->fb == cost->f + cost->bw;
  mend("bw", &cost->bw, std::max(cost->b, cost->w), "\"b\" or \"w\"");
  if (apart) {
    cost->fb = cost->f + cost->bw;
  } else {
    mend("fb", &cost->fb, std::max({cost->f, cost->b, cost->w}), "\"f\", \"b\" or \"w\"");
  }
  return assumed;
}

std::string FlawOf(const LayerCost& layer, Unit unit) {
  if (layer.w_stash_bytes > layer.activation_bytes) {
    return "\"w_stash_bytes\" is part of \"activation_bytes\" and must be at most " +
           std::to_string(layer.activation_bytes) + ", is " + std::to_string(layer.w_stash_bytes);
  }
  return layer.moe ? FlawOf(*layer.moe, unit) : FlawOf(layer.cost, unit);
}

std::string FlawOf(const MoeCost& cost, Unit unit) {
  if (cost.layers_per_stage < 1 || cost.layers_per_stage > kMaxLayers) {
    return "\"layers_per_stage\" must be in 1.." + std::to_string(kMaxLayers) + ", is " +
           std::to_string(cost.layers_per_stage) +
           (cost.layers_per_stage < 1 ? "; a stage without layers has no components" : "");
  }
  if (!cost.kinds.empty() && cost.kinds.size() != static_cast<size_t>(cost.layers_per_stage)) {
    return "there are " + std::to_string(cost.kinds.size()) + " kinds of layers, of " +
           std::to_string(cost.layers_per_stage) + " layers; give one for each";
  }
  for (const ComponentCost& component : kComponentCosts) {
    const std::vector<Time>& times = cost.*component.times;
    if (times.size() != 1 && times.size() != static_cast<size_t>(cost.layers_per_stage)) {
      return "\"" + std::string(component.key) +
             "\" must be one number or a list with one for each of the " +
             std::to_string(cost.layers_per_stage) + " layers, has " +
             std::to_string(times.size()) + " entries";
    }
    if (*std::min_element(times.begin(), times.end()) < 0) {
      return "\"" + std::string(component.key) + "\" must be >= 0";
    }
    for (int layer = 0; layer < cost.layers_per_stage; ++layer) {
      if (Has(cost.KindOf(layer), component.op) || cost.Of(component.op, layer) == 0) continue;
      return "\"" + std::string(component.key) + "\" must be 0 of layer " + std::to_string(layer) +
             ", which has no such component";
    }
  }
  if (cost.values.size() > 1 && std::cmp_not_equal(cost.values.size(), cost.layers_per_stage)) {
    return "there are \"values\" of " + std::to_string(cost.values.size()) + " layers, of " +
           std::to_string(cost.layers_per_stage);
  }
  // A cost derived from components has the limit of a single cost.
  if (SumOf(cost) > static_cast<double>(kMaxCost)) {
    return "the components of one stage add up to more than " + FormatTime(kMaxCost, unit) + " " +
           std::string(Name(unit)) + ", the largest cost there is";
  }
  return "";
}

void CheckStageCosts(const CostModel& costs) {
  for (size_t s = 0; s < costs.stages.size(); ++s) {
    const std::string flaw = FlawOf(costs.stages[s], costs.unit);
    if (flaw.empty()) continue;
    throw Error("costs of " +
                (costs.stages.size() == 1 ? "every stage" : "stage " + std::to_string(s)) + ": " +
                flaw);
  }
}

void CheckCosts(const CostModel& costs, int stages, int microbatches, std::string_view place) {
  const auto fail = [&](const std::string& text) { throw Error(std::string(place) + text); };
  if (costs.moe) {
    const std::string flaw = FlawOf(*costs.moe, costs.unit);
    if (!flaw.empty()) throw Error("component costs (\"moe\"): " + flaw);
  }
  if (!costs.stage_moe.empty() && costs.stage_moe.size() != static_cast<size_t>(stages)) {
    fail("/moe: lists the components of " + std::to_string(costs.stage_moe.size()) +
         " stages, this plan has " + std::to_string(stages));
  }
  for (size_t s = 0; s < costs.stage_moe.size(); ++s) {
    const std::string flaw = FlawOf(costs.stage_moe[s], costs.unit);
    if (!flaw.empty()) {
      throw Error("component costs of stage " + std::to_string(s) + " (\"moe\"): " + flaw);
    }
  }
  if (costs.stages.empty() && !costs.layers.empty()) {
    throw Error("the costs are by layer, and no stages are made of them; compile a plan with them");
  }
  if (costs.stages.empty()) {
    throw Error(costs.components()
                    ? "the stage costs are not derived from \"moe\" yet (DeriveChunkCosts)"
                    : "the costs have no stages; UniformCosts(f, b, w) makes every stage alike");
  }
  if (!costs.comm.sizes.empty() && costs.comm.sizes.size() + 1 != static_cast<size_t>(stages)) {
    fail("/comm/bytes: lists the messages between " + std::to_string(costs.comm.sizes.size() + 1) +
         " stages, this plan has " + std::to_string(stages));
  }
  if (costs.stages.size() != 1 && costs.stages.size() != static_cast<size_t>(stages)) {
    fail("/stages: lists " + std::to_string(costs.stages.size()) + " stages, this schedule has " +
         std::to_string(stages) + "; give \"stage\" (every stage alike) or \"stages\" with " +
         std::to_string(stages) + " entries, or compile with `partition` even");
  }
  if (costs.shares.size() > 1 && costs.shares.size() != static_cast<size_t>(stages)) {
    fail("/stages: lists the layers of " + std::to_string(costs.shares.size()) +
         " stages, this plan has " + std::to_string(stages));
  }
  for (int s = 0; costs.components() && s < stages; ++s) {
    const size_t listed = costs.SharesOf(s).size();
    if (listed == 0 || std::cmp_equal(listed, costs.LayersIn(s))) continue;
    fail((costs.stages.size() == 1 ? "/stage" : "/stages/" + std::to_string(s)) +
         "/layers: lists " + std::to_string(listed) + " layers, and \"moe\" has components of " +
         std::to_string(costs.LayersIn(s)) + "; give as many, or drop \"layers\"");
  }
  if (!costs.partition.empty() && costs.partition.size() != static_cast<size_t>(stages)) {
    fail("/partition: has " + std::to_string(costs.partition.size()) + " entries, this plan has " +
         std::to_string(stages) + " stages");
  }
  int64_t parts = 0, named = 0;
  for (const int size : costs.partition) parts += size;
  for (const NamedLayers& run : costs.partition_of) named += run.repeat;
  if (named > 0 && named != parts) {
    fail("/partition: is of " + std::to_string(parts) + " layers, \"partition_of\" names " +
         std::to_string(named));
  }
  CheckStageCosts(costs);
  if (!costs.microbatch_scale.empty() &&
      costs.microbatch_scale.size() != static_cast<size_t>(microbatches)) {
    fail("/microbatch_scale: has " + std::to_string(costs.microbatch_scale.size()) +
         " entries, this plan has " + std::to_string(microbatches) +
         (microbatches == 1 ? " micro-batch" : " micro-batches") + "; give one factor for each");
  }
  if (costs.memory) {
    CheckMemory(*costs.memory, costs, stages, microbatches, std::string(place) + "/memory/");
  }
  if (costs.host && costs.host->bandwidth > 0 && costs.memory) {
    const MemoryCost& memory = *costs.memory;
    const double slowest = static_cast<double>(kMaxCost) /
                           static_cast<double>(TicksPerUnit(costs.unit)) * costs.host->bandwidth;
    const auto most = memory.activation_of.empty() ? memory.activation_bytes
                                                   : *std::max_element(memory.activation_of.begin(),
                                                                       memory.activation_of.end());
    if (static_cast<double>(most) > slowest) {
      fail("/host: a copy of \"activation_bytes\" takes longer than " +
           FormatTime(kMaxCost, costs.unit) + " " + std::string(Name(costs.unit)) +
           ", the largest cost there is; is the bandwidth in bytes per " +
           std::string(Name(costs.unit)) + "?");
    }
  }
  // A makespan is at most the sum of everything in it, so with this sum below 2^62 no figure and no
  // difference of two figures can overflow. Double arithmetic is exact enough for a limit.
  // Twice the components: their forward may be run again.
  double per_microbatch = costs.moe ? 2 * stages * SumOf(*costs.moe) : 0;
  for (const MoeCost& moe : costs.stage_moe) per_microbatch += 2 * SumOf(moe);
  for (int s = 0; s < stages; ++s) {
    const StageCost& cost = costs.stage(s);
    per_microbatch += static_cast<double>(cost.f) + static_cast<double>(cost.b) +
                      static_cast<double>(cost.w) + static_cast<double>(cost.bw) +
                      static_cast<double>(cost.fb) + static_cast<double>(cost.reduce) +
                      static_cast<double>(cost.step) + static_cast<double>(cost.recompute()) +
                      2 * static_cast<double>(costs.comm.latency + costs.comm.Largest().occupancy) +
                      2 * static_cast<double>(costs.Duration(CellOp(Op::OFFLOAD, s, -1)));
  }
  double scale = costs.microbatch_scale.empty() ? microbatches : 0;
  for (const double factor : costs.microbatch_scale) scale += std::max(1.0, factor);
  if (per_microbatch * scale > 0x1p62) {
    throw Error("the costs of all " + std::to_string(microbatches) +
                " micro-batches add up to more than fits a 64-bit count of ticks; use a coarser "
                "\"unit\" or smaller costs");
  }
}

}  // namespace contraflow
