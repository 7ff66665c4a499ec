// Any bytes are costs or an Error, and costs survive writing.

#include <cstddef>
#include <cstdint>
#include <string>

#include "compiler/files/cost_io.h"
#include "compiler/plan/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  contraflow::CostModel costs;
  try {
    costs = contraflow::ReadCosts({reinterpret_cast<const char*>(data), size}, "input");
  } catch (const contraflow::Error&) {
    return 0;
  }
  const std::string text = contraflow::WriteCosts(costs);
  const contraflow::CostModel again = contraflow::ReadCosts(text, "again");
  CF_ASSERT(again == costs);
  CF_ASSERT(contraflow::WriteCosts(again) == text);
  return 0;
}
