#include "runtime/model/model.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <numbers>
#include <numeric>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "compiler/files/file.h"
#include "compiler/plan/error.h"
#include "compiler/plan/spec.h"
#include "runtime/model/model_json.h"

namespace contraflow {
namespace {

constexpr int64_t kMaxFileBytes = 1 << 16;
constexpr int kDefaultLayers = 8;
// Weights of a model, and values one micro-batch leaves in all stages together. Both are held
// several times (gradients and two moments; micro-batches in flight), so 2^28 of them already are
// many GiB.
constexpr double kMaxParameters = 1 << 28;
constexpr double kMaxActivations = 1 << 28;

struct Field {
  std::string_view key, noun;
  std::variant<int Model::*, float Model::*, bool Model::*> at;
  double low = 0, high = 0;
  bool optional = false;  // not written where it is 0, which may be out of range
};
constexpr Field kFields[] = {
    {"layers", "a number of layers (0: one for each stage, at least 8)", &Model::layers, 0,
     1 << 15},
    {"width", "a width", &Model::width, 1, 1 << 14},
    {"heads", "a number of heads", &Model::heads, 1, 1 << 14},
    {"experts", "a number of experts", &Model::experts, 1, 1 << 12},
    {"top_k", "a number of experts", &Model::top_k, 1, 1 << 12},
    {"expert_width", "a width", &Model::expert_width, 1, 1 << 16},
    {"vocabulary", "a number of tokens (256 bytes, or more)", &Model::vocabulary, 256, 1 << 16},
    {"sequence", "a number of tokens", &Model::sequence, 1, 1 << 16},
    {"batch", "a number of sequences", &Model::batch, 1, 1 << 16},
    {"warmup_steps", "a number of steps", &Model::warmup_steps, 0, 1 << 30},
    {"learning_rate", "a learning rate", &Model::learning_rate, 0, 10},
    {"beta1", "a decay rate", &Model::beta1, 0, 0.9999},
    {"beta2", "a decay rate", &Model::beta2, 0, 0.9999},
    {"epsilon", "a small number", &Model::epsilon, 1e-20, 1},
    {"weight_decay", "a decay", &Model::weight_decay, 0, 1},
    {"capacity_factor", "a capacity factor (leave it out to drop no token)",
     &Model::capacity_factor, kLeastCapacity, kMostCapacity, true},
    {"decay_steps", "a number of steps", &Model::decay_steps, 0, 1 << 30, true},
    {"minimum_learning_rate", "a learning rate", &Model::minimum_learning_rate, 0, 10, true},
    {"clip", "a norm", &Model::clip, 0, kMostClip, true},
    {"balance_loss", "a coefficient", &Model::balance_loss, 0, 100, true},
    {"renormalise_top_k", "a switch", &Model::renormalise_top_k, 0, 1, true},
};

[[noreturn]] void Fail(const std::string& place, std::string_view key, const std::string& what) {
  throw Error(place + ": /" + std::string(key) + ": " + what);
}

void CheckHostSize(const Model& model, const std::string& place, int members) {
  const auto check = [&](std::string_view key, const char* what, double count, const char* unit,
                         double most) {
    const auto millions = [](double n) { return std::to_string(static_cast<int64_t>(n / 1e6)); };
    if (count <= most) return;
    Fail(place, key,
         what + millions(count) + " million " + unit + ", the host backend takes at most " +
             millions(most) + " million; make one of them smaller");
  };
  const double d = model.width, f = model.expert_width, experts = model.experts;
  const double layers = model.layers, vocabulary = model.vocabulary;
  const double of_layer = 4 * d * d + 2 * d + d * experts + 3 * experts * d * f;
  check("width", "with these layers, experts and widths the model has ",
        layers * of_layer + 2 * vocabulary * d + d, "parameters", kMaxParameters);
  const double rows = static_cast<double>(model.batch) * model.sequence;
  const int owned = std::max(1, model.experts / members);
  const double expert_rows = static_cast<double>(MostExpertRows(model, members, owned));
  const double attention = 12 * d + static_cast<double>(model.heads) * model.sequence;
  check("sequence", "with this sequence, batch and model one micro-batch keeps ",
        rows * (layers * (attention + 2 * experts) + vocabulary) +
            layers * expert_rows * (3 * d + 5 * f),
        "values", kMaxActivations);
}

}  // namespace

void CheckModel(const Model& model, const std::string& place) {
  for (const Field& f : kFields) {
    const double value = std::visit([&](auto at) { return static_cast<double>(model.*at); }, f.at);
    // A limit is as exact as the field.
    const auto limit = [](double exact) { return static_cast<double>(static_cast<float>(exact)); };
    if (f.optional && value == 0) continue;
    if (value >= limit(f.low) && value <= limit(f.high)) continue;  // NaN is neither.
    const bool integer = std::holds_alternative<int Model::*>(f.at);
    Fail(place, f.key,
         "must be " + std::string(f.noun) + " in " + FormatReal(f.low) + ".." + FormatReal(f.high) +
             (integer ? ", is " + FormatReal(value) : ""));
  }
  const auto require = [&](bool holds, std::string_view key, const std::string& what, int is) {
    if (!holds) Fail(place, key, what + ", is " + std::to_string(is));
  };
  require(model.width % model.heads == 0, "heads",
          "must divide width " + std::to_string(model.width), model.heads);
  require(model.width / model.heads % 2 == 0, "heads",
          "each head must have an even width (rotary positions turn pairs)",
          model.width / model.heads);
  require(model.top_k <= model.experts, "top_k",
          "must be at most experts " + std::to_string(model.experts), model.top_k);
  require(model.decay_steps == 0 || model.decay_steps > model.warmup_steps, "decay_steps",
          "must be 0 or more than warmup_steps " + std::to_string(model.warmup_steps),
          model.decay_steps);
  if (model.minimum_learning_rate > model.learning_rate) {
    Fail(place, "minimum_learning_rate", "must be at most the learning_rate");
  }
}

Model ReadModel(const std::string& preset_or_path) {
  const Model presets[] = {Model{},
                           {.name = "tiny",
                            .width = 16,
                            .heads = 2,
                            .experts = 4,
                            .expert_width = 16,
                            .sequence = 8,
                            .batch = 2}};
  std::vector<std::string_view> names;
  std::string known;
  for (const Model& preset : presets) {
    if (preset.name == preset_or_path) return preset;
    names.push_back(preset.name);
    known += preset.name + ", ";
  }
  // A bare word is a misspelt preset rather than a file.
  if (preset_or_path.find_first_of("./") == std::string::npos && preset_or_path != "-") {
    const std::string shown = preset_or_path.substr(0, 64);
    throw Error("unknown model \"" + shown + "\"" + DidYouMean(shown, names) +
                "; known are: " + known + "or a file such as ./model.json");
  }
  const JsonDocument document = ParseJson(ReadFile(preset_or_path, kMaxFileBytes), preset_or_path);
  Model model;
  model.name = preset_or_path;
  model = ModelFromJson(document.Root(), std::move(model));
  CheckModel(model, preset_or_path);
  return model;
}

Json ModelToJson(const Model& model) {
  Json object = Json::object();
  object["name"] = model.name;
  for (const Field& f : kFields) {
    std::visit(
        [&](auto at) {
          const auto value = model.*at;
          using T = std::remove_const_t<decltype(value)>;
          if (f.optional && value == T{}) return;
          if constexpr (std::is_same_v<T, float>) {
            object[f.key] = static_cast<double>(value);
          } else {
            object[f.key] = value;
          }
        },
        f.at);
  }
  return object;
}

Model ModelFromJson(const JsonCursor& object, Model model) {
  std::vector<std::string_view> keys = {"name"};
  for (const Field& f : kFields) keys.push_back(f.key);
  object.Keys("a model (an object)", keys);
  if (const auto name = object.Optional("name")) model.name = name->String("a name", 256);
  for (const Field& f : kFields) {
    const auto field = object.Optional(f.key);
    if (!field) continue;
    if (const auto* integer = std::get_if<int Model::*>(&f.at)) {
      model.** integer = static_cast<int>(
          field->Integer(f.noun, static_cast<int64_t>(f.low), static_cast<int64_t>(f.high)));
    } else if (const auto* real = std::get_if<float Model::*>(&f.at)) {
      model.** real = static_cast<float>(field->Number(f.noun, f.low, f.high));
    } else {
      model.*std::get<bool Model::*>(f.at) = field->Boolean(f.noun);
    }
  }
  return model;
}

double LearningRate(const Model& model, int step) {
  const auto rate = static_cast<double>(model.learning_rate);
  if (step < model.warmup_steps) return rate * (static_cast<double>(step) / model.warmup_steps);
  if (model.decay_steps == 0) return rate;
  const auto least = static_cast<double>(model.minimum_learning_rate);
  if (step >= model.decay_steps) return least;
  const double part =
      static_cast<double>(step - model.warmup_steps) / (model.decay_steps - model.warmup_steps);
  return least + (rate - least) * (1 + std::cos(std::numbers::pi * part)) / 2;
}

Model SettleModel(Model model, int stages, int layers, int members) {
  CF_ASSERT(stages >= 1 && layers >= 0 && members >= 1);
  const std::string place = "model \"" + model.name + "\"";
  if (model.layers == 0) {
    model.layers = layers > 0 ? stages * layers : std::max(kDefaultLayers, stages);
  }
  const std::string count = std::to_string(model.layers);
  if (layers > 0 && model.layers != stages * layers) {
    const std::string needed = std::to_string(stages * layers);
    Fail(place, "layers",
         "the plan's " + std::to_string(stages) + " stages have " + std::to_string(layers) +
             " layers each, " + needed + " together, the model has " + count +
             "; use `model` with layers " + needed + ", or costs with another layers_per_stage");
  }
  if (model.layers < stages) {
    Fail(place, "layers",
         "stage " + count + " would have no layer, the model has " + count +
             "; use `model` with layers >= " + std::to_string(stages) +
             " or a plan with fewer stages");
  }
  if (model.experts % members != 0) {
    Fail(place, "experts",
         "must be a multiple of the " + std::to_string(members) +
             " devices of an expert group, is " + std::to_string(model.experts) +
             "; use `model` with such a number, or a plan with another `expert_parallel`");
  }
  CheckModel(model, place);
  return model;
}

Model FitModel(Model model, int stages, int layers, int members) {
  model = SettleModel(std::move(model), stages, layers, members);
  CheckHostSize(model, "model \"" + model.name + "\"", members);
  return model;
}

Model WithLayersOf(const Plan& plan, Model model) {
  if (plan.stage_layers.empty()) return model;
  model.partition.clear();
  int layers = 0;
  for (int s = 0; s < plan.stages; ++s) {
    model.partition.push_back(plan.LayersOf(s));
    layers += plan.LayersOf(s);
  }
  if (model.layers == 0) model.layers = layers;
  if (model.layers != layers) {
    Fail("model \"" + model.name + "\"", "layers",
         "the plan's stages have " + FormatPartition(model.partition) + " layers, " +
             std::to_string(layers) + " together, the model has " + std::to_string(model.layers) +
             "; use `model` with layers " + std::to_string(layers) +
             ", or costs with as many layers as the model");
  }
  return model;
}

Model FitModel(Model model, const Plan& plan) {
  const int alike = plan.stage_layers.empty() ? plan.layers : 0;
  return FitModel(WithLayersOf(plan, std::move(model)), plan.stages, alike, plan.expert_parallel);
}

int64_t Capacity(const Model& model) {
  if (model.capacity_factor == 0) return 0;
  // A model that is not checked yet may have more tokens than an int holds.
  const double tokens = static_cast<double>(model.sequence) * model.batch;
  const double share = tokens * model.top_k / model.experts;
  const double most = std::ceil(static_cast<double>(model.capacity_factor) * share);
  // A token visits an expert once.
  return static_cast<int64_t>(std::min(most, tokens));
}

int64_t MostExpertRows(const Model& model, int members, int local_experts) {
  const int64_t capacity = Capacity(model);
  if (capacity > 0) return members * local_experts * capacity;
  return int64_t{members} * model.sequence * model.batch * std::min(model.top_k, local_experts);
}

namespace {

/// The partition with a second layer in the end that has one, from the stage that has most to give;
/// empty if none has any.
Partition WithFullEnds(Partition partition) {
  const auto spare = [&](size_t s) {
    return partition[s] - (s == 0 || s + 1 == partition.size() ? 2 : 1);
  };
  for (const size_t end : {size_t{0}, partition.size() - 1}) {
    if (spare(end) >= 0) continue;
    size_t from = 0;
    for (size_t s = 1; s < partition.size(); ++s) {
      if (spare(s) > spare(from)) from = s;
    }
    if (spare(from) < 1) return {};
    --partition[from];
    ++partition[end];
  }
  return partition;
}

}  // namespace

Partition PartitionOf(const Model& model, const Partition& planned) {
  const int64_t sum = std::accumulate(planned.begin(), planned.end(), int64_t{0});
  if (planned.empty() || sum == model.layers) return planned;
  if (sum != int64_t{model.layers} + 2) return {};
  Partition layers = planned;
  --layers.front();
  --layers.back();
  const bool head = layers.back() < 1;
  if (head || layers.front() < 1) {
    const Partition full = WithFullEnds(planned);
    throw Error("stage " + std::to_string(head ? planned.size() - 1 : 0) + " of the plan has the " +
                (head ? "head" : "embedding") +
                " alone, and contraflow-run computes it with a layer of the model; compile it " +
                (full.empty() ? "for fewer stages" : "with `partition` " + FormatPartition(full)));
  }
  return layers;
}

LayerRange LayersOfStage(const Model& model, int stage, int stages) {
  if (std::cmp_equal(model.partition.size(), stages)) {
    const auto begin = model.partition.begin();
    const int first = std::accumulate(begin, begin + stage, 0);
    return {first, first + model.partition[static_cast<size_t>(stage)]};
  }
  const int each = model.layers / stages, more = model.layers % stages;
  const int first = stage * each + std::min(stage, more);
  return {first, first + each + (stage < more ? 1 : 0)};
}

std::vector<int> LayersOfStages(const Model& model, int stages) {
  std::vector<int> layers;
  for (int s = 0; s < stages; ++s) {
    const LayerRange range = LayersOfStage(model, s, stages);
    layers.push_back(range.last - range.first);
  }
  return layers;
}

}  // namespace contraflow
