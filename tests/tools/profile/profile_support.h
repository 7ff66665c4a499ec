#pragma once

#include <string>

#include "compiler/files/cost_io.h"
#include "compiler/files/file.h"
#include "tests/support/failure.h"
#include "tools/profile/hf_config.h"
#include "tools/profile/layer_costs.h"
#include "tools/profile/profile.h"

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

/// Setup of DeepSeek's training: its matmuls have scales of 1 x 128, and communication takes SMs
/// from them.
inline CostSetup DeepSeekSetup() {
  CostSetup setup = SetupOn("h800");
  setup.expert_parallel = 64;
  setup.fp8 = true;
  setup.efficiency = DefaultEfficiencies(true);
  ParseEfficiencies("matmul=0.35,attention=0.34", &setup.efficiency);
  return setup;
}

/// A profile that ships.
inline CostModel ShippedProfile(const char* name) {
  return ReadCostFile(CF_TEST_DIR "/../tools/profiles/" + std::string(name) + ".json");
}

/// The first layer of this name.
inline const LayerEstimate& LayerNamed(const ModelCosts& costs, const std::string& name) {
  for (const LayerEstimate& layer : costs.layers) {
    if (layer.name == name) return layer;
  }
  throw Error("no layer " + name);
}

/// Costs of a profile "p" of this text.
inline ProfiledCosts CostsOfText(const std::string& text, const ProfileOptions& options = {}) {
  return CostsOfSamples({ReadProfileText(text, "p", options)}, options);
}

/// Why it does not.
inline std::string FailureOf(const std::string& text, const ProfileOptions& options = {}) {
  return Failure([&] { CostsOfText(text, options); });
}

inline bool HasNote(const ProfiledCosts& profile, const std::string& part) {
  for (const std::string& note : profile.notes) {
    if (Contains(note, part)) return true;
  }
  return false;
}

}  // namespace contraflow
