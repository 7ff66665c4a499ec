// Any bytes are a model's config.json or an Error. What is read has costs by layer, or these an
// Error, and what is written of them is a cost file.

#include "tools/profile/hf_config.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "compiler/files/cost_io.h"
#include "compiler/plan/error.h"
#include "compiler/plan/layer_cost.h"
#include "tools/profile/costs_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace contraflow;
  ModelShape model;
  try {
    model = ReadHfConfig({reinterpret_cast<const char*>(data), size}, "input");
  } catch (const Error&) {
    return 0;
  }
  CF_ASSERT(ParametersOf(model).model > 0);
  for (const int64_t parts : {1, 2, 16}) {
    CostSetup setup;
    setup.gpu = &FindGpu("h800");
    setup.tensor_parallel = parts;
    setup.expert_parallel = model.moe.experts > 0 ? parts : 1;
    setup.fp8 = parts == 2;
    std::string text;
    try {
      text = WriteCostsByLayer(model, setup, CostsOf(model, setup));
    } catch (const Error&) {
      continue;
    }
    const CostModel costs = ReadCosts(text, "costs");
    CF_ASSERT(costs.LayerCount() >= static_cast<int>(model.layers.size()) + 2);
  }
  return 0;
}
