#include "tools/contraflow-run/layer_times.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "compiler/files/cost_io.h"
#include "compiler/plan/layer_cost.h"
#include "compiler/plan/text.h"
#include "compiler/plan/value.h"
#include "runtime/core/bytes.h"
#include "runtime/host/run.h"
#include "runtime/model/parameters.h"
#include "runtime/model/views.h"
#include "tools/contraflow-run/calibration.h"
#include "tools/contraflow-run/job.h"
#include "tools/report/text.h"

namespace contraflow {
namespace {

/// The compute that an exchange is counted with, since nothing runs concurrently with it.
Op ComputeOf(Op op) {
  if (op == Op::DISPATCH_F || op == Op::COMBINE_F) return Op::MLP_F;
  if (op == Op::COMBINE_B) return Op::MLP_B;
  return op == Op::DISPATCH_B ? Op::ATTN_B : op;
}

/// The entry of the cost file that a part is in: 0 the embedding, 1 the layers, 2 the head.
size_t EntryOf(const ModelPart& part, const Model& model) {
  return part.layer == ModelPart::kEmbedding ? 0 : part.layer < model.layers ? 1 : 2;
}

/// Times by entry and operation: of all ranks and layers.
std::map<std::pair<size_t, Op>, std::vector<Time>> Pooled(const Model& model,
                                                          const std::vector<RankParts>& parts) {
  std::map<std::pair<size_t, Op>, std::vector<Time>> pooled;
  for (const RankParts& rank : parts) {
    for (const auto& [part, times] : rank.times) {
      std::vector<Time>& all = pooled[{EntryOf(part, model), part.op}];
      all.insert(all.end(), times.begin(), times.end());
    }
  }
  return pooled;
}

/// Parameters of one device: of the embedding, of a layer, and of the head.
std::array<int64_t, 3> ParametersOf(const Model& model, int owned) {
  std::array<int64_t, 3> count{};
  for (const ParameterBlock& block : LayoutOfStage(model, 0, 1, {0, owned}).blocks) {
    if (block.name == "embedding") {
      count[0] += static_cast<int64_t>(block.size);
    } else if (block.layer == 0 || block.layer == model.layers) {
      count[block.layer == 0 ? 1 : 2] += static_cast<int64_t>(block.size);
    }
  }
  return count;
}

/// The time of a whole stage for one of its parameters, over all stages.
double PerParameter(const Plan& plan, const Model& model, int owned, const Calibration& calibration,
                    Op op) {
  double time = 0, parameters = 0;
  for (int s = 0; s < plan.stages; ++s) {
    time += static_cast<double>(calibration.OfStage(op, s));
    parameters += static_cast<double>(LayoutOfStage(model, s, plan.stages, {0, owned}).size);
  }
  return time / parameters;
}

/// Time of the messages of two copies to sum this many bytes of gradients: a half each there, and
/// the sums back.
Time MessagesOfSum(int64_t bytes, const CommCost& comm) {
  const double messages = 2 * static_cast<double>(bytes) / static_cast<double>(comm.bytes);
  return static_cast<Time>(std::llround(messages * static_cast<double>(comm.occupancy)));
}

int64_t Bytes(const ValueBytes& values, Value value) { return values[static_cast<size_t>(value)]; }

/// Counts the bytes that F keeps of a layer, and the part of them that has its like until the end
/// of W: there B's gradients for the weights take the place of what it has freed.
void CountLayer(const ValueBytes& values, LayerCost* layer) {
  for (const Value value : kActivationOfLayer) layer->activation_bytes += Bytes(values, value);
  int64_t stash = 0;
  for (size_t v = 0; v < kValueCount; ++v) {
    const auto value = static_cast<Value>(v);
    if (ArenaOf(value) == Arena::kStash && value != Value::head) stash += values[v];
  }
  layer->w_stash_bytes = std::min(stash, layer->activation_bytes);
}

}  // namespace

std::vector<RankParts> GatherParts(Run& run, Job& job) {
  ByteWriter mine;
  for (const Device& device : run.devices()) {
    const PartTimes* const measured = run.At(device).MeasureParts();
    if (measured == nullptr) continue;
    const auto times = measured->times();
    mine.Put(device.rank).Put(uint64_t{times.size()});
    for (const auto& [part, newest] : times) {
      mine.Put(part).Put(uint64_t{newest.size()});
      for (const Time time : newest) mine.Put(time);
    }
  }
  std::vector<RankParts> gathered;
  for (const std::string& bytes : job.Gather(mine.Take())) {
    ByteReader reader(bytes, "the times of a model's parts are");
    while (!reader.empty()) {
      RankParts rank{.rank = reader.Take<int>(), .times = {}};
      for (size_t part = reader.TakeCount(sizeof(ModelPart)); part > 0; --part) {
        std::vector<Time>& times = rank.times[reader.Take<ModelPart>()];
        for (size_t count = reader.TakeCount(sizeof(Time)); count > 0; --count) {
          times.push_back(reader.Take<Time>());
        }
      }
      gathered.push_back(std::move(rank));
    }
  }
  return gathered;
}

std::vector<double> SpeedsOf(const std::vector<RankParts>& parts, const Model& model, int ranks) {
  std::vector<std::map<Op, std::vector<Time>>> of_rank(static_cast<size_t>(ranks));
  for (const RankParts& device : parts) {
    for (const auto& [part, times] : device.times) {
      if (EntryOf(part, model) != 1) continue;
      std::vector<Time>& all = of_rank[static_cast<size_t>(device.rank)][part.op];
      all.insert(all.end(), times.begin(), times.end());
    }
  }
  std::vector<double> layer;  // time of a rank for one
  for (auto& times_of : of_rank) {
    double sum = 0;
    // A longer time may have waited for a core.
    for (auto& [op, times] : times_of) sum += static_cast<double>(Quantile(std::move(times), 0.25));
    layer.push_back(sum);
  }
  const auto [least, most] = std::minmax_element(layer.begin(), layer.end());
  if (*least <= 0 || *most <= (1 + kUnlikeRanks) * *least) return {};
  std::vector<double> speeds;
  for (const double time : layer) speeds.push_back(std::round(1000 * *least / time) / 1000);
  return speeds;
}

std::vector<RankParts> AtOneSpeed(std::vector<RankParts> parts, const std::vector<double>& speeds) {
  for (RankParts& device : parts) {
    const double speed = speeds[static_cast<size_t>(device.rank)];
    for (auto& [part, times] : device.times) {
      for (Time& time : times) {
        time = static_cast<Time>(std::llround(static_cast<double>(time) * speed));
      }
    }
  }
  return parts;
}

CostModel CostsByLayer(const Plan& plan, const Model& model, const std::vector<RankParts>& parts,
                       const Calibration& calibration) {
  const int owned = model.experts / plan.expert_parallel;
  const LayerShape shape(model, plan.expert_parallel, owned);
  const ValueBytes values = BytesOfValues<float>(shape);
  const auto message = static_cast<int64_t>(shape.activation() * sizeof(float));

  CostModel costs;
  costs.unit = Unit::kMicroseconds;
  costs.comm = calibration.Messages(message);
  costs.comm.reduce_blocks = true;
  std::array<LayerCost, 3> entries;
  entries[0].name = "embedding";
  entries[1].name = "block";
  entries[1].repeat = model.layers;
  entries[2].name = "head";
  MoeCost& moe = entries[1].moe.emplace();
  moe.layers_per_stage = 1;
  for (const ComponentCost& component : kComponentCosts) (moe.*component.times).assign(1, 0);
  for (auto& [part, times] : Pooled(model, parts)) {
    const auto& [entry, op] = part;
    const Time time = MiddleMean(std::move(times));
    StageCost& cost = entries[entry].cost;
    if (entry == 1) {
      for (const ComponentCost& component : kComponentCosts) {
        if (component.op == ComputeOf(op)) (moe.*component.times)[0] += time;
      }
    } else {
      (op == Op::F ? cost.f : op == Op::B ? cost.b : cost.w) += time;
    }
  }
  const std::array<int64_t, 3> parameters = ParametersOf(model, owned);
  const double step = PerParameter(plan, model, owned, calibration, Op::STEP);
  const double reduce = PerParameter(plan, model, owned, calibration, Op::REDUCE);
  for (size_t e = 0; e < entries.size(); ++e) {
    LayerCost& layer = entries[e];
    StageCost& cost = layer.cost;
    if (!layer.moe) {
      cost.bw = cost.b + cost.w;
      cost.fb = cost.f + cost.bw;
    }
    const auto count = static_cast<double>(parameters[e]);
    cost.step = static_cast<Time>(std::llround(step * count));
    cost.reduce = static_cast<Time>(std::llround(reduce * count));
    const auto bytes = static_cast<int64_t>(sizeof(float)) * parameters[e];
    if (reduce == 0 && costs.comm.exclusive()) cost.reduce = MessagesOfSum(bytes, costs.comm);
    layer.parameter_bytes = layer.gradient_bytes = bytes;
    layer.optimizer_bytes = 2 * bytes;
  }
  CountLayer(values, &entries[1]);
  // The embedding's output is the first layer's input, and is counted there.
  entries[2].activation_bytes = entries[2].w_stash_bytes =
      Bytes(values, Value::head) + Bytes(values, Value::output);
  entries[0].output_bytes = entries[1].output_bytes = message;
  costs.layers.assign(entries.begin(), entries.end());
  return costs;
}

std::string WriteLayerTimes(const CostModel& costs, const Model& model,
                            const std::vector<RankParts>& parts, const std::string& source) {
  constexpr const char* kEntries[] = {"embedding", "block", "head"};
  const auto us = [](Time time) {
    return FormatTime((time + 50) / 100 * 100, Unit::kMicroseconds);
  };
  Table table;
  table.columns = {"part", "", ">times", ">lower quartile", ">median", ">upper quartile"};
  for (auto& [part, times] : Pooled(model, parts)) {
    std::sort(times.begin(), times.end());
    const size_t count = times.size();
    table.rows.push_back({kEntries[part.first], std::string(Name(part.second)),
                          FormatCount(static_cast<int64_t>(count)), us(times[count / 4]),
                          us(times[count / 2]), us(times[count - 1 - count / 4])});
  }
  std::string text =
      "Costs by layer, measured by `contraflow-run --calibrate` while all ranks were at work.\n" +
      source +
      "\nEach time is the mean of the middle half of those of all ranks, layers and\n"
      "micro-batches; in us:\n" +
      FormatTable(table) +
      "Exchanges of experts are counted with the next compute, as nothing runs concurrently with\n"
      "them on a CPU. step and reduce are shared out by the parameters; without REDUCE in the\n"
      "plan, reduce is what two copies would send each other.\n";
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    out += "// " + text.substr(at, end - at) + "\n";
    at = end + 1;
  }
  CostModel named = costs;
  named.source = "measured: " + source;
  return out + WriteCosts(named);
}

}  // namespace contraflow
