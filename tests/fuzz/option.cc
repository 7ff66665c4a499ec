// Any text is the value of an option or an Error, for every option with a language of its own. What
// stages, layouts and marks are read survives writing.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "compiler/plan/error.h"
#include "compiler/plan/mark.h"
#include "compiler/plan/spec.h"
#include "compiler/plan/text.h"
#include "compiler/plan/units.h"
#include "compiler/plan/value.h"
#include "runtime/launch/world.h"
#include "schedules/partition/layer_layout.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"
#include "tools/cli/spec_options.h"
#include "tools/interop/interop.h"
#include "tools/interop/stage_layers.h"
#include "tools/profile/setup.h"

namespace contraflow {
namespace {

/// What `read` returns, nothing if it throws Error.
template <typename Read>
auto Accepted(Read read) -> std::optional<decltype(read())> {
  try {
    return read();
  } catch (const Error&) {
    return std::nullopt;
  } catch (const UsageError&) {
    return std::nullopt;
  }
}

/// A plan of four stages, of which layers may be asked.
const Plan& FourStages() {
  static const Plan plan = [] {
    Plan four;
    four.ranks = four.stages = four.microbatches = 4;
    return four;
  }();
  return plan;
}

void Check(const std::string& text) {
  if (const auto layout = Accepted([&] { return ParseLayerLayout(text); })) {
    CF_ASSERT(ParseLayerLayout(FormatLayerLayout(*layout)) == *layout);
    CF_ASSERT(FlawOf(*layout, 4).size() < 1000);
  }
  if (const auto layers =
          Accepted([&] { return LayersOfStages(FourStages(), text, UnknownLayers::kRefuse); })) {
    CF_ASSERT(layers->size() == 4);
  }
  if (const auto choice = Accepted([&] { return ParsePartition(text); });
      choice && choice->kind == PartitionChoice::Kind::kList) {
    CF_ASSERT(ParsePartition(FormatPartition(choice->layers)) == *choice);
  }
  if (const auto mark = Accepted([&] { return ParseMark(text); })) {
    CF_ASSERT(ToString(*mark) == text);
  }
  if (const auto slot = Accepted([&] { return ParseSlot(text); })) {
    CF_ASSERT(ToString(*slot) == text);
  }
  if (const auto bytes = Accepted([&] { return ParseBytes(text, "--bytes"); })) {
    CF_ASSERT(*bytes > 0);
  }
  constexpr Unit kUnit = Unit::kMicroseconds;
  const auto ticks = [](std::string_view time) {
    return ToTicks(ParseGivenTime(time), kUnit, "--time");
  };
  if (const auto given = Accepted([&] { return ticks(text); }); given && *given < kMaxCost / 2) {
    // It is shown with four digits.
    CF_ASSERT(std::abs(ticks(FormatWithUnit(*given, kUnit)) - *given) <= *given / 1000);
  }
  if (const auto bandwidth = Accepted([&] { return ParseBandwidth(text, kUnit); })) {
    CF_ASSERT(*bandwidth > 0);
  }
  if (const auto time = Accepted([&] { return ParseDuration("--time", text); })) {
    CF_ASSERT(*time >= 0);
  }
  if (const auto host = Accepted([&] { return FirstHost(text); })) CF_ASSERT(!host->empty());
  Accepted([&] { return ParseRecompute(text); });
  Accepted([&] { return ParseOffload(text); });
  Accepted([&] { return ParseTorchVersion(text); });
  Efficiencies shares = DefaultEfficiencies(false);
  Accepted([&] { return ParseEfficiencies(text, &shares), true; });
}

}  // namespace
}  // namespace contraflow

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  contraflow::Check({reinterpret_cast<const char*>(data), size});
  return 0;
}
