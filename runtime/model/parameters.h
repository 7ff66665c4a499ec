#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/model/model.h"

namespace contraflow {

/// A named block of a stage's parameters, for messages and checks: "layer 3 router" [d x experts].
struct ParameterBlock {
  std::string name;
  size_t offset, size;
  // Kind of draw of its initial values.
  uint64_t kind;
  int layer, member;
  double deviation;  ///< 0: the gains of a norm, which start at 1
};

/// Experts [first, last), numbered as in the whole model.
struct ExpertRange {
  int first, last;
};
/// Experts of a member of an expert group whose members have this many each.
inline ExpertRange OwnedBy(int member, int each) { return {member * each, (member + 1) * each}; }

/// Start of the parameters of one layer: the first five in the flat block of its stage, those of
/// the experts after `dense`.
struct LayerOffsets {
  size_t attention_norm;  ///< [d]
  size_t qkv;             ///< [d x 3d]
  size_t output;          ///< [d x d]
  size_t expert_norm;     ///< [d]
  size_t router;          ///< [d x experts]
  size_t gate_up;         ///< [owned experts x d x 2 expert_width]
  size_t down;            ///< [owned experts x expert_width x d]
};

/// How the parameters of a stage lie in its one flat block, without gaps: what every device of an
/// expert group has alike (the gains of all norms, which do not decay; embedding of stage 0,
/// layers, head of the last stage), then the experts it owns, layer by layer. Gradients and
/// optimizer state have the same layout.
struct ParameterLayout {
  size_t size = 0;
  size_t gains = 0;                    ///< the matrices begin here
  size_t dense = 0;                    ///< the experts begin here
  std::vector<ParameterBlock> blocks;  ///< ascending, covering [0, size)
  size_t embedding = 0;                ///< [vocabulary x d], stage 0 only
  std::vector<LayerOffsets> layers;
  size_t final_norm = 0;  ///< [d], last stage only
  size_t head = 0;        ///< [d x vocabulary], last stage only
};

ParameterLayout LayoutOfStage(const Model& model, int stage, int stages, ExpertRange experts);

/// The arguments of FillUniform for the initial values of a block; of one that is no norm's.
struct ParameterDraw {
  uint64_t key;
  float limit;
};
ParameterDraw DrawOf(const ParameterBlock& block, uint64_t seed);

/// The initial weights: norms 1, every matrix uniform with a deviation that suits its place, drawn
/// from (seed, global layer, block) alone, so that no partition of the model changes them.
template <typename T>
void DrawParameters(const ParameterLayout& layout, uint64_t seed, T* parameters);

}  // namespace contraflow
