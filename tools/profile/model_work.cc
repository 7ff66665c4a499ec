#include <algorithm>

#include "compiler/plan/layer_cost.h"
#include "tools/profile/layer_work.h"
#include "tools/profile/work_builder.h"

namespace contraflow {
namespace {

constexpr const char* kBothInputs = "both inputs";

/// Bytes that each device sends for a token that visits `copies` other places, over a link.
AllToAll Exchange(const WorkBuilder& work, int64_t bytes) {
  const MoeDims& moe = work.layer.moe;
  const int64_t devices = work.setup.expert_parallel * work.setup.expert_tensor;
  const int64_t node = work.setup.gpu->node;
  const int64_t nodes = std::max<int64_t>(1, (devices + node - 1) / node);
  // A token that is kept to some groups goes once to each node of theirs, and from there to its
  // experts; else there is a copy for each expert.
  int64_t copies = moe.top_k;
  if (moe.top_groups < moe.groups) {
    const int64_t per_group = std::max<int64_t>(1, nodes / moe.groups);
    copies = std::min({copies, moe.top_groups * per_group, nodes});
  }
  const auto token = static_cast<double>(work.own_tokens * OuterWidth(work) * bytes);
  AllToAll exchange;
  const auto sent = [&](int64_t each, int64_t places) {
    exchange.formula = Product({work.own_tokens, OuterWidth(work), bytes, each}) + " x " +
                       std::to_string(places - 1) + "/" + std::to_string(places) + " bytes";
    return token * static_cast<double>(each * (places - 1)) / static_cast<double>(places);
  };
  const int64_t near = std::min(devices, node);
  exchange.nvlink_bytes = sent(moe.top_k, near);
  if (nodes > 1) exchange.network_bytes = sent(copies, nodes);
  return exchange;
}

/// A layer, whose first half has been begun.
void AddBlock(WorkBuilder* builder) {
  WorkBuilder& work = *builder;
  const LayerShape& layer = work.layer;
  work.work()->halves = (layer.mixes() && layer.has_mlp()) || layer.moe.experts > 0;
  AddBegin(builder);
  if (layer.attention.heads > 0) AddAttention(builder);
  if (layer.linear.heads > 0) AddLinearMixer(builder);
  if (layer.mixes()) AddMiddle(builder);
  if (layer.moe.experts > 0) AddRouter(builder);
  work.EndHalf();
  if (!layer.has_mlp()) return;
  if (layer.mixes()) AddSecondHalf(builder);
  if (layer.dense_width > 0) AddDenseMlp(builder);
  if (layer.moe.experts > 0) AddExperts(builder);
  work.EndHalf();
  if (layer.moe.experts == 0 || work.setup.expert_parallel == 1) return;
  work.work()->exchanges = true;
  work.work()->dispatch = Exchange(work, work.cast);
  work.work()->combine = Exchange(work, kBf16);
}

double Message(const WorkBuilder& work) {
  return static_cast<double>(work.own_tokens * work.model.streams * work.hidden * kBf16);
}

}  // namespace

WorkOfLayer EmbeddingWork(const ModelShape& model, const CostSetup& setup) {
  WorkBuilder work(model, setup);
  const int64_t rows = (model.vocabulary + work.tp - 1) / work.tp;
  // Backward, a row of the fp32 gradient is read and written for each token.
  work.AddMemory("rows of the embedding", work.tokens, work.hidden, 2 * kBf16, 0, kBf16 + 8);
  work.AddGather(work.tokens, work.tp, 1, 0, 1);
  if (!model.tied) work.AddParameters(rows, model.hidden);
  if (const int64_t width = model.side_width; width > 0) {
    work.AddMemory("rows for all layers", work.own_tokens, width, 2 * kBf16, 0, kBf16 + 8);
    work.AddParameters((model.side_vocabulary + work.tp - 1) / work.tp, width);
    work.Add({.name = "projection for all layers",
              .rows = work.own_tokens,
              .in = work.hidden,
              .out = width});
  }
  work.AddParameters(model.scales);
  work.Keep("tokens", KeptUntil::kW, work.tokens, 1, 4);
  work.work()->output_bytes = Message(work);
  return work.Take();
}

WorkOfLayer BlockWork(const ModelShape& model, const CostSetup& setup, const LayerShape& layer) {
  WorkBuilder work(model, setup, layer);
  AddBlock(&work);
  work.work()->output_bytes = Message(work);
  return work.Take();
}

WorkOfLayer PredictionWork(const ModelShape& model, const CostSetup& setup, int64_t index) {
  WorkBuilder work(model, setup, model.prediction);
  work.AddMemory("norms of both inputs", work.own_tokens, 2 * work.hidden, 2 * kBf16, 3 * kBf16);
  // Norms of both inputs, and before the head.
  work.AddParameters(3, work.hidden);
  work.Add({.name = "projection of both",
            .rows = work.own_tokens,
            .in = 2 * work.hidden,
            .out = work.hidden});
  work.Keep(kBothInputs, KeptUntil::kB, work.own_tokens, 2 * work.hidden, kBf16);
  work.Keep("both inputs, normed", KeptUntil::kW, work.own_tokens, 2 * work.hidden, work.cast);
  AddBlock(&work);
  for (Kept& kept : work.work()->kept) {
    // The input of the block is made by the first half, of what nothing makes again.
    if (kept.value == Value::input) kept.value = Value::scores;
    if (kept.name == kBothInputs) kept.value.reset();
  }
  // The head gets the model's output and that of each module.
  work.work()->output_bytes = Message(work) * static_cast<double>(index + 2);
  return work.Take();
}

WorkOfLayer HeadWork(const ModelShape& model, const CostSetup& setup) {
  WorkBuilder work(model, setup);
  const int64_t columns = (model.vocabulary + work.tp - 1) / work.tp;
  const int64_t times = 1 + model.predictions;
  const int64_t rows = times * work.tokens;
  work.AddMemory("norm", times * work.own_tokens, work.hidden, 2 * kBf16, 3 * kBf16);
  work.AddParameters(work.hidden * (model.norm_bias ? 2 : 1));
  if (model.hyper_connections) {
    const int64_t streams = model.streams;
    work.Add({.name = "weights of streams",
              .rows = times * work.own_tokens,
              .in = streams * work.hidden,
              .out = streams,
              .fp8 = false});
    work.AddParameters(streams + 1);
  }
  work.AddGather(rows, work.tp, 1, 1, 1);
  work.Add({.name = "vocabulary",
            .rows = rows,
            .in = work.hidden,
            .out = columns,
            .kind = WorkKind::kHead,
            .fp8 = false});
  // Scores in fp32: their largest, their sum; backward, they are read and gradients written.
  work.AddMemory("loss", rows, columns, 8, 4 + kBf16);
  work.Keep("input", KeptUntil::kB, times * work.own_tokens, work.hidden, kBf16);
  work.Keep("input, normed", KeptUntil::kW, times * work.own_tokens, work.hidden, kBf16);
  work.Keep("scores", KeptUntil::kB, rows, columns, 4);
  if (setup.activations != Activations::kIdeal) {
    work.Keep("logits", KeptUntil::kB, rows, columns, kBf16);
  }
  work.Keep("gradient of scores", KeptUntil::kFromBToW, rows, columns, kBf16);
  return work.Take();
}

}  // namespace contraflow
