#include "runtime/parameters.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/random.h"

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
std::vector<Planned> PlanBlocks(const Model& model, int stage, int stages) {
  const size_t d = static_cast<size_t>(model.width), f = static_cast<size_t>(model.expert_width);
  const size_t vocabulary = static_cast<size_t>(model.vocabulary);
  const size_t experts = static_cast<size_t>(model.experts);
  const double by_width = 1 / std::sqrt(static_cast<double>(d));
  // What is added to the residual stream starts small, so that its sum over the layers does not
  // grow.
  const double branch = 1 / std::sqrt(2.0 * model.layers);
  const LayerRange range = LayersOfStage(model, stage, stages);

  std::vector<Planned> plan;
  if (stage == 0) {
    plan.push_back({Block::kEmbedding, 0, 0, "embedding", vocabulary * d, kEmbeddingDeviation});
  }
  for (int layer = range.first; layer < range.last; ++layer) {
    const std::string prefix = "layer " + std::to_string(layer) + " ";
    const auto add = [&](Block block, int member, const std::string& name, size_t size,
                         double deviation) {
      plan.push_back({block, layer, member, prefix + name, size, deviation});
    };
    const auto add_experts = [&](Block block, const char* name, size_t size, double deviation) {
      for (int e = 0; e < model.experts; ++e) {
        add(block, e, "expert " + std::to_string(e) + " " + name, size, deviation);
      }
    };
    add(Block::kNorm, 0, "attention_norm", d, 0);
    add(Block::kQkv, 0, "qkv", d * 3 * d, by_width);
    add(Block::kOutput, 0, "output", d * d, by_width * branch);
    add(Block::kNorm, 1, "expert_norm", d, 0);
    add(Block::kRouter, 0, "router", d * experts, by_width);
    add_experts(Block::kGateUp, "gate_up", d * 2 * f, by_width);
    add_experts(Block::kDown, "down", f * d, branch / std::sqrt(static_cast<double>(f)));
  }
  if (stage == stages - 1) {
    plan.push_back({Block::kNorm, model.layers, 0, "final_norm", d, 0});
    plan.push_back({Block::kHead, model.layers, 0, "head", d * vocabulary, kHeadGain * by_width});
  }
  return plan;
}

}  // namespace

ParameterLayout LayoutOfStage(const Model& model, int stage, int stages) {
  ParameterLayout layout;
  for (Planned& planned : PlanBlocks(model, stage, stages)) {
    const size_t at = layout.size;
    switch (planned.block) {
      case Block::kEmbedding:
        layout.embedding = at;
        break;
      case Block::kNorm:
        if (planned.layer == model.layers) {
          layout.final_norm = at;
        } else if (planned.member == 0) {
          layout.layers.push_back({});
          layout.layers.back().attention_norm = at;
        } else {
          layout.layers.back().expert_norm = at;
        }
        break;
      case Block::kQkv:
        layout.layers.back().qkv = at;
        break;
      case Block::kOutput:
        layout.layers.back().output = at;
        break;
      case Block::kRouter:
        layout.layers.back().router = at;
        break;
      case Block::kGateUp:
        if (planned.member == 0) layout.layers.back().gate_up = at;
        break;
      case Block::kDown:
        if (planned.member == 0) layout.layers.back().down = at;
        break;
      case Block::kHead:
        layout.head = at;
        break;
    }
    layout.size += planned.size;
    layout.blocks.push_back({std::move(planned.name), at, planned.size});
  }
  return layout;
}

template <typename T>
void DrawParameters(const Model& model, int stage, int stages, uint64_t seed, T* parameters) {
  for (const Planned& planned : PlanBlocks(model, stage, stages)) {
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

template void DrawParameters(const Model&, int, int, uint64_t, float*);
template void DrawParameters(const Model&, int, int, uint64_t, double*);

}  // namespace contraflow
