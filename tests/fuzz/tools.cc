// Targets of options and files of the tools.

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "compiler/files/cost_io.h"
#include "compiler/files/plan_io.h"
#include "compiler/lower/lower.h"
#include "compiler/plan/mark.h"
#include "compiler/plan/spec.h"
#include "compiler/plan/text.h"
#include "compiler/plan/units.h"
#include "compiler/plan/value.h"
#include "compiler/simulate/simulate.h"
#include "compiler/verify/verify.h"
#include "runtime/launch/world.h"
#include "tests/fuzz/targets.h"
#include "tests/support/support.h"
#include "tools/cli/exit.h"
#include "tools/cli/layer_layout.h"
#include "tools/cli/options.h"
#include "tools/cli/spec_options.h"
#include "tools/interop/interop.h"
#include "tools/interop/stage_layers.h"
#include "tools/profile/costs_file.h"
#include "tools/profile/gzip.h"
#include "tools/profile/hf_config.h"
#include "tools/profile/profile.h"
#include "tools/profile/run_trace.h"
#include "tools/profile/setup.h"
#include "tools/report/explanation.h"
#include "tools/report/guard.h"

namespace contraflow {
namespace {

/// A plan of four stages, of which layers may be asked.
const Plan& FourStages() {
  static const Plan plan = [] {
    Plan four;
    four.ranks = four.stages = four.microbatches = 4;
    return four;
  }();
  return plan;
}

/// The value that `read` returns of an option; nothing if it throws Error or UsageError.
template <typename Read>
auto Given(Read read) -> std::optional<decltype(read())> {
  try {
    return Accepted(read);
  } catch (const UsageError&) {
    return std::nullopt;
  }
}

}  // namespace

void FuzzHfConfig(std::string_view bytes) {
  const auto model = Accepted([&] { return ReadHfConfig(bytes, "input"); });
  if (!model) return;
  CF_ASSERT(ParametersOf(*model).model > 0);
  for (const int64_t parts : {1, 2, 16}) {
    CostSetup setup;
    setup.gpu = &FindGpu("h800");
    setup.tensor_parallel = parts;
    setup.expert_parallel = model->has_experts() ? parts : 1;
    setup.fp8 = parts == 2;
    const auto text =
        Accepted([&] { return WriteCostsByLayer(*model, setup, CostsOf(*model, setup)); });
    if (!text) continue;
    const CostModel costs = ReadCosts(*text, "costs");
    CF_ASSERT(costs.LayerCount() >= static_cast<int>(model->layers.size()) + 2);
  }
}

void FuzzLimits(std::string_view bytes) {
  const auto file = Accepted([&] { return ReadLimits(std::string(bytes), "input"); });
  if (!file) return;
  CF_ASSERT(file->Of("").count() >= file->all.count());
  for (const auto& [plan, limits] : file->plans) {
    CF_ASSERT(file->Of(plan).count() >= std::max(limits.count(), file->all.count()));
  }
}

void FuzzOption(std::string_view input) {
  const std::string text(input);
  if (const auto layout = Given([&] { return ParseLayerLayout(text); })) {
    CF_ASSERT(ParseLayerLayout(FormatLayerLayout(*layout)) == *layout);
    CF_ASSERT(FlawOf(*layout, 4).size() < 1000);
  }
  if (const auto layers =
          Given([&] { return LayersOfStages(FourStages(), text, UnknownLayers::kRefuse); })) {
    CF_ASSERT(layers->size() == 4);
  }
  if (const auto choice = Given([&] { return ParsePartition(text); });
      choice && choice->kind == PartitionChoice::Kind::kList) {
    CF_ASSERT(ParsePartition(FormatPartition(choice->layers)) == *choice);
  }
  if (const auto mark = Given([&] { return ParseMark(text); })) {
    CF_ASSERT(ToString(*mark) == text);
  }
  if (const auto slot = Given([&] { return ParseSlot(text); })) {
    CF_ASSERT(ToString(*slot) == text);
  }
  if (const auto bytes = Given([&] { return ParseBytes(text, "--bytes"); })) {
    CF_ASSERT(*bytes > 0);
  }
  constexpr Unit kUnit = Unit::kMicroseconds;
  const auto ticks = [](std::string_view time) {
    return ToTicks(ParseGivenTime(time), kUnit, "--time");
  };
  if (const auto given = Given([&] { return ticks(text); }); given && *given < kMaxCost / 2) {
    // It is shown with four digits.
    CF_ASSERT(std::abs(ticks(FormatWithUnit(*given, kUnit)) - *given) <= *given / 1000);
  }
  if (const auto bandwidth = Given([&] { return ParseBandwidth(text, kUnit); })) {
    CF_ASSERT(*bandwidth > 0);
  }
  if (const auto time = Given([&] { return ParseDuration("--time", text); })) {
    CF_ASSERT(*time >= 0);
  }
  if (const auto host = Given([&] { return FirstHost(text); })) CF_ASSERT(!host->empty());
  Given([&] { return ParseRecompute(text); });
  Given([&] { return ParseOffload(text); });
  Given([&] { return ParseTorchVersion(text); });
  Efficiencies shares = DefaultEfficiencies(false);
  Given([&] { return ParseEfficiencies(text, &shares), true; });
}

void FuzzProfile(std::string_view bytes) {
  std::string text(bytes);
  try {
    if (IsGzip(text)) text = Gunzip(text, 1 << 20, "input");
  } catch (const Error&) {
    return;
  }
  for (int form = -1; form < 5; ++form) {
    ProfileOptions options;
    if (form >= 0) options.from = static_cast<ProfileForm>(form);
    options.log = {.ranks = 0, .chunks = 2, .microbatches = 4};
    const auto profile = Accepted(
        [&] { return CostsOfSamples({ReadProfileText(text, "input", options)}, options); });
    if (!profile) continue;
    CF_ASSERT(!ProfileText(*profile).empty());
    CF_ASSERT(ReadCosts(WriteCosts(profile->costs), "again") == profile->costs);
  }
}

void FuzzRunTrace(std::string_view bytes) {
  static const Plan plan = Compile(MakeSpec("1f1b", 2, 2, UniformCosts(2, 2, 1, 1)));
  const std::string text(bytes);
  static_cast<void>(LooksLikeTrace(text));
  const auto measured = Accepted([&] { return ReadRun(plan, {{"input", text}}).timeline; });
  if (!measured) return;
  const CostModel& costs = *plan.costs;
  const Explanation run = ExplainRun(plan, costs, RunOf(plan, costs, *measured));
  for (size_t rank = 0; rank < run.idle.size(); ++rank) {
    const std::vector<Time> causes = run.ByCause(static_cast<int>(rank));
    CF_ASSERT(std::accumulate(causes.begin(), causes.end(), Time{0}) ==
              run.simulation.ranks[rank].bubble);
  }
  const Explanation predicted = ExplainRun(plan, costs, Simulate(plan, costs));
  CF_ASSERT(!CompareRuns(predicted, run).empty());
  static_cast<void>(RunsToJson(predicted, run, 1));
}

void FuzzTorchCsv(std::string_view bytes) {
  const auto plan = Accepted([&] { return ReadTorchCsv(bytes, "input"); });
  if (!plan) return;
  CF_ASSERT(ReadPlan(WritePlan(*plan), "plan") == *plan);
  bool sound = false;
  for (const Semantics semantics : kEverySemantics) {
    const bool now = Verify(*plan, semantics).empty();
    CF_ASSERT(now || !sound);
    sound = now;
  }
  const CostModel costs = UniformCosts(2, 2, 1, 1);
  if (sound) CF_ASSERT(Simulate(*plan, costs).makespan > 0);
  const Plan order = WithoutMessages(*plan);
  CF_ASSERT(ReadTorchCsv(WriteTorchCsv(order), "again") == order);
  if (!Verify(order).empty()) return;
  const Plan lowered = Lower(order, costs, {.target = Level::kComm});
  CF_ASSERT(Simulate(lowered, costs).makespan > 0);
}

}  // namespace contraflow
