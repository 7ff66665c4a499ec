#include <optional>

#include "tools/profile/layer_work.h"
#include "tools/profile/work_builder.h"

namespace contraflow {
namespace {

void AddNorms(WorkBuilder* builder, const char* name, int64_t norms) {
  // Read and write; backward, the gradient that passes by is added.
  builder->AddMemory(name, builder->own_tokens, builder->hidden, norms * 2 * kBf16,
                     norms * 4 * kBf16);
  builder->AddParameters(norms * (builder->model.norm_bias ? 2 : 1), builder->hidden);
}

void AddResidual(WorkBuilder* builder) {
  builder->AddMemory("residual", builder->own_tokens, builder->hidden, 3 * kBf16, 0);
}

/// Gate, up and down of `rows` rows, `width` columns on this device; without a gate, up and down.
void AddMlp(const std::string& name, int64_t rows, int64_t outer, int64_t width, int64_t matrices,
            WorkKind kind, bool bias, WorkBuilder* builder) {
  WorkBuilder& work = *builder;
  const bool dispatched = kind == WorkKind::kExperts;  // rows and gradients come in fp8
  const bool gated = work.layer.gated_mlp;
  const std::string up = name + (gated ? "gate, up" : "up");
  const int64_t columns = gated ? 2 * width : width;
  work.Add({.name = up,
            .rows = rows,
            .in = outer,
            .out = columns,
            .kind = kind,
            .matrices = matrices,
            .bias = bias,
            .cast_in = !dispatched});
  if (gated) {
    work.AddMemory(name + "gated activation", rows, width, 3 * kBf16, 5 * kBf16);
  } else {
    work.AddMemory(name + "activation", rows, width, 2 * kBf16, 3 * kBf16);
  }
  work.Add({.name = name + "down",
            .rows = rows,
            .in = width,
            .out = outer,
            .kind = kind,
            .matrices = matrices,
            .bias = bias,
            .cast_out = !dispatched});
  work.Keep(up, KeptUntil::kB, rows, columns, kBf16);
  if (work.setup.activations == Activations::kTorch) {
    if (gated) work.Keep(name + "activation of gate", KeptUntil::kB, rows, width, kBf16);
    // The gradient of the router's weights needs them.
    if (kind == WorkKind::kExperts) work.Keep(name + "output", KeptUntil::kB, rows, outer, kBf16);
  }
  work.Keep(name + "hidden", KeptUntil::kW, rows, width, work.cast);
  work.Keep("gradients of " + up, KeptUntil::kFromBToW, rows, columns, work.cast);
}

/// Streams that are mixed to the input of a half, and its output to them; with hyper-connections
/// by weights from the streams (arXiv 2512.24880, section 4).
void AddStreams(WorkBuilder* builder) {
  WorkBuilder& work = *builder;
  const int64_t n = work.model.streams;
  if (n == 1) return;
  work.AddMemory("streams", work.own_tokens, work.hidden, (3 * n + 2) * kBf16,
                 2 * (3 * n + 2) * kBf16);
  work.Keep("input of streams", KeptUntil::kB, work.own_tokens, work.hidden, kBf16);
  if (!work.model.hyper_connections) return;
  const int64_t weights = n * (n + 2);
  work.Add({.name = "weights of streams",
            .rows = work.own_tokens,
            .in = n * work.hidden,
            .out = weights,
            .fp8 = false});
  work.AddParameters(weights + 3);
}

/// Norms of a layer that belong to its first half.
int64_t FirstNorms(const LayerShape& layer) { return layer.norms > 2 ? 3 : layer.norms; }

}  // namespace

void AddGathers(int64_t rows, int64_t devices, WorkBuilder* builder) {
  builder->AddGather(rows, devices, 2, 2, 1);
}

void AddBegin(WorkBuilder* builder) {
  WorkBuilder& work = *builder;
  AddNorms(builder, "norms", FirstNorms(work.layer));
  AddResidual(builder);
  if (work.layer.mixes()) AddGathers(work.tokens, work.tp, builder);
  work.Keep("input", KeptUntil::kB, work.own_tokens, work.model.streams * work.hidden, kBf16,
            Value::input);
  work.Keep("input, normed", KeptUntil::kW, work.own_tokens, work.hidden, work.cast);
  AddStreams(builder);
  work.AddParameters(work.layer.scales);
  if (const int64_t width = work.layer.bottleneck; width > 0) {
    work.Add({.name = "to bottleneck", .rows = work.own_tokens, .in = work.hidden, .out = width});
    work.Add({.name = "from bottleneck", .rows = work.own_tokens, .in = width, .out = work.hidden});
    work.Keep("bottleneck", KeptUntil::kW, work.own_tokens, 2 * width, work.cast);
  }
}

void AddSecondHalf(WorkBuilder* builder) {
  WorkBuilder& work = *builder;
  AddResidual(builder);
  if (const int64_t norms = work.layer.norms - FirstNorms(work.layer); norms > 0) {
    AddNorms(builder, "norm", norms);
    work.Keep("MLP's output before its norm", KeptUntil::kB, work.own_tokens, work.hidden, kBf16);
  }
  AddStreams(builder);
}

void AddMiddle(WorkBuilder* builder) {
  WorkBuilder& work = *builder;
  if (work.layer.norms > 2) {
    work.Keep("output before its norm", KeptUntil::kB, work.own_tokens, work.hidden, kBf16);
  }
  work.Keep("gradient of output", KeptUntil::kFromBToW, work.own_tokens, work.hidden, work.cast);
  if (!work.layer.has_mlp()) return;
  work.Keep("middle", KeptUntil::kB, work.own_tokens, work.model.streams * work.hidden, kBf16);
  work.Keep("middle, normed", KeptUntil::kW, work.own_tokens, work.hidden, work.cast);
}

void AddDenseMlp(WorkBuilder* builder) {
  WorkBuilder& work = *builder;
  AddGathers(work.tokens, work.tp, builder);
  AddMlp("", work.tokens, work.hidden, work.layer.dense_width / work.tp, 1, WorkKind::kMatmul,
         work.layer.mlp_bias, builder);
  work.Keep("gradient of MLP's output", KeptUntil::kFromBToW, work.own_tokens, work.hidden,
            work.cast);
}

int64_t OuterWidth(const WorkBuilder& work) {
  return work.layer.moe.latent > 0 ? work.layer.moe.latent : work.hidden;
}

void AddRouter(WorkBuilder* builder) {
  WorkBuilder& work = *builder;
  const int64_t experts = work.layer.moe.experts;
  work.Add({.name = "router",
            .rows = work.own_tokens,
            .in = work.hidden,
            .out = experts,
            .fp8 = false,
            .bias = work.layer.moe.router_bias});
  work.AddMemory("choice of experts", work.own_tokens, experts, 16, 8);
  work.Keep("router's scores", KeptUntil::kB, work.own_tokens, experts, 4);
}

void AddExperts(WorkBuilder* builder) {
  WorkBuilder& work = *builder;
  const MoeDims& moe = work.layer.moe;
  const int64_t ep = work.setup.expert_parallel, etp = work.setup.expert_tensor;
  // Tokens are spread evenly: as many rows as those of the devices that split an expert visit.
  const int64_t rows = work.own_tokens * etp * moe.top_k;
  const int64_t outer = OuterWidth(work);
  if (moe.latent > 0) {
    work.Add({.name = "to latents", .rows = work.own_tokens, .in = work.hidden, .out = outer});
    work.Add({.name = "from latents", .rows = work.own_tokens, .in = outer, .out = work.hidden});
    work.Keep("latents", KeptUntil::kW, work.own_tokens, outer, work.cast);
  }
  AddGathers(rows, etp, builder);
  // Into the order of the experts, and out of it.
  work.AddMemory("rows to experts", rows, outer, 2 * work.cast, 2 * work.cast);
  AddMlp("experts' ", rows, outer, moe.width / etp, moe.experts / ep, WorkKind::kExperts,
         moe.expert_bias, builder);
  work.AddMemory("rows from experts", rows, outer, 2 * kBf16, 2 * kBf16);
  // Rows that come from no other device are made by the half that uses them, as all else in it.
  work.Keep("rows", KeptUntil::kW, rows / etp, outer, work.cast,
            ep > 1 ? std::optional(Value::rows) : std::nullopt);
  work.Keep("gradients of rows from experts", KeptUntil::kFromBToW, rows / etp, outer, work.cast);
  if (moe.shared_width > 0) {
    AddGathers(work.tokens, work.tp, builder);
    AddMlp("shared ", work.tokens, work.hidden, moe.shared_width / work.tp, 1, WorkKind::kMatmul,
           false, builder);
    if (moe.shared_gate) work.AddParameters(work.hidden);
    work.Keep("gradient of shared output", KeptUntil::kFromBToW, work.own_tokens, work.hidden,
              work.cast);
  }
}

}  // namespace contraflow
