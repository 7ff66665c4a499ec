#include "compiler/files/cost_io.h"

#include <algorithm>
#include <utility>

#include "compiler/files/cost_fields.h"
#include "compiler/files/file.h"
#include "compiler/files/plan_document.h"
#include "compiler/plan/error.h"
#include "compiler/plan/layer_cost.h"
#include "compiler/plan/plan.h"
#include "compiler/plan/units.h"

namespace contraflow {
namespace {

/// Room for kMaxStages stages and kMaxMicrobatches factors.
constexpr JsonLimits kLimits = {
    .bytes = size_t{64} << 20, .values = size_t{1} << 22, .comments = true};

constexpr double kMaxBandwidth = 1e18;
constexpr int64_t kMaxDevice = int64_t{1} << 50;
/// Factors beyond a million either way are a mistake of units.
constexpr double kMaxScale = 1e6;

/// Returns the result of `read` for each entry of an array of 1..most.
template <typename Read>
auto ReadList(const JsonCursor& list, const char* noun, int most, Read read) {
  const size_t size = list.Size(noun);
  if (size < 1 || std::cmp_greater(size, most)) {
    list.Fail("must have 1.." + std::to_string(most) + " entries, has " + std::to_string(size));
  }
  std::vector<decltype(read(list))> entries;
  for (size_t i = 0; i < size; ++i) entries.push_back(read(list.Item(i)));
  return entries;
}

StageCost ReadStage(const JsonCursor& stage, Unit unit, CostMending* mending) {
  stage.Keys("an object with the costs of a stage",
             {"f", "b", "w", "bw", "fb", "reduce", "step", "r", "layers"});
  const StageCost cost = ReadStageCost(stage, unit, mending);
  const std::string flaw = FlawOf(cost, unit);
  if (!flaw.empty()) stage.Fail(flaw);
  return cost;
}

/// The layers of a stage: how many alike ones, or of each what its forward takes and what it holds.
std::vector<LayerShare> ReadLayerShares(const JsonCursor& layers, Unit unit) {
  if (!layers.IsObject()) {
    const int64_t count = layers.Integer(
        "an object with lists of what each layer has, or a number of layers", 1, kMaxModelLayers);
    return std::vector<LayerShare>(static_cast<size_t>(count));
  }
  layers.Keys("an object with lists of what each layer has, or a number of layers",
              {"f", "activation_bytes"});
  std::vector<LayerShare> shares;
  const auto read = [&](const char* key, int64_t LayerShare::*share, auto value) {
    const std::optional<JsonCursor> list = layers.Optional(key);
    if (!list) return;
    const std::vector<int64_t> values =
        ReadList(*list, "an array with one entry for each layer", kMaxModelLayers, value);
    if (!shares.empty() && shares.size() != values.size()) {
      layers.Fail("\"f\" is of " + std::to_string(shares.size()) +
                  " layers and \"activation_bytes\" of " + std::to_string(values.size()) +
                  "; give one entry of both for each layer");
    }
    shares.resize(values.size());
    for (size_t l = 0; l < values.size(); ++l) shares[l].*share = values[l];
  };
  read("f", &LayerShare::f, [&](const JsonCursor& time) { return ReadTime(time, unit); });
  read("activation_bytes", &LayerShare::activation_bytes,
       [](const JsonCursor& bytes) { return ReadBytes(bytes); });
  if (shares.empty()) layers.Fail("give \"f\" or \"activation_bytes\", or a number of layers");
  return shares;
}

/// Layer shares of each stage, or of all alike; empty where no stage says its layers.
std::vector<std::vector<LayerShare>> ReadShares(const JsonCursor& root, Unit unit) {
  std::vector<std::vector<LayerShare>> shares;
  if (const auto alike = root.Optional("stage")) {
    if (const auto layers = alike->Optional("layers")) {
      shares.push_back(ReadLayerShares(*layers, unit));
    }
    return shares;
  }
  const std::optional<JsonCursor> stages = root.Optional("stages");
  if (!stages) return shares;
  const size_t count = stages->Size("an array with one entry for each stage");
  for (size_t s = 0; s < count; ++s) {
    const JsonCursor stage = stages->Item(s);
    const std::optional<JsonCursor> layers = stage.Optional("layers");
    if (shares.size() != (layers ? s : 0)) {
      stages->Fail("some say their \"layers\" and some do not; give them of each stage or of none");
    }
    if (layers) shares.push_back(ReadLayerShares(*layers, unit));
  }
  JoinAlike(&shares);
  return shares;
}

/// Reads the stage costs. Empty if there are none and components may give them.
std::vector<StageCost> ReadStages(const JsonCursor& root, Unit unit, bool may_derive,
                                  CostMending* mending) {
  const std::optional<JsonCursor> alike = root.Optional("stage");
  const std::optional<JsonCursor> list = root.Optional("stages");
  if (root.Optional("layers")) {
    if (!may_derive) {
      root.Fail("has \"layers\"; a plan keeps the costs of the stages that were made of them");
    }
    for (const char* key : {"stage", "stages", "moe", "overlap", "partition", "partition_of"}) {
      if (!root.Optional(key)) continue;
      root.Fail("has \"layers\", which stages are made of, and \"" + std::string(key) +
                "\", which is about stages; keep one");
    }
    return {};
  }
  if (alike && list) {
    root.Fail("has both \"stage\" (every stage alike) and \"stages\" (one each); keep one");
  }
  if (alike) return {ReadStage(*alike, unit, mending)};
  if (!list) {
    if (root.Optional("moe") && may_derive) return {};
    root.Fail(
        root.Optional("moe")
            ? "has \"moe\" and no stage costs; a plan keeps the stage costs it was made with: "
              "give \"stage\": {\"f\": .., \"b\": .., \"w\": ..} as well"
            : "has no stage costs; give \"stage\": {\"f\": .., \"b\": .., \"w\": ..} (every "
              "stage alike), \"stages\" with one such entry for each stage, \"layers\", or "
              "\"moe\"");
  }
  constexpr const char* kNoun = "an array with one entry for each stage";
  if (list->Size(kNoun) == 1) {
    list->Fail(
        "has one entry; give \"stage\", which is for every stage alike, or one for each stage");
  }
  return ReadList(*list, kNoun, kMaxStages,
                  [&](const JsonCursor& stage) { return ReadStage(stage, unit, mending); });
}

double ReadBandwidth(const JsonCursor& field, Unit unit) {
  constexpr const char* kNoun = "a bandwidth (bytes per unit) above 0 and up to 1e18";
  const double bandwidth =
      field.IsString()
          ? field.Checked([&] { return ParseBandwidth(field.String(kNoun, 64), unit); })
          : field.Number(kNoun);
  if (!(bandwidth > 0) || bandwidth > kMaxBandwidth) {
    field.Fail(std::string("must be ") + kNoun + ", is " + FormatReal(bandwidth));
  }
  return bandwidth;
}

HostCost ReadHost(const JsonCursor& host, Unit unit) {
  host.Keys("an object with the costs of the link to the host", {"time", "latency", "bandwidth"});
  const std::optional<JsonCursor> time = host.Optional("time");
  const std::optional<JsonCursor> latency = host.Optional("latency");
  const std::optional<JsonCursor> bandwidth = host.Optional("bandwidth");
  if (time && (latency || bandwidth)) {
    host.Fail(
        "\"time\" is the whole cost of a copy; give either it or \"latency\" and "
        "\"bandwidth\"");
  }
  if (!time && !bandwidth) host.Fail("give \"time\", or \"bandwidth\" (bytes per unit)");
  HostCost cost;
  cost.latency = ReadTime(time ? time : latency, unit, 0);
  if (bandwidth) cost.bandwidth = ReadBandwidth(*bandwidth, unit);
  return cost;
}

CommCost ReadComm(const JsonCursor& comm, Unit unit) {
  comm.Keys("an object with the costs of a message",
            {"time", "latency", "bytes", "bandwidth", "reduce_blocks"});
  const std::optional<JsonCursor> time = comm.Optional("time");
  const std::optional<JsonCursor> latency = comm.Optional("latency");
  const std::optional<JsonCursor> bytes = comm.Optional("bytes");
  const std::optional<JsonCursor> bandwidth = comm.Optional("bandwidth");
  if (time && (latency || bytes || bandwidth)) {
    comm.Fail(
        "\"time\" is the whole cost of a message; give either it or \"latency\", \"bytes\" and "
        "\"bandwidth\"");
  }
  if (bandwidth && !bytes) {
    comm.Fail("\"bandwidth\" needs \"bytes\", the size of one message");
  }
  if (!time && !latency && !bandwidth) {
    comm.Fail("give \"time\", or \"latency\", or \"bytes\" and \"bandwidth\"");
  }
  CommCost cost;
  cost.latency = ReadTime(time ? time : latency, unit, 0);
  if (const auto blocks = comm.Optional("reduce_blocks")) {
    cost.reduce_blocks = blocks->Boolean("whether REDUCE blocks a rank (true or false)");
  }
  const std::vector<int64_t> between = ReadStageBytes(bytes);
  if (!between.empty()) cost.bytes = std::ranges::min(between);
  if (bandwidth) {
    cost.bandwidth = ReadBandwidth(*bandwidth, unit);
    const double occupied = static_cast<double>(cost.bytes) / cost.bandwidth;
    // Messages that take less than a tick do not wait for each other.
    if (occupied * static_cast<double>(TicksPerUnit(unit)) >= 0.5) {
      cost.occupancy = ToTicks(occupied, unit, comm.where() + ": \"bytes\" / \"bandwidth\"");
    }
  }
  if (between.size() > 1) cost.SetBytes(between, unit);
  return cost;
}

int ReadLayersPerStage(const JsonCursor& moe) {
  return static_cast<int>(
      moe.Required("layers_per_stage").Integer("a number of layers", 1, kMaxLayers));
}

MoeCost ReadMoe(const JsonCursor& moe, Unit unit) {
  moe.Keys("an object with the costs of a layer's components",
           {"layers_per_stage", "attn_f", "dispatch_f", "mlp_f", "combine_f", "combine_b", "mlp_b",
            "dispatch_b", "attn_b", "mlp_w", "attn_w"});
  return ReadComponents(moe, unit, ReadLayersPerStage(moe), {});
}

/// Costs of one stage among unlike ones.
MoeCost ReadStageMoe(const JsonCursor& moe, Unit unit) {
  const auto kinds = moe.IsObject() ? moe.Optional("layers") : std::nullopt;
  moe.Keys("an object with the costs of the components of a stage",
           {kinds ? "layers" : "layers_per_stage", "attn_f", "dispatch_f", "mlp_f", "combine_f",
            "combine_b", "mlp_b", "dispatch_b", "attn_b", "mlp_w", "attn_w", "values"});
  const StageLayers layers = kinds ? ReadStageLayers(*kinds) : StageLayers();
  MoeCost cost = ReadComponents(
      moe, unit, kinds ? static_cast<int>(layers.size()) : ReadLayersPerStage(moe), layers);
  if (const auto values = moe.Optional("values")) {
    cost.values = ReadValues(*values, cost.layers_per_stage);
  }
  return cost;
}

RankCost ReadRank(const JsonCursor& rank) {
  rank.Keys("an object with what is special about a rank", {"speed", "memory_bytes"});
  RankCost cost;
  if (const auto speed = rank.Optional("speed")) {
    cost.speed = speed->Number("a speed", 1 / kMaxScale, kMaxScale);
  }
  if (const auto bytes = rank.Optional("memory_bytes")) {
    cost.memory_bytes = ReadBytes(*bytes, 1, kMaxDevice);
  }
  return cost;
}

Parallel ReadParallel(const JsonCursor& field) {
  field.Keys("an object, how a rank's devices split the model", {"tp", "cp", "ep", "etp"});
  Parallel parallel;
  const std::pair<const char*, int*> degrees[] = {
      {"tp", &parallel.tp}, {"cp", &parallel.cp}, {"ep", &parallel.ep}, {"etp", &parallel.etp}};
  for (const auto& [key, degree] : degrees) {
    if (const auto given = field.Optional(key)) {
      *degree = static_cast<int>(given->Integer("a number of devices", 1, kMaxExpertParallel));
    }
  }
  const std::string flaw = FlawOf(parallel);
  if (!flaw.empty()) field.Fail(flaw);
  return parallel;
}

GpuCost ReadGpu(const JsonCursor& field) {
  field.Keys("an object, the device that the costs are of", {"name", "memory_bytes"});
  GpuCost gpu;
  if (const auto name = field.Optional("name")) gpu.name = name->String("the name of a GPU", 256);
  if (const auto bytes = field.Optional("memory_bytes")) {
    gpu.memory_bytes = ReadBytes(*bytes, 1, kMaxDevice);
  }
  return gpu;
}

NamedLayers ReadNamedLayers(const JsonCursor& run) {
  run.Keys("an object, layers of one name", {"name", "repeat"});
  NamedLayers layers{run.Required("name").String("the name of a layer"), 1};
  if (const auto repeat = run.Optional("repeat")) {
    layers.repeat = static_cast<int>(repeat->Integer("a number of layers", 1, kMaxModelLayers));
  }
  return layers;
}

CostModel Read(const JsonCursor& root, bool may_derive, CostMending* mending) {
  if (root.IsObject() && root.Optional("format")) {
    root.Fail("is not a cost file: it has a \"format\", as plans do");
  }
  if (root.IsObject() && (root.Optional("model_type") || root.Optional("architectures"))) {
    root.Fail("is a model, not a cost file; make one with \"contraflow costs init --hf CONFIG\"");
  }
  root.Keys("an object, the costs",
            {"unit", "source", "parallel", "gpu", "tokens", "sums", "stage", "stages", "layers",
             "partition", "partition_of", "comm", "host", "moe", "overlap", "memory", "ranks",
             "microbatch_scale"});
  CostModel costs;
  const JsonCursor unit = root.Required("unit");
  const std::string& name = unit.String("a unit (ns, us, ms, s or unit)");
  costs.unit = unit.Checked([&] { return ParseUnit(name); });
  if (const auto source = root.Optional("source")) {
    costs.source = source->String("where the figures are from");
  }
  if (const auto parallel = root.Optional("parallel")) costs.parallel = ReadParallel(*parallel);
  if (const auto gpu = root.Optional("gpu")) costs.gpu = ReadGpu(*gpu);
  if (const auto tokens = root.Optional("tokens")) {
    costs.tokens = tokens->Integer("a number of tokens", 1, kMaxBytes);
  }
  if (const auto sums = root.Optional("sums")) {
    costs.ring = sums->String("how gradients are summed (ring)") == "ring";
    if (!costs.ring) sums->Fail("must be \"ring\"; drop it where `reduce` and `step` are as given");
  }
  costs.stages = ReadStages(root, costs.unit, may_derive, mending);
  costs.shares = ReadShares(root, costs.unit);
  if (const auto layers = root.Optional("layers")) {
    costs.layers = ReadLayers(*layers, costs.unit, mending);
  }
  if (const auto partition = root.Optional("partition")) {
    costs.partition =
        ReadList(*partition, "an array with the layers of each stage", kMaxStages,
                 [](const JsonCursor& stage) {
                   return static_cast<int>(stage.Integer("a number of layers", 1, kMaxModelLayers));
                 });
  }
  if (const auto names = root.Optional("partition_of")) {
    costs.partition_of = ReadList(*names, "an array with the layers of the model", kMaxModelLayers,
                                  [](const JsonCursor& run) { return ReadNamedLayers(run); });
  }
  if (const auto comm = root.Optional("comm")) costs.comm = ReadComm(*comm, costs.unit);
  if (const auto host = root.Optional("host")) costs.host = ReadHost(*host, costs.unit);
  if (const auto moe = root.Optional("moe"); moe && moe->IsArray()) {
    costs.stage_moe =
        ReadList(*moe, "an array with the components of each stage", kMaxStages,
                 [&](const JsonCursor& stage) { return ReadStageMoe(stage, costs.unit); });
    if (costs.stages.size() != costs.stage_moe.size()) {
      moe->Fail("lists the components of each stage, and \"stages\" must list what each takes");
    }
  } else if (moe) {
    costs.moe = ReadMoe(*moe, costs.unit);
  }
  if (const auto overlap = root.Optional("overlap")) {
    const std::string& mode = overlap->String("an overlap (published or all)");
    costs.derived = overlap->Checked([&] { return ParseOverlap(mode); });
    if (!costs.components()) {
      overlap->Fail(
          "says how stage costs follow from \"moe\", which is missing; add it, or drop this");
    }
  }
  const auto memory = root.Optional("memory");
  if (memory && costs.layers.empty()) costs.memory = ReadMemory(*memory, costs.moe);
  if (memory && !costs.layers.empty()) {
    memory->Keys("an object with what layers do not say", {"zero", "workspace_bytes"});
    ReadSharing(*memory, &costs.memory.emplace());
  }
  if (const auto ranks = root.Optional("ranks")) {
    costs.ranks = ReadList(*ranks, "an array with one entry for each rank", kMaxRanks, ReadRank);
    const auto unlike = [](const RankCost& rank) { return rank.speed != 1; };
    const bool speeds = std::any_of(costs.ranks.begin(), costs.ranks.end(), unlike);
    if (speeds && !may_derive) {
      ranks->Fail("has a \"speed\"; a plan keeps durations as they are on its ranks");
    }
    if (speeds && costs.components()) {
      ranks->Fail(
          "has a \"speed\", and \"moe\" gives components that take as long on every rank; give "
          "\"layers\" or \"stages\"");
    }
  }
  if (const auto scale = root.Optional("microbatch_scale")) {
    costs.microbatch_scale = ReadList(*scale, "an array with one factor for each micro-batch",
                                      kMaxMicrobatches, [](const JsonCursor& factor) {
                                        return factor.Number("a factor", 1 / kMaxScale, kMaxScale);
                                      });
  }
  return costs;
}

}  // namespace

CostModel ReadCosts(const JsonCursor& document) { return Read(document, false, nullptr); }

CostModel ReadCosts(std::string_view text, const std::string& place, CostMending* mending) {
  return Read(ParseJson(text, place, kLimits).Root(), true, mending);
}

CostModel ReadCostFile(const std::string& path, CostMending* mending) {
  return ReadCosts(ReadFile(path, int64_t{kLimits.bytes}), path == "-" ? "standard input" : path,
                   mending);
}

}  // namespace contraflow
