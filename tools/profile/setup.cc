#include "tools/profile/setup.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <vector>

#include "compiler/plan/error.h"
#include "compiler/plan/layer_cost.h"

namespace contraflow {
namespace {

constexpr std::string_view kNames[kWorkKinds] = {"matmul", "experts",    "attention",       "head",
                                                 "memory", "all-to-all", "tensor-parallel", "p2p"};

constexpr int64_t kMaxTokens = int64_t{1} << 24;

/// One "KIND=X".
void ParseOne(std::string_view entry, Efficiencies* efficiencies) {
  const std::string shown = "\"" + std::string(entry.substr(0, 64)) + "\"";
  const size_t equals = entry.find('=');
  if (equals == std::string_view::npos) {
    throw Error("must be KIND=X, as in \"matmul=0.6\", is " + shown);
  }
  const std::string_view name = entry.substr(0, equals), number = entry.substr(equals + 1);
  const auto kind = std::find(std::begin(kNames), std::end(kNames), name);
  if (kind == std::end(kNames)) {
    std::string list;
    for (const std::string_view known : kNames) {
      list += (list.empty() ? "" : ", ") + std::string(known);
    }
    throw Error("unknown kind of work in " + shown + DidYouMean(name.substr(0, 64), kNames) +
                "; known are: " + list);
  }
  double share = 0;
  const char* const end = number.data() + number.size();
  const auto [at, error] = std::from_chars(number.data(), end, share);
  // Below a millionth it is a mistake, and times would overflow.
  if (error != std::errc() || at != end || !(share >= 1e-6 && share <= 1)) {
    throw Error("the efficiency in " + shown + " must be a share in 1e-6..1, as 0.6");
  }
  (*efficiencies)[static_cast<size_t>(kind - std::begin(kNames))] = share;
}

/// Throws Error unless `parts` divides what the model has so many of.
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

std::string_view Name(WorkKind kind) { return kNames[static_cast<size_t>(kind)]; }

Efficiencies DefaultEfficiencies(bool fp8) {
  Efficiencies efficiencies;
  const auto set = [&](WorkKind kind, double share) {
    efficiencies[static_cast<size_t>(kind)] = share;
  };
  set(WorkKind::kMatmul, fp8 ? 0.52 : 0.65);
  set(WorkKind::kExperts, fp8 ? 0.42 : 0.55);
  set(WorkKind::kAttention, 0.5);
  set(WorkKind::kHead, 0.65);
  set(WorkKind::kMemory, 0.7);
  set(WorkKind::kAllToAll, 0.75);
  set(WorkKind::kTensorParallel, 0.75);
  set(WorkKind::kP2p, 0.75);
  return efficiencies;
}

void ParseEfficiencies(std::string_view text, Efficiencies* efficiencies) {
  for (;;) {
    const size_t comma = text.find(',');
    ParseOne(text.substr(0, comma), efficiencies);
    if (comma == std::string_view::npos) return;
    text.remove_prefix(comma + 1);
  }
}

void CheckSetup(const CostSetup& setup, const ModelShape& model) {
  if (setup.fp8 && setup.gpu->fp8 == 0) {
    throw Error("`dtype`: the " + setup.gpu->name + " has no fp8; use bf16");
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
  CheckDivides("`tp`", tp, setup.tokens(), "tokens of a micro-batch");
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
