#include "runtime/model/parameters.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/host/random.h"

namespace contraflow {
namespace {

// Identifies a block inside its layer for the random numbers; of an expert, `member` tells which.
enum class Block : uint64_t { kEmbedding, kNorm, kQkv, kOutput, kRouter, kGateUp, kDown, kHead };

// The embedding is the residual stream the norms see first; the head starts near zero, so that
// every byte is about equally likely at first and the loss is ln(vocabulary).
constexpr double kEmbeddingDeviation = 0.5;
constexpr double kHeadGain = 0.1;

struct Planned {
  Block block;
  int layer, member;
  std::string name;
  size_t size;
  double deviation;  // 0: a norm, which starts at 1
};

// Every block of the stage, in the order in which it lies in memory.
std::vector<Planned> PlanBlocks(const Model& model, int stage, int stages, ExpertRange owned) {
  const size_t d = static_cast<size_t>(model.width), f = static_cast<size_t>(model.expert_width);
  const size_t vocabulary = static_cast<size_t>(model.vocabulary);
  const size_t experts = static_cast<size_t>(model.experts);
  const double by_width = 1 / std::sqrt(static_cast<double>(d));
  // What is added to the residual stream starts small, so that its sum over the layers does not
  // grow.
  const double branch = 1 / std::sqrt(2.0 * model.layers);
  const LayerRange range = LayersOfStage(model, stage, stages);

  std::vector<Planned> plan;
  const auto add = [&](Block block, int layer, int member, const std::string& name, size_t size,
                       double deviation) {
    const std::string prefix =
        layer < model.layers ? "layer " + std::to_string(layer) + " " : std::string();
    plan.push_back({block, layer, member, prefix + name, size, deviation});
  };
  const auto add_experts = [&](Block block, int layer, const char* name, size_t size,
                               double deviation) {
    for (int e = owned.first; e < owned.last; ++e) {
      add(block, layer, e, "expert " + std::to_string(e) + " " + name, size, deviation);
    }
  };
  if (stage == 0) {
    plan.push_back({Block::kEmbedding, 0, 0, "embedding", vocabulary * d, kEmbeddingDeviation});
  }
  for (int layer = range.first; layer < range.last; ++layer) {
    add(Block::kNorm, layer, 0, "attention_norm", d, 0);
    add(Block::kQkv, layer, 0, "qkv", d * 3 * d, by_width);
    add(Block::kOutput, layer, 0, "output", d * d, by_width * branch);
    add(Block::kNorm, layer, 1, "expert_norm", d, 0);
    add(Block::kRouter, layer, 0, "router", d * experts, by_width);
  }
  if (stage == stages - 1) {
    add(Block::kNorm, model.layers, 0, "final_norm", d, 0);
    add(Block::kHead, model.layers, 0, "head", d * vocabulary, kHeadGain * by_width);
  }
  for (int layer = range.first; layer < range.last; ++layer) {
    add_experts(Block::kGateUp, layer, "gate_up", d * 2 * f, by_width);
    add_experts(Block::kDown, layer, "down", f * d, branch / std::sqrt(static_cast<double>(f)));
  }
  return plan;
}

}  // namespace

ParameterLayout LayoutOfStage(const Model& model, int stage, int stages, ExpertRange experts) {
  const LayerRange range = LayersOfStage(model, stage, stages);
  ParameterLayout layout;
  layout.layers.resize(static_cast<size_t>(range.last - range.first));
  for (Planned& planned : PlanBlocks(model, stage, stages, experts)) {
    const bool of_layer = planned.layer < model.layers && planned.block != Block::kEmbedding;
    LayerOffsets* layer =
        of_layer ? &layout.layers[static_cast<size_t>(planned.layer - range.first)] : nullptr;
    const size_t at = layout.size;
    switch (planned.block) {
      case Block::kEmbedding:
        layout.embedding = at;
        break;
      case Block::kNorm:
        (!of_layer             ? layout.final_norm
         : planned.member == 0 ? layer->attention_norm
                               : layer->expert_norm) = at;
        break;
      case Block::kQkv:
        layer->qkv = at;
        break;
      case Block::kOutput:
        layer->output = at;
        break;
      case Block::kRouter:
        layer->router = at;
        break;
      case Block::kGateUp:
        if (planned.member == experts.first) layer->gate_up = at - layout.dense;
        break;
      case Block::kDown:
        if (planned.member == experts.first) layer->down = at - layout.dense;
        break;
      case Block::kHead:
        layout.head = at;
        break;
    }
    layout.size += planned.size;
    if (planned.block != Block::kGateUp && planned.block != Block::kDown) {
      layout.dense = layout.size;
    }
    layout.blocks.push_back({std::move(planned.name), at, planned.size});
  }
  return layout;
}

template <typename T>
void DrawParameters(const Model& model, int stage, int stages, ExpertRange experts, uint64_t seed,
                    T* parameters) {
  for (const Planned& planned : PlanBlocks(model, stage, stages, experts)) {
    if (planned.deviation == 0) {
      std::fill_n(parameters, planned.size, T{1});
    } else {
      uint64_t key = DeriveKey(seed, static_cast<uint64_t>(planned.layer));
      key = DeriveKey(key, static_cast<uint64_t>(planned.block));
      key = DeriveKey(key, static_cast<uint64_t>(planned.member));
      // A uniform distribution on [-a, a) has the deviation a / sqrt(3).
      const double limit = planned.deviation * std::sqrt(3.0);
      FillUniform(key, static_cast<float>(limit), planned.size, parameters);
    }
    parameters += planned.size;
  }
}

template void DrawParameters(const Model&, int, int, ExpertRange, uint64_t, float*);
template void DrawParameters(const Model&, int, int, ExpertRange, uint64_t, double*);

}  // namespace contraflow
