#include "runtime/model/parameters.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "compiler/plan/error.h"
#include "kernels/host/random.h"

namespace contraflow {
namespace {

// Identifies a block inside its layer for the random numbers; of an expert, `member` tells which.
enum Kind : uint64_t { kEmbedding, kNorm, kQkv, kOutput, kRouter, kGateUp, kDown, kHead };

// The embedding is the residual stream the norms see first; the head starts near zero, so that
// every byte is about equally likely at first and the loss is ln(vocabulary).
constexpr double kEmbeddingDeviation = 0.5;
constexpr double kHeadGain = 0.1;

}  // namespace

ParameterLayout LayoutOfStage(const Model& model, int stage, int stages, ExpertRange owned) {
  CF_ASSERT(0 <= owned.first && owned.first <= owned.last && owned.last <= model.experts);
  const size_t d = static_cast<size_t>(model.width), f = static_cast<size_t>(model.expert_width);
  const size_t vocabulary = static_cast<size_t>(model.vocabulary);
  const double by_width = 1 / std::sqrt(static_cast<double>(d));
  // Additions to the residual stream start small, so that their sum over the layers does not grow.
  const double branch = 1 / std::sqrt(2.0 * model.layers);
  const LayerRange range = LayersOfStage(model, stage, stages);

  ParameterLayout layout;
  layout.layers.resize(static_cast<size_t>(range.last - range.first));
  const auto add = [&](Kind kind, int layer, int member, const std::string& name, size_t size,
                       double deviation) {
    const bool inside = layer < model.layers && kind != kEmbedding;
    const std::string prefix = inside ? "layer " + std::to_string(layer) + " " : "";
    layout.blocks.push_back({prefix + name, layout.size, size, kind, layer, member, deviation});
    return std::exchange(layout.size, layout.size + size);
  };
  const auto each_layer = [&](const auto& visit) {
    for (int layer = range.first; layer < range.last; ++layer) {
      visit(layer, layout.layers[static_cast<size_t>(layer - range.first)]);
    }
  };
  each_layer([&](int layer, LayerOffsets& at) {
    at.attention_norm = add(kNorm, layer, 0, "attention_norm", d, 0);
    at.expert_norm = add(kNorm, layer, 1, "expert_norm", d, 0);
  });
  if (stage == stages - 1) layout.final_norm = add(kNorm, model.layers, 0, "final_norm", d, 0);
  layout.gains = layout.size;
  if (stage == 0) {
    layout.embedding = add(kEmbedding, 0, 0, "embedding", vocabulary * d, kEmbeddingDeviation);
  }
  each_layer([&](int layer, LayerOffsets& at) {
    at.qkv = add(kQkv, layer, 0, "qkv", d * 3 * d, by_width);
    at.output = add(kOutput, layer, 0, "output", d * d, by_width * branch);
    const auto experts = static_cast<size_t>(model.experts);
    at.router = add(kRouter, layer, 0, "router", d * experts, by_width);
  });
  if (stage == stages - 1) {
    layout.head = add(kHead, model.layers, 0, "head", d * vocabulary, kHeadGain * by_width);
  }
  layout.dense = layout.size;
  each_layer([&](int layer, LayerOffsets& at) {
    const auto add_experts = [&](Kind kind, const char* name, size_t size, double deviation) {
      const size_t first = layout.size - layout.dense;
      for (int e = owned.first; e < owned.last; ++e) {
        add(kind, layer, e, "expert " + std::to_string(e) + " " + name, size, deviation);
      }
      return first;
    };
    at.gate_up = add_experts(kGateUp, "gate_up", d * 2 * f, by_width);
    at.down = add_experts(kDown, "down", f * d, branch / std::sqrt(static_cast<double>(f)));
  });
  return layout;
}

ParameterDraw DrawOf(const ParameterBlock& block, uint64_t seed) {
  uint64_t key = DeriveKey(seed, static_cast<uint64_t>(block.layer));
  key = DeriveKey(key, block.kind);
  key = DeriveKey(key, static_cast<uint64_t>(block.member));
  // A uniform distribution on [-a, a) has the deviation a / sqrt(3).
  return {key, static_cast<float>(block.deviation * std::sqrt(3.0))};
}

template <typename T>
void DrawParameters(const ParameterLayout& layout, uint64_t seed, T* parameters) {
  for (const ParameterBlock& block : layout.blocks) {
    T* const first = parameters + block.offset;
    if (block.deviation == 0) {
      std::fill_n(first, block.size, T{1});
      continue;
    }
    const ParameterDraw draw = DrawOf(block, seed);
    FillUniform(draw.key, draw.limit, block.size, first);
  }
}

template void DrawParameters(const ParameterLayout&, uint64_t, float*);
template void DrawParameters(const ParameterLayout&, uint64_t, double*);

}  // namespace contraflow
