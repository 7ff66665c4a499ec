#pragma once

#include "tools/planner/configuration.h"

namespace contraflow::planner_test {

inline PlanRequest SmallDense(int gpus) {
  PlanRequest request;
  LayerShape layer;
  layer.attention = {.heads = 16, .kv_heads = 4, .head_dim = 64, .value_dim = 64};
  layer.dense_width = 4096;
  request.model.model_type = "small";
  request.model.hidden = 1024;
  request.model.vocabulary = 32000;
  request.model.layers.assign(8, layer);
  request.gpu = FindGpu("h100");
  request.gpus = gpus;
  request.global_batch = 96;
  request.sequence = 1024;
  request.budget = 1'000'000'000;
  return request;
}

/// The same with 8 experts in each layer.
inline PlanRequest SmallMoe(int gpus) {
  PlanRequest request = SmallDense(gpus);
  for (LayerShape& layer : request.model.layers) {
    layer.dense_width = 0;
    layer.moe = {.experts = 8, .top_k = 2, .width = 1024};
  }
  return request;
}

}  // namespace contraflow::planner_test
