#include "tools/profile/setup.h"

#include <algorithm>
#include <string>
#include <vector>

#include "compiler/plan/error.h"
#include "compiler/plan/layer_cost.h"

namespace contraflow {
namespace {

constexpr int64_t kMaxTokens = int64_t{1} << 24;

/// Throws Error unless `parts` divides what the model has this many of.
void CheckDivides(const char* field, int64_t parts, int64_t whole, const char* what) {
  if (whole % parts == 0) return;
  throw Error(std::string(field) + ": must divide the " + std::to_string(whole) + " " + what +
              ", is " + std::to_string(parts));
}

/// Heads that each device has, or several devices share.
void CheckShared(int64_t tp, int64_t heads, const char* what) {
  if (heads % tp == 0 || tp % heads == 0) return;
  throw Error("`tp`: must divide the " + std::to_string(heads) + " " + what +
              " of the model, or be a multiple of them, is " + std::to_string(tp));
}

void CheckMixers(int64_t tp, const LayerShape& layer) {
  if (layer.attention.heads > 0) {
    CheckDivides("`tp`", tp, layer.attention.heads, "attention heads of the model");
    CheckShared(tp, layer.attention.kv_heads, "key-value heads");
    if (layer.attention.out_groups > 0) {
      CheckDivides("`tp`", tp, layer.attention.out_groups, "groups of attention's output");
    }
  }
  if (layer.linear.heads > 0) {
    CheckDivides("`tp`", tp, layer.linear.heads, "heads of the model's linear mixers");
    CheckShared(tp, layer.linear.key_heads, "key heads of linear mixers");
  }
}

/// Throws Error unless sequences can be split over devices: each gets a part near the start and one
/// near the end, so that all have as many keys.
void CheckContext(const CostSetup& setup, const std::vector<LayerShape>& layers) {
  const int64_t cp = setup.context_parallel;
  if (cp == 1) return;
  if (setup.sequence % (2 * cp) != 0) {
    throw Error("`cp`: sequences of " + std::to_string(setup.sequence) +
                " tokens do not divide into 2 x " + std::to_string(cp) + " parts");
  }
  for (const LayerShape& layer : layers) {
    if (layer.linear.heads == 0) continue;
    throw Error(
        "`cp`: the model has linear mixers, whose state passes from token to token; leave it out");
  }
}

void CheckMlp(const CostSetup& setup, const LayerShape& layer) {
  const int64_t tp = setup.tensor_parallel, etp = setup.expert_tensor;
  if (layer.dense_width > 0) {
    CheckDivides("`tp`", tp, layer.dense_width, "columns of the model's MLPs");
  }
  if (layer.moe.experts == 0) return;
  CheckDivides("`ep`", setup.expert_parallel, layer.moe.experts, "experts of the model");
  CheckDivides("`etp`", etp, layer.moe.width, "columns of the model's experts");
  CheckDivides("`tp`", tp, layer.moe.shared_width, "columns of the model's shared expert");
}

}  // namespace

Efficiencies EfficienciesOf(const GpuSheet& gpu, bool fp8) {
  Efficiencies efficiencies = DefaultEfficiencies(fp8);
  const std::string& own = fp8 ? gpu.shares.fp8 : gpu.shares.bf16;
  if (!own.empty()) ParseEfficiencies(own, &efficiencies);
  return efficiencies;
}

const OptimizerSheet& FindOptimizer(std::string_view name) {
  std::string known;
  for (const OptimizerSheet& optimizer : kOptimizers) {
    if (optimizer.name == name) return optimizer;
    known += (known.empty() ? "" : ", ") + std::string(optimizer.name);
  }
  throw Error("`optimizer`: must be one of " + known + ", is \"" + std::string(name.substr(0, 64)) +
              "\"");
}

const Fp8Recipe& FindFp8Recipe(std::string_view name) {
  for (const Fp8Recipe& recipe : kFp8Recipes) {
    if (recipe.name == name) return recipe;
  }
  throw Error("`fp8`: must be tensor, block or mx, is \"" + std::string(name.substr(0, 64)) + "\"");
}

std::string_view Name(Activations activations) {
  constexpr std::string_view kNames[] = {"ideal", "megatron", "torch"};
  return kNames[static_cast<size_t>(activations)];
}

Activations ParseActivations(std::string_view name) {
  for (const Activations each :
       {Activations::kIdeal, Activations::kMegatron, Activations::kTorch}) {
    if (Name(each) == name) return each;
  }
  throw Error("`activations`: must be ideal, megatron or torch, is \"" +
              std::string(name.substr(0, 64)) + "\"");
}

void CheckSetup(const CostSetup& setup, const ModelShape& model) {
  if (setup.fp8 && setup.gpu->fp8 == 0) {
    throw Error("`dtype`: the " + setup.gpu->name + " has no fp8; use bf16");
  }
  if (setup.fp8 && setup.recipe->name == "mx" && !setup.gpu->mx) {
    throw Error("`fp8`: the " + setup.gpu->name + " multiplies no mx formats; use tensor or block");
  }
  if (setup.sequence > kMaxTokens || setup.micro_batch > kMaxTokens ||
      setup.tokens() > kMaxTokens) {
    throw Error("`seq` times `micro_batch` must be at most " + std::to_string(kMaxTokens) +
                " tokens");
  }
  const int64_t tp = setup.tensor_parallel, ep = setup.expert_parallel;
  const int64_t etp = setup.expert_tensor;
  std::vector<LayerShape> layers = model.layers;
  if (model.predictions > 0) layers.push_back(model.prediction);
  for (const LayerShape& layer : layers) CheckMixers(tp, layer);
  CheckContext(setup, layers);
  CheckDivides("`tp`", tp, setup.tokens() / setup.context_parallel, "tokens of a micro-batch");
  if (!model.has_experts()) {
    if (ep > 1) throw Error("`ep`: the model has no experts to split; leave it out");
    if (etp > 1) throw Error("`etp`: the model has no experts to split; leave it out");
  }
  CheckDivides("`etp`", etp, tp, "devices of tp");
  for (const LayerShape& layer : layers) CheckMlp(setup, layer);
  if (const std::string flaw = FlawOf(setup.parallel()); !flaw.empty())
    throw Error("`ep`: " + flaw);
}

}  // namespace contraflow
