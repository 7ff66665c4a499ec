#include "tools/cli/spec_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <utility>

#include "compiler/files/cost_io.h"
#include "compiler/files/json.h"
#include "compiler/files/profiles.h"
#include "compiler/lower/interleave.h"
#include "compiler/plan/error.h"
#include "compiler/plan/memory_limit.h"
#include "schedules/partition/layer_layout.h"
#include "schedules/partition/stages.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"

namespace contraflow {

namespace {

Time Ticks(double value, Unit unit, const char* flag) {
  return ReadOption([&] { return ToTicks(value, unit, flag); });
}

/// Puts the figures that are given over one stage; `known`: that has costs of its own. Returns what
/// was assumed, or "".
std::string Override(const CostsOption& option, bool known, double split, Unit unit,
                     StageCost* cost) {
  std::string assumed;
  if (option.f) cost->f = Ticks(*option.f, unit, "--f");
  if (option.b) cost->b = Ticks(*option.b, unit, "--b");
  if (option.w) cost->w = Ticks(*option.w, unit, "--w");
  if (option.b || option.w) cost->bw = cost->b + cost->w;
  if (option.bw) cost->bw = Ticks(*option.bw, unit, "--bw");
  // What timers give: nothing else says how long its two parts take.
  if (option.bw && !known && !(option.b && option.w)) {
    if (!option.b && !option.w) {
      assumed = DivideBackward(split, unit, cost);
    } else {
      Time* const other = option.b ? &cost->w : &cost->b;
      const Time part = option.b ? cost->b : cost->w;
      if (part > cost->bw) {
        throw UsageError(std::string("--bw: is shorter than --") + (option.b ? "b" : "w") +
                         ", so that nothing is left for the other part; give both");
      }
      *other = cost->bw - part;
      assumed = std::string(option.b ? "--w" : "--b") + " is what the other part leaves of --bw, " +
                FormatTime(*other, unit);
    }
  }
  if (!known && (option.f || option.b || option.w || option.bw)) {
    std::string missing = option.f ? "" : "--f";
    if (!option.b && !option.bw) missing += missing.empty() ? "--b" : ", --b";
    if (!option.w && !option.bw) missing += missing.empty() ? "--w" : ", --w";
    if (!missing.empty()) {
      assumed += (assumed.empty() ? "" : "; ") + missing + " not given and taken as 1";
    }
  }
  if (option.f || option.b || option.w || option.bw) cost->fb = cost->f + cost->bw;
  if (option.fb) cost->fb = Ticks(*option.fb, unit, "--fb");
  const std::string noise = MendNoise(cost, unit);
  return assumed + (assumed.empty() || noise.empty() ? "" : "; ") + noise;
}

/// "25GB/s", or a time in the unit of the costs.
HostCost ReadHostLink(const std::string& text, Unit unit) {
  constexpr std::string_view kPerSecond = "/s";
  if (!text.ends_with(kPerSecond)) {
    double time = 0;
    const char* const end = text.data() + text.size();
    const auto [at, error] = std::from_chars(text.data(), end, time);
    if (error != std::errc() || at != end) {
      throw UsageError(
          "--host-link: must be a bandwidth such as 25GB/s or the time of a copy, is \"" +
          text.substr(0, 40) + "\"");
    }
    return {.latency = Ticks(time, unit, "--host-link"), .bandwidth = 0};
  }
  if (unit == Unit::kUnit) {
    throw UsageError(
        "--host-link: these costs have no unit of time that a second is some of; give the time of "
        "a copy");
  }
  const std::string bytes = text.substr(0, text.size() - kPerSecond.size());
  const int64_t a_second = ReadOption([&] { return ParseBytes(bytes, "--host-link"); });
  const double seconds = static_cast<double>(TicksPerUnit(unit)) * 1e-9;
  return {.latency = 0, .bandwidth = static_cast<double>(a_second) * seconds};
}

}  // namespace

void AddCostsOptions(CLI::App* app, CostsOption* option, const std::string& otherwise) {
  app->add_option("--costs", option->file,
                  std::string(kCostsHelp) + "\n(default: " + otherwise + ")")
      ->type_name("FILE|PROFILE");
  AddNumber(app, "--f", &option->f, "T",
            "forward of a stage; T is a number in the unit of the costs. This\n"
            "and the flags below override the costs; without costs, those of\n"
            "--f, --b and --w that are left out are 1");
  AddNumber(app, "--b", &option->b, "T", "backward for the input gradient only");
  AddNumber(app, "--w", &option->w, "T", "backward for the weight gradient only");
  AddNumber(app, "--bw", &option->bw, "T", "full backward (default: b + w)");
  AddNumber(app, "--split", &option->split, "X",
            "share of b in a full backward (--bw, or \"bw\" in the costs) that is\ngiven without b "
            "and w (0 to 1; default: 0.5)");
  AddNumber(app, "--fb", &option->fb, "T",
            "a forward overlapped with a full backward (default: f + bw)");
  AddNumber(app, "--comm", &option->comm, "T", "a message between neighbouring stages");
  app->add_option("--host-link", option->host_link,
                  "the link to the memory of the host, for --offload: a bandwidth such as\n"
                  "25GB/s, or the time of one copy")
      ->type_name("BYTES/s|T");
  AddOverlapOption(app, option);
}

void AddOverlapOption(CLI::App* app, CostsOption* option) {
  app->add_option("--overlap", option->overlap,
                  "how far MoE components overlap: published (only a forward with a\n"
                  "backward, as in the papers) or all (default: what the costs say,\nelse all)")
      ->type_name("published|all");
}

void Warn(const std::vector<std::string>& assumed) {
  if (assumed.empty()) return;
  const std::string more =
      assumed.size() == 1 ? "" : "; and " + std::to_string(assumed.size() - 1) + " more like this";
  std::fprintf(stderr, "contraflow: warning: %s%s\n", assumed.front().c_str(), more.c_str());
}

CostModel UnitCosts() {
  const Time one = TicksPerUnit(Unit::kUnit);
  return UniformCosts(one, one, one);
}

void RefuseChunkCosts(const CostsOption& option, bool layers) {
  const std::pair<const char*, bool> flags[] = {{"--f", option.f.has_value()},
                                                {"--b", option.b.has_value()},
                                                {"--w", option.w.has_value()},
                                                {"--bw", option.bw.has_value()},
                                                {"--fb", option.fb.has_value()}};
  for (const auto& [name, given] : flags) {
    if (!given) continue;
    throw Error(std::string(name) +
                (layers
                     ? ": these costs are of layers, and it is of whole stages; give --costs with "
                       "other times there"
                     : ": a plan of components takes the times in \"moe\", cells have none of "
                       "their own; give --costs with other times there"));
  }
}

CostModel ResolveCosts(const CostsOption& option, const CostModel& base,
                       std::vector<std::string>* assumed) {
  CostMending mending;
  mending.split = option.split.value_or(mending.split);
  if (!(mending.split >= 0 && mending.split <= 1)) {
    throw UsageError("--split: must be in 0..1, is " + FormatReal(mending.split));
  }
  CostModel costs = option.file   ? ReadCostsOrProfile(*option.file, &mending)
                    : option.text ? ReadCosts(*option.text, "costs", &mending)
                    : option.read ? *option.read
                                  : base;
  const bool known = option.file || option.text || option.read || base != UnitCosts();
  if (option.split && mending.assumed.empty() && (known || !option.bw || option.b || option.w)) {
    throw UsageError("--split: divides a \"bw\" into b and w where neither is given; drop it");
  }
  const Overlap overlap = OverlapOf(option, costs);
  const bool in_layers = std::any_of(costs.layers.begin(), costs.layers.end(),
                                     [](const LayerCost& layer) { return layer.moe; });
  if (option.overlap && !costs.moe && !in_layers) {
    throw Error(
        "--overlap: says how components overlap, and these costs have none; drop it, or give costs "
        "with \"moe\", such as --costs deepseek-v3-h800");
  }
  // Derived with the other overlap or not at all; figures that were given as such stay.
  if (costs.moe && (costs.stages.empty() || (option.overlap && costs.derived))) {
    DeriveChunkCosts(&costs, overlap);
  }
  if (in_layers && option.overlap) costs.derived = overlap;
  if (!costs.layers.empty()) RefuseChunkCosts(option, true);
  for (StageCost& stage : costs.stages) {
    const std::string what = Override(option, known, mending.split, costs.unit, &stage);
    // Flags say the same of every stage.
    if (!what.empty() && (mending.assumed.empty() || mending.assumed.back() != what)) {
      mending.assumed.push_back(what);
    }
  }
  if (option.comm) {
    costs.comm = {.latency = Ticks(*option.comm, costs.unit, "--comm"),
                  .reduce_blocks = costs.comm.reduce_blocks};
  }
  if (option.host_link) costs.host = ReadHostLink(*option.host_link, costs.unit);
  if (assumed == nullptr) Warn(mending.assumed);
  if (assumed != nullptr) *assumed = std::move(mending.assumed);
  return costs;
}

CostModel CostsForPlan(const CostsOption& option, const Plan& plan,
                       std::vector<std::string>* assumed) {
  if (plan.layers > 0) {
    RefuseChunkCosts(option);
    if (option.overlap) {
      throw Error(
          "--overlap: how far the components of this plan overlap was settled when it was "
          "compiled; "
          "give it to contraflow compile");
    }
  }
  CostModel costs = ResolveCosts(option, plan.costs ? *plan.costs : UnitCosts(), assumed);
  if (!costs.layers.empty()) {
    const CommCost comm = costs.comm;
    costs = StagesForPlan(costs, plan, OverlapOf(option, costs));
    if (option.comm) costs.comm = comm;
  }
  costs = OnRanks(costs, plan);
  CheckCosts(costs, plan.stages, plan.microbatches, plan.layers);
  return costs;
}

void AddDeviceMemoryOptions(CLI::App* app, DeviceMemoryOption* option) {
  app->add_option("--device-memory", option->bytes,
                  "bytes of a rank's device, such as 80GB, for all that it holds:\nparameters (of "
                  "every copy), gradients, optimizer state,\nactivations, messages and workspace")
      ->type_name("BYTES");
  AddInteger(app, "--zero", &option->zero, "N",
             "ZeRO stage: replicas (--data-parallel) share the optimizer state\n(1), and gradients "
             "too (2) (default: what the costs say, else 0)");
}

void ApplyDeviceMemory(const DeviceMemoryOption& option, Spec* spec) {
  CostModel& costs = spec->costs;
  if (option.zero) {
    if (*option.zero < 0 || *option.zero > 2) {
      throw UsageError("--zero: must be 0, 1 or 2, is " + std::to_string(*option.zero));
    }
    if (*option.zero > 0 && !costs.memory) costs.memory.emplace();
    if (costs.memory) costs.memory->zero = static_cast<int>(*option.zero);
  }
  if (!option.bytes) return;
  spec->device_memory = ReadOption([&] { return ParseBytes(*option.bytes, "`device_memory`"); });
  if (!CountsBytes(costs)) {
    throw Error(
        "--device-memory: the costs do not say what activations take; give costs with "
        "\"activation_bytes\"");
  }
  const bool known = costs.layers.empty()
                         ? !costs.memory->parameter_bytes.empty()
                         : std::any_of(costs.layers.begin(), costs.layers.end(),
                                       [](const auto& layer) { return layer.parameter_bytes; });
  if (!known) {
    throw Error(
        "--device-memory: the costs do not say what parameters take; give costs with "
        "\"parameter_bytes\" (0 where a model has none)");
  }
}

void AddPartitionOption(CLI::App* app, std::optional<std::string>* text, const std::string& help) {
  app->add_option("--partition", *text, help)->type_name("auto|even|N,N,...|LAYOUT");
}

std::optional<PartitionChoice> ReadPartition(const std::optional<std::string>& text,
                                             const CostModel& costs) {
  if (!text) return std::nullopt;
  if (!IsLayerLayout(*text)) return ReadOption([&] { return ParsePartition(*text); });
  const LayerLayout layout = ReadOption([&] { return ParseLayerLayout(*text); });
  return PartitionChoice{.kind = PartitionChoice::Kind::kList,
                         .layers = PartitionOf(layout, costs)};
}

void AddForOption(CLI::App* app, std::optional<std::string>* text) {
  app->add_option("--for", *text,
                  "take only what this system runs: torch (plans of one route),\nmegatron (1f1b, "
                  "interleaved-1f1b) or dualpipe (dualpipe,\ndualpipe-v)")
      ->type_name("torch|megatron|dualpipe");
}

Target ReadFor(const std::optional<std::string>& text) {
  return text ? ReadOption([&] { return ParseTarget(*text); }) : Target::kAny;
}

Overlap OverlapOf(const CostsOption& option, const CostModel& costs) {
  if (!option.overlap) return costs.derived.value_or(Overlap::kAll);
  try {
    return ParseOverlap(*option.overlap);
  } catch (const Error& error) {
    throw UsageError("--overlap: " + std::string(error.what()));
  }
}

namespace {

/// The search stops counting there, too: a week.
constexpr int64_t kMostSeconds = 7 * 24 * 3600;
/// Durations that vary by more than half are no longer near what was planned for.
constexpr double kMostNoise = 0.5;

[[noreturn]] void FailDuration(const std::string& flag, const std::string& text) {
  throw UsageError(flag + ": must be a time up to 7 days, such as 500ms, 1s or 2m, is \"" +
                   text.substr(0, 40) + "\"");
}

}  // namespace

void AddSearchOptions(CLI::App* app, SearchOption* option) {
  app->add_option("--placement", option->placement,
                  "for auto: linear (one stage per rank), v (two, down and back),\ninterleaved "
                  "(--chunks), bidirectional (two routes, parameters\ntwice), single (tries all "
                  "but that) or any "
                  "(tries all); stages are\nsplit or merged to keep the same model (default: any)")
      ->type_name("PLACEMENT");
  app->add_option("--budget", option->budget,
                  "for auto: search time for each placement tried, and the same again\nfor "
                  "--noise; it counts "
                  "evaluated instructions, not seconds, so the\nresult is the same on every "
                  "machine (default: 1s)")
      ->type_name("500ms|1s|2m");
  AddInteger(app, "--seed", &option->seed, "N", "for auto: another N, another search (default: 0)");
  AddNumber(
      app, "--noise", &option->noise, "X",
      "for auto: among equally short orders, prefer the one least\nsensitive to random durations, "
      "with standard deviation X times\neach duration (0 to 0.5; default: 0)");
}

SearchOptions ResolveSearch(const SearchOption& option) {
  SearchOptions search;
  if (option.placement) {
    try {
      search.placement = ParsePlacement(*option.placement);
    } catch (const Error& error) {
      throw UsageError("--placement: " + std::string(error.what()));
    }
  }
  if (option.budget) search.budget = ParseDuration("--budget", *option.budget);
  if (option.seed) search.seed = static_cast<uint64_t>(*option.seed);
  if (option.noise) {
    if (!(*option.noise >= 0 && *option.noise <= kMostNoise)) {
      throw UsageError("--noise: must be in 0..0.5, as in 0.1 for durations that vary by 10 %");
    }
    search.noise = *option.noise;
  }
  return search;
}

void RefuseSearchOptions(const SearchOption& option, const std::string& schedule) {
  const std::pair<const char*, bool> flags[] = {{"--placement", option.placement.has_value()},
                                                {"--budget", option.budget.has_value()},
                                                {"--seed", option.seed.has_value()},
                                                {"--noise", option.noise.has_value()}};
  for (const auto& [name, given] : flags) {
    if (!given) continue;
    throw UsageError(std::string(name) + ": is for auto, but " + schedule +
                     " is not searched; drop one of them");
  }
}

int64_t ParseDuration(const std::string& flag, const std::string& text) {
  const char* const end = text.data() + text.size();
  double value = 0;
  const auto [at, error] = std::from_chars(text.data(), end, value, std::chars_format::fixed);
  if (error != std::errc() || !(value >= 0)) FailDuration(flag, text);
  const std::string unit(at, end);
  const double seconds = unit == "ms"  ? value / 1000
                         : unit == "s" ? value
                         : unit == "m" ? value * 60
                                       : -1;
  if (!(seconds >= 0 && seconds <= static_cast<double>(kMostSeconds))) FailDuration(flag, text);
  return std::llround(seconds * 1e9);
}

}  // namespace contraflow
