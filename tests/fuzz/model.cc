// Any bytes are a model file or an Error. A model survives writing; fitted to the stages of a plan,
// every stage has layers of it.

#include "runtime/model/model.h"

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "compiler/files/json.h"
#include "compiler/plan/error.h"
#include "runtime/model/model_json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace contraflow;
  Model model;
  try {
    model = ModelFromJson(ParseJson({reinterpret_cast<const char*>(data), size}, "input").Root());
    CheckModel(model, "input");
  } catch (const Error&) {
    return 0;
  }
  std::string text;
  WriteJson(ModelToJson(model), &text);
  CF_ASSERT(ModelFromJson(ParseJson(text, "again").Root()) == model);
  for (const int stages : {1, 3, 8}) {
    try {
      const Model fitted = FitModel(model, stages);
      int layers = 0;
      for (int stage = 0; stage < stages; ++stage) {
        const LayerRange range = LayersOfStage(fitted, stage, stages);
        CF_ASSERT(range.first == layers && range.last > layers);
        layers = range.last;
      }
      CF_ASSERT(layers == fitted.layers);
    } catch (const Error&) {
      continue;
    }
  }
  return 0;
}
