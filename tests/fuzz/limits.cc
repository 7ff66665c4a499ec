// Any bytes are a file of limits or an Error. A plan's own limits go before those of all.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "compiler/plan/error.h"
#include "tools/report/guard.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace contraflow;
  LimitsFile file;
  try {
    file = ReadLimits({reinterpret_cast<const char*>(data), size}, "input");
  } catch (const Error&) {
    return 0;
  }
  CF_ASSERT(file.Of("").count() >= file.all.count());
  for (const auto& [plan, limits] : file.plans) {
    CF_ASSERT(file.Of(plan).count() >= std::max(limits.count(), file.all.count()));
  }
  return 0;
}
