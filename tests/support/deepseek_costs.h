#pragma once

#include "compiler/plan/spec.h"

namespace contraflow {

/// Measurements of DeepSeek (tools/profiles/deepseek-v3-h800.json), in microseconds.
inline MoeCost DeepSeek(int layers) {
  return {.layers_per_stage = layers,
          .attn_f = {4599},
          .dispatch_f = {6738},
          .mlp_f = {4641},
          .combine_f = {8696},
          .combine_b = {5784},
          .mlp_b = {5363},
          .dispatch_b = {7558},
          .attn_b = {9540},
          .mlp_w = {5073},
          .attn_w = {2396}};
}

}  // namespace contraflow
