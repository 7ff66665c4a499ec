#include "runtime/model/gpu_views.h"

#include <string>

#include "compiler/plan/error.h"
#include "kernels/gpu/routing.h"
#include "runtime/model/views.h"

namespace contraflow {
namespace {

/// Limits of the kernels (kernels/gpu_attention.h, gpu_experts.h).
constexpr int kWidestHead = 128, kWidthStep = 8;

}  // namespace

int64_t PlaceGpuValue(const LayerShape& n, Value value, std::byte* base, GpuViews* v) {
  ValueParts parts(base);
  const int d = n.width, f = n.expert_width;
  switch (value) {
    case Value::input:
      parts.Take(n.tokens, d, &v->x);
      break;
    case Value::output:
      parts.Take(n.tokens, d, &v->z);
      break;
    case Value::attention:
      parts.Take(n.tokens, 1, &v->attention_rstd);
      parts.Take(n.tokens, d, &v->attention_xn);
      parts.Take(n.tokens, d, &v->context);
      parts.Take(n.tokens, d, &v->y);
      parts.Take(n.tokens, 1, &v->expert_rstd);
      parts.Take(n.tokens, d, &v->expert_xn);
      break;
    case Value::scores:
      parts.Take(n.tokens, 3 * d, &v->qkv);
      parts.Take(n.tokens, n.heads, &v->lse);
      parts.Take(n.tokens, n.experts, &v->router);
      parts.Take(n.tokens, n.top_k, &v->weight);
      parts.Take(n.tokens, n.top_k, &v->expert);
      parts.Take(n.tokens, n.top_k, &v->row_of);
      parts.Take(n.sent_rows, 1, &v->token_of);
      parts.Take(n.experts + 1, 1, &v->sent);
      break;
    case Value::dispatched:
      parts.Take(n.sent_rows, d, &v->dispatched);
      break;
    case Value::rows:
      parts.Take(n.expert_rows, d, &v->rows);
      parts.Take(n.local_experts + 1, 1, &v->first);
      parts.Take(n.members, n.local_experts, &v->received);
      break;
    case Value::gate:
      parts.Take(n.expert_rows, 2 * f, &v->gate);
      break;
    case Value::hidden:
      parts.Take(n.expert_rows, f, &v->hidden);
      break;
    case Value::expert_out:
      parts.Take(n.expert_rows, d, &v->expert_out);
      break;
    case Value::combined:
      parts.Take(n.sent_rows, d, &v->combined);
      break;
    case Value::head:
      parts.Take(n.tokens, 1, &v->final_rstd);
      parts.Take(n.tokens, d, &v->final_xn);
      parts.Take(n.tokens, n.vocabulary, &v->logits);
      parts.Take(n.tokens, 1, &v->row_loss);
      parts.Take(n.tokens, d, &v->dfinal_xn);
      break;
    case Value::doutput:
      parts.Take(n.tokens, d, &v->dz);
      break;
    case Value::dcombined:
      parts.Take(n.sent_rows, d, &v->dcombined);
      break;
    case Value::dweight:
      parts.Take(n.tokens, n.top_k, &v->dweight);
      break;
    case Value::drows:
      parts.Take(n.expert_rows, d, &v->drows);
      break;
    case Value::dgate:
      parts.Take(n.expert_rows, 2 * f, &v->dgate);
      break;
    case Value::dsorted:
      parts.Take(n.expert_rows, d, &v->dsorted);
      break;
    case Value::ddispatched:
      parts.Take(n.sent_rows, d, &v->ddispatched);
      break;
    case Value::dexpert:
      parts.Take(n.tokens, d, &v->dexpert);
      break;
    case Value::dattention:
      parts.Take(n.tokens, 3 * d, &v->dqkv);
      parts.Take(n.tokens, d, &v->dy);
      parts.Take(n.tokens, d, &v->dattention_xn);
      parts.Take(n.tokens, n.experts, &v->dlogits);
      break;
    case Value::attention_work:
      parts.Take(n.tokens, d, &v->dcontext);
      break;
    case Value::dinput:
      parts.Take(n.tokens, d, &v->dx);
      break;
    case Value::activation:
    case Value::stash:
      break;
  }
  return parts.bytes();
}

ValueBytes BytesOfGpuValues(const LayerShape& shape) {
  ValueBytes bytes{};
  GpuViews nowhere;
  for (size_t v = 0; v < kValueCount; ++v) {
    bytes[v] = PlaceGpuValue(shape, static_cast<Value>(v), nullptr, &nowhere);
  }
  return bytes;
}

MemoryCost GpuFootprintOf(const Model& model, int stages, int layers, int expert_parallel) {
  const Model fitted = FitModel(model, stages, layers, expert_parallel, Hardware::kGpus);
  CheckGpuModel(fitted);
  const LayerShape shape(fitted, expert_parallel, fitted.experts / expert_parallel);
  // Parameters and their copy, gradients, two moments.
  return FootprintWith(fitted, stages, expert_parallel, BytesOfGpuValues(shape),
                       {sizeof(float) + sizeof(gpu::Bf16), sizeof(float), 2 * sizeof(float)});
}

void CheckGpuModel(const Model& model) {
  const auto refuse = [&](const std::string& what) {
    throw Error("model \"" + model.name + "\" is none for a GPU: " + what);
  };
  const auto require_step = [&](const char* field, int width) {
    if (width % kWidthStep == 0) return;
    refuse(std::string(field) + " must be a multiple of " + std::to_string(kWidthStep) + ", is " +
           std::to_string(width));
  };
  require_step("width", model.width);
  require_step("expert_width", model.expert_width);
  require_step("width / heads", model.width / model.heads);
  if (model.width / model.heads > kWidestHead) {
    refuse("width / heads must be at most " + std::to_string(kWidestHead) + ", is " +
           std::to_string(model.width / model.heads) + "; give it more heads");
  }
  if (model.top_k > gpu::kMaxTopK) {
    refuse("top_k must be at most " + std::to_string(gpu::kMaxTopK) + ", is " +
           std::to_string(model.top_k));
  }
  if (model.experts > gpu::kMaxExperts) {
    refuse("experts must be at most " + std::to_string(gpu::kMaxExperts) + ", is " +
           std::to_string(model.experts));
  }
}

}  // namespace contraflow
