#include "tools/profile/layer_work.h"

#include <algorithm>

#include "compiler/files/json.h"
#include "tools/profile/work_builder.h"

namespace contraflow {
namespace {

/// Keys that a query sees on average: those before it in its sequence, up to the window.
double MeanKeys(int64_t sequence, int64_t window) {
  const auto s = static_cast<double>(sequence), w = static_cast<double>(window);
  if (window == 0 || window >= sequence) return s / 2;
  return w - w * w / (2 * s);
}

struct Heads {
  int64_t heads, keys;   ///< of a device
  int64_t q, k, v, out;  ///< columns
};

Heads HeadsOf(const WorkBuilder& builder) {
  const AttentionDims& a = builder.model.attention;
  Heads heads = {};
  heads.heads = a.heads / builder.tp;
  heads.keys = std::max<int64_t>(1, a.kv_heads / builder.tp);
  heads.q = heads.heads * a.head_dim;
  heads.k = heads.keys * a.head_dim;
  heads.v = heads.keys * a.value_dim;
  heads.out = heads.heads * a.value_dim;
  return heads;
}

/// Queries, keys and values straight from the layer's input.
void AddProjections(const Heads& heads, WorkBuilder* builder) {
  const AttentionDims& a = builder->model.attention;
  WorkBuilder& work = *builder;
  const int64_t columns = heads.q + heads.k + heads.v;
  work.Add({.name = "q, k, v",
            .rows = work.tokens,
            .in = work.hidden,
            .out = columns,
            .bias = a.qkv_bias});
  work.AddMemory("rotation of q, k", work.tokens, heads.q + heads.k, 2 * kBf16, 2 * kBf16);
  if (a.head_norms) {
    work.AddMemory("norms of q, k", work.tokens, heads.q + heads.k, 2 * kBf16, 3 * kBf16);
    work.AddParameters(2, a.head_dim);
    work.Keep("q, k before their norms", KeptUntil::kB, work.tokens, heads.q + heads.k, kBf16);
  }
  work.Keep("q, k, v", KeptUntil::kB, work.tokens, columns, kBf16);
  work.Keep("gradients of q, k, v", KeptUntil::kFromBToW, work.tokens, columns, work.cast);
}

/// The same from latents: what makes these is on every device of a tensor-parallel group, which
/// share its tokens.
void AddLatentProjections(const Heads& heads, WorkBuilder* builder) {
  const AttentionDims& a = builder->model.attention;
  WorkBuilder& work = *builder;
  const int64_t plain = a.head_dim - a.rope_dim;
  const int64_t kv_columns = heads.heads * (plain + a.value_dim);
  if (a.q_latent > 0) {
    work.Add({.name = "q latent",
              .rows = work.own_tokens,
              .in = work.hidden,
              .out = a.q_latent,
              .bias = a.qkv_bias});
    work.Add({.name = "q", .rows = work.tokens, .in = a.q_latent, .out = heads.q});
    work.AddParameters(a.q_latent);
    work.Keep("q latent", KeptUntil::kB, work.own_tokens, a.q_latent, kBf16);
    work.Keep("q latent, normed", KeptUntil::kW, work.tokens, a.q_latent, work.cast);
  } else {
    work.Add({.name = "q", .rows = work.tokens, .in = work.hidden, .out = heads.q});
  }
  const int64_t latent = a.kv_latent + a.rope_dim;
  work.Add({.name = "k, v latent",
            .rows = work.own_tokens,
            .in = work.hidden,
            .out = latent,
            .bias = a.qkv_bias});
  work.Add({.name = "k, v", .rows = work.tokens, .in = a.kv_latent, .out = kv_columns});
  work.AddParameters(a.kv_latent);
  work.AddMemory("norms of latents", work.own_tokens, a.q_latent + a.kv_latent, 2 * kBf16,
                 3 * kBf16);
  work.AddMemory("rotation of q, k", work.tokens, 2 * heads.q, 2 * kBf16, 2 * kBf16);
  work.Keep("k, v latent", KeptUntil::kB, work.own_tokens, latent, kBf16);
  work.Keep("k, v latent, normed", KeptUntil::kW, work.tokens, a.kv_latent, work.cast);
  work.Keep("q, k, v", KeptUntil::kB, work.tokens, heads.q + heads.k + heads.v, kBf16);
  work.Keep("gradients of q, k, v", KeptUntil::kFromBToW, work.tokens, heads.q + kv_columns,
            work.cast);
  work.Keep("gradients of latents", KeptUntil::kFromBToW, work.own_tokens, a.q_latent + latent,
            work.cast);
}

/// Flash attention: scores are never stored, and made again by the backward.
void AddCore(const Heads& heads, int64_t window, WorkBuilder* builder) {
  const AttentionDims& a = builder->model.attention;
  WorkBuilder& work = *builder;
  const double keys = MeanKeys(work.setup.sequence, window);
  const auto products = static_cast<double>(2 * work.tokens * heads.heads) *
                        static_cast<double>(a.head_dim + a.value_dim);
  const double flops = products * keys;
  const double bytes = static_cast<double>(work.tokens * kBf16) *
                       static_cast<double>(heads.q + heads.k + heads.v + heads.out);
  work.Add(LayerPart{.name = "attention",
                     .kind = WorkKind::kAttention,
                     .f = {flops, bytes},
                     .b = {2.5 * flops, 2 * bytes},
                     .w = {},
                     .formula = Product({2, work.tokens, heads.heads, a.head_dim + a.value_dim}) +
                                " x " + FormatReal(keys) + " keys, b 2.5 times that"});
  work.Keep("attention", KeptUntil::kW, work.tokens, heads.out, kBf16);
  work.Keep("sums of scores", KeptUntil::kB, work.tokens, heads.heads, 4);
}

void AddNorms(WorkBuilder* builder, const char* name, int64_t norms) {
  // Read and write; backward, the gradient that passes by is added.
  builder->AddMemory(name, builder->own_tokens, builder->hidden, norms * 2 * kBf16,
                     norms * 4 * kBf16);
  builder->AddParameters(norms, builder->hidden);
}

/// Before a half of a layer, and behind it; the weight gradient needs what was gathered again.
void AddGathers(int64_t rows, int64_t devices, WorkBuilder* builder) {
  builder->AddGather(rows, devices, 2, 2, 1);
}

void AddResidual(WorkBuilder* builder) {
  builder->AddMemory("residual", builder->own_tokens, builder->hidden, 3 * kBf16, 0);
}

/// Gate, up and down of `rows` rows, `width` columns on this device.
void AddGatedMlp(const std::string& name, int64_t rows, int64_t width, int64_t matrices,
                 WorkKind kind, bool bias, WorkBuilder* builder) {
  WorkBuilder& work = *builder;
  const bool dispatched = kind == WorkKind::kExperts;  // rows and gradients come in fp8
  work.Add({.name = name + "gate, up",
            .rows = rows,
            .in = work.hidden,
            .out = 2 * width,
            .kind = kind,
            .matrices = matrices,
            .bias = bias,
            .cast_in = !dispatched});
  work.AddMemory(name + "gated activation", rows, width, 3 * kBf16, 5 * kBf16);
  work.Add({.name = name + "down",
            .rows = rows,
            .in = width,
            .out = work.hidden,
            .kind = kind,
            .matrices = matrices,
            .bias = bias,
            .cast_out = !dispatched});
  work.Keep(name + "gate, up", KeptUntil::kB, rows, 2 * width, kBf16);
  work.Keep(name + "hidden", KeptUntil::kW, rows, width, work.cast);
  work.Keep("gradients of " + name + "gate, up", KeptUntil::kFromBToW, rows, 2 * width, work.cast);
}

}  // namespace

void AddAttention(const BlockShape& layer, WorkBuilder* builder) {
  WorkBuilder& work = *builder;
  const Heads heads = HeadsOf(work);
  const bool outer = work.model.norms == 4;
  AddNorms(builder, "norms", outer ? 3 : 2);
  AddResidual(builder);
  AddGathers(work.tokens, work.tp, builder);
  work.Keep("input", KeptUntil::kB, work.own_tokens, work.hidden, kBf16, Value::input);
  work.Keep("input, normed", KeptUntil::kW, work.own_tokens, work.hidden, work.cast);
  if (work.model.attention.latents()) {
    AddLatentProjections(heads, builder);
  } else {
    AddProjections(heads, builder);
  }
  AddCore(heads, layer.window, builder);
  if (work.model.attention.sinks) work.AddParameters(heads.heads);
  work.Add({.name = "out",
            .rows = work.tokens,
            .in = heads.out,
            .out = work.hidden,
            .bias = work.model.attention.out_bias});
  if (outer) {
    work.Keep("output before its norm", KeptUntil::kB, work.own_tokens, work.hidden, kBf16);
  }
  work.Keep("gradient of output", KeptUntil::kFromBToW, work.own_tokens, work.hidden, work.cast);
  work.Keep("middle", KeptUntil::kB, work.own_tokens, work.hidden, kBf16);
  work.Keep("middle, normed", KeptUntil::kW, work.own_tokens, work.hidden, work.cast);
}

void AddDenseMlp(WorkBuilder* builder) {
  WorkBuilder& work = *builder;
  AddResidual(builder);
  if (work.model.norms == 4) {
    AddNorms(builder, "norm", 1);
    work.Keep("MLP's output before its norm", KeptUntil::kB, work.own_tokens, work.hidden, kBf16);
  }
  AddGathers(work.tokens, work.tp, builder);
  AddGatedMlp("", work.tokens, work.model.dense_width / work.tp, 1, WorkKind::kMatmul,
              work.model.mlp_bias, builder);
  work.Keep("gradient of MLP's output", KeptUntil::kFromBToW, work.own_tokens, work.hidden,
            work.cast);
}

void AddRouter(WorkBuilder* builder) {
  WorkBuilder& work = *builder;
  const int64_t experts = work.model.moe.experts;
  work.Add({.name = "router",
            .rows = work.own_tokens,
            .in = work.hidden,
            .out = experts,
            .fp8 = false,
            .bias = work.model.moe.router_bias});
  work.AddMemory("choice of experts", work.own_tokens, experts, 16, 8);
  work.Keep("router's scores", KeptUntil::kB, work.own_tokens, experts, 4);
}

void AddExperts(WorkBuilder* builder) {
  WorkBuilder& work = *builder;
  const MoeDims& moe = work.model.moe;
  const int64_t ep = work.setup.expert_parallel, etp = work.setup.expert_tensor;
  // Tokens are spread evenly: as many rows as those of the devices that split an expert visit.
  const int64_t rows = work.own_tokens * etp * moe.top_k;
  AddResidual(builder);
  AddGathers(rows, etp, builder);
  // Into the order of the experts, and out of it.
  work.AddMemory("rows to experts", rows, work.hidden, 2 * work.cast, 2 * work.cast);
  AddGatedMlp("experts' ", rows, moe.width / etp, moe.experts / ep, WorkKind::kExperts,
              moe.expert_bias, builder);
  work.AddMemory("rows from experts", rows, work.hidden, 2 * kBf16, 2 * kBf16);
  // Rows that come from no other device are made by the half that uses them, as all else in it.
  work.Keep("rows", KeptUntil::kW, rows / etp, work.hidden, work.cast,
            ep > 1 ? std::optional(Value::rows) : std::nullopt);
  work.Keep("gradients of rows from experts", KeptUntil::kFromBToW, rows / etp, work.hidden,
            work.cast);
  if (moe.shared_width > 0) {
    AddGathers(work.tokens, work.tp, builder);
    AddGatedMlp("shared ", work.tokens, moe.shared_width / work.tp, 1, WorkKind::kMatmul, false,
                builder);
    if (moe.shared_gate) work.AddParameters(work.hidden);
    work.Keep("gradient of shared output", KeptUntil::kFromBToW, work.own_tokens, work.hidden,
              work.cast);
  }
}

}  // namespace contraflow
