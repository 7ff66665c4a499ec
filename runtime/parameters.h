#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/model.h"

namespace contraflow {

/// A named block of a stage's parameters, for messages and checks: "layer 3 router" [d x experts].
struct ParameterBlock {
  std::string name;
  size_t offset, size;
};

/// Where the parameters of one layer begin in the flat block of its stage.
struct LayerOffsets {
  size_t attention_norm;  ///< [d]
  size_t qkv;             ///< [d x 3d]
  size_t output;          ///< [d x d]
  size_t expert_norm;     ///< [d]
  size_t router;          ///< [d x experts]
  size_t gate_up;         ///< [experts x d x 2 expert_width]
  size_t down;            ///< [experts x expert_width x d]
};

/// How the parameters of a stage lie in its one flat block: embedding (stage 0), layers, final norm
/// and head (last stage), without gaps. Gradients and optimizer state have the same layout.
struct ParameterLayout {
  size_t size = 0;
  std::vector<ParameterBlock> blocks;  ///< ascending, covering [0, size)
  size_t embedding = 0;                ///< [vocabulary x d], stage 0 only
  std::vector<LayerOffsets> layers;
  size_t final_norm = 0;  ///< [d], last stage only
  size_t head = 0;        ///< [d x vocabulary], last stage only
};

ParameterLayout LayoutOfStage(const Model& model, int stage, int stages);

/// The initial weights: norms 1, every matrix uniform with a deviation that suits its place, drawn
/// from (seed, global layer, block) alone, so that no partition of the model changes them.
template <typename T>
void DrawParameters(const Model& model, int stage, int stages, uint64_t seed, T* parameters);

}  // namespace contraflow
