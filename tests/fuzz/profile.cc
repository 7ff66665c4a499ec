// Any bytes, packed or not, are a profile or an Error, in the form that they look like and in every
// other. Costs that are made of one are a cost file.

#include "tools/profile/profile.h"

#include <cstddef>
#include <cstdint>
#include <string>

#include "compiler/files/cost_io.h"
#include "compiler/plan/error.h"
#include "tools/profile/gzip.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace contraflow;
  std::string text(reinterpret_cast<const char*>(data), size);
  try {
    if (IsGzip(text)) text = Gunzip(text, 1 << 20, "input");
  } catch (const Error&) {
    return 0;
  }
  for (int form = -1; form < 5; ++form) {
    ProfileOptions options;
    if (form >= 0) options.from = static_cast<ProfileForm>(form);
    options.log = {.ranks = 0, .chunks = 2, .microbatches = 4};
    ProfiledCosts profile;
    try {
      profile = CostsOfSamples({ReadProfileText(text, "input", options)}, options);
    } catch (const Error&) {
      continue;
    }
    CF_ASSERT(!ProfileText(profile).empty());
    const CostModel costs = ReadCosts(WriteCosts(profile.costs), "again");
    CF_ASSERT(costs == profile.costs);
  }
  return 0;
}
