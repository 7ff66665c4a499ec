#include "runtime/model/model.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "compiler/files/file.h"
#include "compiler/plan/error.h"
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
// Of one value, or the weights of one product: GPU kernels count them with 32 bits.
constexpr double kMaxNumbers = std::numeric_limits<int32_t>::max();
// Of the largest GPU (H200).
constexpr double kGpuGigabytes = 141;
// A parameter, its bf16 copy, gradient and two moments.
constexpr double kGpuBytesOfParameter = 18;
constexpr double kGpuBytesOfNumber = 2;

struct IntegerField {
  std::string_view key, noun;
  int Model::*field;
  int low, high;
};
constexpr IntegerField kIntegers[] = {
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
};

struct RealField {
  std::string_view key, noun;
  float Model::*field;
  float low, high;
};
constexpr RealField kReals[] = {
    {"learning_rate", "a learning rate", &Model::learning_rate, 0, 10},
    {"beta1", "a decay rate", &Model::beta1, 0, 0.9999f},
    {"beta2", "a decay rate", &Model::beta2, 0, 0.9999f},
    {"epsilon", "a small number", &Model::epsilon, 1e-20f, 1},
    {"weight_decay", "a decay", &Model::weight_decay, 0, 1},
};

constexpr std::string_view kCapacityNoun = "a capacity factor (leave it out to drop no token)";

Model Tiny() {
  Model model;
  model.name = "tiny";
  model.width = 16;
  model.heads = 2;
  model.experts = 4;
  model.expert_width = 16;
  model.sequence = 8;
  model.batch = 2;
  return model;
}

const std::vector<Model>& Presets() {
  static const std::vector<Model> presets = {Model{}, Tiny()};
  return presets;
}

std::vector<std::string_view> PresetNames() {
  std::vector<std::string_view> names;
  for (const Model& preset : Presets()) names.push_back(preset.name);
  return names;
}

[[noreturn]] void Fail(const std::string& place, std::string_view key, const std::string& what) {
  throw Error(place + ": /" + std::string(key) + ": " + what);
}

std::string Millions(double count) {
  return std::to_string(static_cast<int64_t>(count / 1e6)) + " million";
}

double ParametersOfLayer(const Model& model, double experts) {
  const double d = model.width, f = model.expert_width;
  return 4 * d * d + 2 * d + d * model.experts + 3 * experts * d * f;
}

void CheckHostSize(const Model& model, const std::string& place, int members) {
  const double d = model.width, f = model.expert_width, experts = model.experts;
  const double layers = model.layers == 0 ? kDefaultLayers : model.layers;
  const double vocabulary = model.vocabulary;
  const double parameters = layers * ParametersOfLayer(model, experts) + 2 * vocabulary * d + d;
  if (parameters > kMaxParameters) {
    Fail(place, "width",
         "with these layers, experts and widths the model has " + Millions(parameters) +
             " parameters, the host backend takes at most " + Millions(kMaxParameters) +
             "; make one of them smaller");
  }
  const double rows = static_cast<double>(model.batch) * model.sequence;
  const int owned = std::max(1, model.experts / members);
  const double experts_rows = static_cast<double>(MostExpertRows(model, members, owned));
  const double attention = 12 * d + static_cast<double>(model.heads) * model.sequence;
  const double activations = rows * (layers * (attention + 2 * experts) + vocabulary) +
                             layers * experts_rows * (3 * d + 5 * f);
  if (activations > kMaxActivations) {
    Fail(place, "sequence",
         "with this sequence, batch and model one micro-batch keeps " + Millions(activations) +
             " values, the host backend takes at most " + Millions(kMaxActivations) +
             "; make one of them smaller");
  }
}

void CheckGpuSize(const Model& model, const std::string& place, int members, int stages) {
  const double d = model.width, f = model.expert_width, experts = model.experts;
  const int owned = std::max(1, model.experts / members);
  const int all_layers = model.layers == 0 ? kDefaultLayers : model.layers;
  const double layers = std::max(1, all_layers / stages);
  const auto check_numbers = [&](std::string_view key, double numbers, const std::string& remedy) {
    if (numbers <= kMaxNumbers) return;
    Fail(place, key,
         "one of the values has " + Millions(numbers) +
             " numbers on each GPU, kernels take at most " + Millions(kMaxNumbers) + "; " + remedy);
  };
  const auto check_memory = [&](std::string_view key, const std::string& what, double bytes,
                                const std::string& remedy) {
    if (bytes <= kGpuGigabytes * 1e9) return;
    Fail(place, key,
         what + std::to_string(static_cast<int64_t>(bytes / 1e9)) +
             " GB on each GPU, the largest have " +
             std::to_string(static_cast<int64_t>(kGpuGigabytes)) + " GB; " + remedy);
  };
  const std::string smaller = "make widths or experts smaller, or `expert_parallel` larger";
  check_numbers("width", owned * d * 2 * f, smaller);
  check_memory("width", "the parameters of a stage take ",
               layers * ParametersOfLayer(model, owned) * kGpuBytesOfParameter,
               smaller + ", or take more stages with fewer layers each");

  const double rows = static_cast<double>(model.batch) * model.sequence;
  const std::string shorter = "make sequence, batch or widths smaller";
  check_numbers("sequence", rows * std::max({3 * d, experts, double{1} * model.vocabulary}),
                shorter);
  check_numbers("sequence", rows * model.top_k * d, shorter);
  const auto expert_rows = static_cast<double>(MostExpertRows(model, members, owned));
  const std::string shorter_or_capped = shorter + ", or give a capacity_factor";
  check_numbers("sequence", expert_rows * std::max(d, 2 * f), shorter_or_capped);
  check_memory("sequence", "one micro-batch keeps ",
               layers * (rows * 8 * d + expert_rows * (d + 3 * f)) * kGpuBytesOfNumber,
               shorter_or_capped + ", or take more stages with fewer layers each");
}

void CheckFields(const Model& model, const std::string& place) {
  for (const IntegerField& f : kIntegers) {
    const int value = model.*f.field;
    if (value >= f.low && value <= f.high) continue;
    Fail(place, f.key,
         "must be " + std::string(f.noun) + " in " + std::to_string(f.low) + ".." +
             std::to_string(f.high) + ", is " + std::to_string(value));
  }
  for (const RealField& f : kReals) {
    const float value = model.*f.field;
    if (value >= f.low && value <= f.high) continue;  // NaN is neither.
    Fail(place, f.key,
         "must be " + std::string(f.noun) + " in " + FormatReal(static_cast<double>(f.low)) + ".." +
             FormatReal(static_cast<double>(f.high)));
  }
  if (model.width % model.heads != 0) {
    Fail(
        place, "heads",
        "must divide width " + std::to_string(model.width) + ", is " + std::to_string(model.heads));
  }
  if (model.width / model.heads % 2 != 0) {
    Fail(place, "heads",
         "each head must have an even width (rotary positions turn pairs), is " +
             std::to_string(model.width / model.heads));
  }
  if (model.top_k > model.experts) {
    Fail(place, "top_k",
         "must be at most experts " + std::to_string(model.experts) + ", is " +
             std::to_string(model.top_k));
  }
  const float capacity = model.capacity_factor;
  constexpr auto kLeast = static_cast<float>(kLeastCapacity),
                 kMost = static_cast<float>(kMostCapacity);
  if (capacity != 0 && !(capacity >= kLeast && capacity <= kMost)) {
    Fail(place, "capacity_factor",
         "must be " + std::string(kCapacityNoun) + " in " + FormatReal(kLeastCapacity) + ".." +
             FormatReal(kMostCapacity));
  }
}

}  // namespace

void CheckModel(const Model& model, const std::string& place, int members, int stages,
                Hardware on) {
  CheckFields(model, place);
  if (on == Hardware::kGpus) {
    CheckGpuSize(model, place, members, stages);
  } else {
    CheckHostSize(model, place, members);
  }
}

Model ReadModel(const std::string& preset_or_path, Hardware on) {
  for (const Model& preset : Presets()) {
    if (preset.name == preset_or_path) return preset;
  }
  // A bare word is a misspelt preset rather than a file.
  if (preset_or_path.find_first_of("./") == std::string::npos && preset_or_path != "-") {
    std::string known;
    for (const std::string_view name : PresetNames()) {
      known += (known.empty() ? "" : ", ") + std::string(name);
    }
    throw Error("unknown model \"" + preset_or_path + "\"" +
                DidYouMean(preset_or_path, PresetNames()) + "; known are: " + known +
                ", or a file such as ./model.json");
  }
  const JsonDocument document = ParseJson(ReadFile(preset_or_path, kMaxFileBytes), preset_or_path);
  Model model;
  model.name = preset_or_path;
  model = ModelFromJson(document.Root(), std::move(model));
  if (on == Hardware::kGpus) {
    CheckFields(model, preset_or_path);
  } else {
    CheckModel(model, preset_or_path);
  }
  return model;
}

Json ModelToJson(const Model& model) {
  Json object = Json::object();
  object["name"] = model.name;
  for (const IntegerField& f : kIntegers) {
    object[f.key] = model.*f.field;
  }
  for (const RealField& f : kReals) {
    object[f.key] = static_cast<double>(model.*f.field);
  }
  if (model.capacity_factor != 0) {
    object["capacity_factor"] = static_cast<double>(model.capacity_factor);
  }
  return object;
}

Model ModelFromJson(const JsonCursor& object, Model model) {
  object.Keys("a model (an object)",
              {"name", "layers", "width", "heads", "experts", "top_k", "expert_width",
               "capacity_factor", "vocabulary", "sequence", "batch", "learning_rate",
               "warmup_steps", "beta1", "beta2", "epsilon", "weight_decay"});
  if (const auto name = object.Optional("name")) model.name = name->String("a name", 256);
  for (const IntegerField& f : kIntegers) {
    if (const auto field = object.Optional(f.key)) {
      model.*f.field = static_cast<int>(field->Integer(f.noun, f.low, f.high));
    }
  }
  for (const RealField& f : kReals) {
    if (const auto field = object.Optional(f.key)) {
      const double low = static_cast<double>(f.low), high = static_cast<double>(f.high);
      model.*f.field = static_cast<float>(field->Number(f.noun, low, high));
    }
  }
  if (const auto field = object.Optional("capacity_factor")) {
    model.capacity_factor =
        static_cast<float>(field->Number(kCapacityNoun, kLeastCapacity, kMostCapacity));
  }
  return model;
}

Model FitModel(Model model, int stages, int layers, int members, Hardware on) {
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
  CheckModel(model, place, members, stages, on);
  return model;
}

int64_t Capacity(const Model& model) {
  if (model.capacity_factor == 0) return 0;
  // As a model that is not checked yet may have more tokens than an int holds.
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

LayerRange LayersOfStage(const Model& model, int stage, int stages) {
  const int each = model.layers / stages, more = model.layers % stages;
  const int first = stage * each + std::min(stage, more);
  return {first, first + each + (stage < more ? 1 : 0)};
}

}  // namespace contraflow
