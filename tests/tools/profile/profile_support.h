#pragma once

#include <string>

#include "compiler/files/file.h"
#include "tools/profile/hf_config.h"
#include "tools/profile/layer_costs.h"

namespace contraflow {

/// A published configuration, "llama-3.1-8b".
inline ModelShape PublishedModel(const std::string& name) {
  const std::string path = CF_TEST_DIR "/tools/profile/configs/" + name + ".json";
  return ReadHfConfig(ReadFile(path, kMaxHfConfigBytes), path);
}

inline CostSetup SetupOn(const char* gpu) {
  CostSetup setup;
  setup.gpu = &FindGpu(gpu);
  return setup;
}

/// The first layer of this name.
inline const LayerEstimate& LayerNamed(const ModelCosts& costs, const std::string& name) {
  for (const LayerEstimate& layer : costs.layers) {
    if (layer.name == name) return layer;
  }
  throw Error("no layer " + name);
}

}  // namespace contraflow
