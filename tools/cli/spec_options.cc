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
#include "compiler/plan/layer_cost.h"
#include "compiler/plan/memory_limit.h"
#include "schedules/partition/stages.h"
#include "tools/cli/exit.h"
#include "tools/cli/layer_layout.h"
#include "tools/cli/options.h"
#include "tools/cli/terminal.h"

namespace contraflow {

namespace {

Time Ticks(const GivenTime& value, Unit unit, const char* flag) {
  return ReadOption([&] { return ToTicks(value, unit, flag); });
}

/// Finds a figure from given parts. It keeps its value if that was no sum and is possible with the
/// new parts, none longer than `least`; otherwise it is their sum. Returns the assumption, or "".
std::string SumUnlessKept(const char* key, Time before, Time sum_before, Time least, Time sum,
                          Unit unit, Time* whole) {
  *whole = before;
  const bool apart = before != sum_before;
  const bool less = before<least, more = before> sum && sum_before > before;
  if (apart && !less && !more) return "";
  *whole = sum;
  if (!apart) return "";
  return "\"" + std::string(key) + "\" of the costs, " + FormatTime(before, unit) + ", is " +
         (less ? "shorter than a part of it" : "longer than its parts together") +
         " now, and taken as their sum, " + FormatTime(sum, unit);
}

/// Overrides one stage with the given figures; `known`: the stage has costs of its own. Returns the
/// assumption, or "".
std::string Override(const CostsOption& option, bool known, double split, Unit unit,
                     StageCost* cost) {
  const StageCost before = *cost;
  std::string assumed;
  const auto say = [&](const std::string& more) {
    assumed += (assumed.empty() || more.empty() ? "" : "; ") + more;
  };
  if (option.f) cost->f = Ticks(*option.f, unit, "`f`");
  if (option.b) cost->b = Ticks(*option.b, unit, "`b`");
  if (option.w) cost->w = Ticks(*option.w, unit, "`w`");
  if ((option.b || option.w) && !option.bw) {
    say(SumUnlessKept("bw", before.bw, before.b + before.w, std::max(cost->b, cost->w),
                      cost->b + cost->w, unit, &cost->bw));
  }
  if (option.bw) cost->bw = Ticks(*option.bw, unit, "`bw`");
  // Timers give this: nothing else says how long its two parts take.
  if (option.bw && !known && !(option.b && option.w)) {
    if (!option.b && !option.w) {
      assumed = DivideBackward(split, unit, cost);
    } else {
      Time* const other = option.b ? &cost->w : &cost->b;
      const Time part = option.b ? cost->b : cost->w;
      if (part > cost->bw) {
        throw UsageError(std::string("`bw`: is shorter than ") + (option.b ? "`b`" : "`w`") +
                         ", so that nothing is left for the other part; give both");
      }
      *other = cost->bw - part;
      assumed = std::string(option.b ? "`w`" : "`b`") + " is what the other part leaves of `bw`, " +
                FormatTime(*other, unit);
    }
  }
  if (!known && (option.f || option.b || option.w || option.bw)) {
    std::string missing = option.f ? "" : "`f`";
    if (!option.b && !option.bw) missing += missing.empty() ? "`b`" : ", `b`";
    if (!option.w && !option.bw) missing += missing.empty() ? "`w`" : ", `w`";
    if (!missing.empty()) {
      say(missing + " not given and taken as 1");
    }
  }
  if ((option.f || option.b || option.w || option.bw) && !option.fb) {
    say(SumUnlessKept("fb", before.fb, before.f + before.bw, std::max({cost->f, cost->b, cost->w}),
                      cost->f + cost->bw, unit, &cost->fb));
  }
  if (option.fb) cost->fb = Ticks(*option.fb, unit, "`fb`");
  say(MendNoise(cost, unit));
  return assumed;
}

/// "25GB/s", or a time.
HostCost ReadHostLink(const std::string& text, Unit unit) {
  const char* const flag = "`host_link`";
  try {
    if (text.ends_with("/s")) return {.latency = 0, .bandwidth = ParseBandwidth(text, unit)};
    return {.latency = ToTicks(ParseGivenTime(text), unit, flag), .bandwidth = 0};
  } catch (const Error& error) {
    const std::string why = error.what();
    throw UsageError(why.starts_with(flag) ? why : flag + (": " + why));
  }
}

/// Unit of the flags for costs without one: that of the first flag with a unit. Throws UsageError
/// if another flag has none, or if a cost of a stage is missing.
Unit UnitOfFlags(const CostsOption& option) {
  const std::pair<const char*, const std::optional<GivenTime>*> flags[] = {
      {"`f`", &option.f},   {"`b`", &option.b},   {"`w`", &option.w},
      {"`bw`", &option.bw}, {"`fb`", &option.fb}, {"`comm`", &option.comm}};
  const auto has_unit = [](const auto& flag) { return *flag.second && (*flag.second)->unit; };
  const auto* const first = std::ranges::find_if(flags, has_unit);
  if (first == std::end(flags)) return Unit::kUnit;
  for (const auto& [name, time] : flags) {
    if (!*time || (*time)->unit || (*time)->value == 0) continue;
    throw UsageError(std::string(name) + ": is a number alone, and " + first->first +
                     " has a unit of time; give both one, or neither");
  }
  if (!option.f || !(option.bw || (option.b && option.w))) {
    throw UsageError(std::string(first->first) +
                     ": is in a unit of time, so nothing else can be taken as 1; give `f`, and `b` "
                     "and `w` or `bw`");
  }
  return *(*first->second)->unit;
}

}  // namespace

void AddCostsOptions(CLI::App* app, CostsOption* option, const std::string& otherwise) {
  app->add_option("--costs", option->file,
                  std::string(kCostsHelp) + "\n(default: " + otherwise + ")")
      ->type_name("FILE|PROFILE");
  AddTime(app, "--f", &option->f,
          "forward of a stage: 6.2ms, or a number in the unit of the costs.\nThis and the flags "
          "below override the costs. Without costs, the\ndefault of --f, --b and --w is 1");
  AddTime(app, "--b", &option->b, "backward for the input gradient only");
  AddTime(app, "--w", &option->w, "backward for the weight gradient only");
  AddTime(app, "--bw", &option->bw, "full backward (default: from the costs, else b + w)");
  AddNumber(app, "--split", &option->split, "X",
            "share of b in a full backward given without b and w (0 to 1; default:\n0.5)");
  AddTime(app, "--fb", &option->fb,
          "a forward overlapped with a full backward (default: from the\ncosts, else f + bw)");
  AddTime(app, "--comm", &option->comm, "a message between neighbouring stages");
  app->add_option("--host-link", option->host_link,
                  "the link to host memory, for --offload: 25GB/s, or the time of one copy")
      ->type_name("BYTES/s|T");
  AddOverlapOption(app, option);
}

std::string WithCostsFile(const CostsOption& option, const std::string& text) {
  constexpr std::string_view kField = "`costs`: ";
  const size_t at = option.file ? text.find(kField) : std::string::npos;
  if (at == std::string::npos) return text;
  const std::string file = *option.file == "-" ? "standard input" : *option.file;
  return text.substr(0, at) + file + ": " + text.substr(at + kField.size());
}

void AddOverlapOption(CLI::App* app, CostsOption* option) {
  app->add_option("--overlap", option->overlap,
                  "how far MoE components overlap: published (only a forward with a\n"
                  "backward, as in the papers) or all (default: from the costs,\nelse all)")
      ->type_name("published|all");
}

void Warn(const std::vector<std::string>& assumed) {
  if (assumed.empty()) return;
  const std::string more =
      assumed.size() == 1 ? "" : "; and " + std::to_string(assumed.size() - 1) + " more like this";
  Say("contraflow: warning: " + WithFlags(assumed.front()) + more);
}

CostModel UnitCosts() {
  const Time one = TicksPerUnit(Unit::kUnit);
  return UniformCosts(one, one, one);
}

void RefuseChunkCosts(const CostsOption& option, bool layers) {
  const std::pair<const char*, bool> flags[] = {{"`f`", option.f.has_value()},
                                                {"`b`", option.b.has_value()},
                                                {"`w`", option.w.has_value()},
                                                {"`bw`", option.bw.has_value()},
                                                {"`fb`", option.fb.has_value()}};
  for (const auto& [name, given] : flags) {
    if (!given) continue;
    throw Error(std::string(name) +
                (layers
                     ? ": these costs are of layers, and it is of whole stages; give `costs` with "
                       "other times there"
                     : ": a plan of components takes the times in \"moe\", cells have none of "
                       "their own; give `costs` with other times there"));
  }
}

CostModel ResolveCosts(const CostsOption& option, const CostModel& base,
                       std::vector<std::string>* assumed) {
  CostMending mending;
  mending.split = option.split.value_or(mending.split);
  if (!(mending.split >= 0 && mending.split <= 1)) {
    throw UsageError("`split`: must be in 0..1, is " + FormatReal(mending.split));
  }
  CostModel costs = option.file   ? ReadCostsOrProfile(*option.file, &mending)
                    : option.text ? ReadCosts(*option.text, "costs", &mending)
                    : option.read ? *option.read
                                  : base;
  const bool known = option.file || option.text || option.read || base != UnitCosts();
  if (option.split && mending.assumed.empty() && (known || !option.bw || option.b || option.w)) {
    throw UsageError("`split`: divides a \"bw\" into b and w where neither is given; drop it");
  }
  if (!known) {
    if (const Unit unit = UnitOfFlags(option); unit != Unit::kUnit) {
      const Time one = TicksPerUnit(unit);
      costs = UniformCosts(one, one, one);
      costs.unit = unit;
    }
  }
  const Overlap overlap = OverlapOf(option, costs);
  const bool in_layers = std::any_of(costs.layers.begin(), costs.layers.end(),
                                     [](const LayerCost& layer) { return layer.moe; });
  if (option.overlap && !costs.moe && !in_layers) {
    throw Error(
        "`overlap`: says how components overlap, and these costs have none; drop it, or give costs "
        "with \"moe\", such as `costs` deepseek-v3-h800");
  }
  // Derived with the other overlap or not at all; figures that were given as such stay.
  const bool given = option.overlap || option.framework_overlap;
  if (costs.moe && (costs.stages.empty() || (given && costs.derived))) {
    DeriveChunkCosts(&costs, overlap);
  }
  if (in_layers && given) costs.derived = overlap;
  if (!costs.layers.empty()) RefuseChunkCosts(option, true);
  for (StageCost& stage : costs.stages) {
    const std::string what = Override(option, known, mending.split, costs.unit, &stage);
    // Flags say the same of every stage.
    if (!what.empty() && (mending.assumed.empty() || mending.assumed.back() != what)) {
      mending.assumed.push_back(what);
    }
  }
  if (option.comm) {
    costs.comm = {.latency = Ticks(*option.comm, costs.unit, "`comm`"),
                  .reduce_blocks = costs.comm.reduce_blocks};
  }
  if (option.host_link) costs.host = ReadHostLink(*option.host_link, costs.unit);
  if (assumed == nullptr) Warn(mending.assumed);
  if (assumed != nullptr) *assumed = std::move(mending.assumed);
  return costs;
}

namespace {

/// Notes costs of a model that is split in another way than the plan's: their times are of other
/// matrices.
void NoteSplit(const CostModel& costs, const Plan& plan, std::vector<std::string>* assumed) {
  if (assumed == nullptr || !plan.costs || !plan.costs->parallel || !costs.parallel) return;
  const auto text = [](const Parallel& of) {
    return "tp " + std::to_string(of.tp) + ", cp " + std::to_string(of.cp) + ", ep " +
           std::to_string(of.ep) + ", etp " + std::to_string(of.etp);
  };
  if (*costs.parallel == *plan.costs->parallel) return;
  assumed->push_back("the costs are of " + text(*costs.parallel) + ", and the plan is for " +
                     text(*plan.costs->parallel) + "; give costs that are split as the plan is");
}

/// Notes that a single entry says the costs of the plan's stages, where a rank has several.
void NoteStages(const CostsOption& option, const CostModel& costs, const Plan& plan,
                std::vector<std::string>* assumed) {
  const bool given = option.file || option.text;
  if (assumed == nullptr || !given || costs.stages.size() != 1 || plan.stages <= plan.ranks) return;
  const std::string ranks = std::to_string(plan.ranks);
  assumed->push_back("the costs of one stage are taken for each of the plan's " +
                     std::to_string(plan.stages) + "; where they are those of " + ranks +
                     ", as contraflow compile takes them, list " + ranks + " in \"stages\"");
}

}  // namespace

CostModel CostsForPlan(const CostsOption& option, const Plan& plan,
                       std::vector<std::string>* assumed) {
  if (plan.layers > 0) {
    RefuseChunkCosts(option);
    if (option.overlap) {
      throw Error(
          "`overlap`: how far the components of this plan overlap was settled when it was "
          "compiled; "
          "give it to contraflow compile");
    }
  }
  CostModel costs = ResolveCosts(option, plan.costs ? *plan.costs : UnitCosts(), assumed);
  NoteSplit(costs, plan, assumed);
  NoteStages(option, costs, plan, assumed);
  // A plan keeps the ZeRO stage that `compile --zero` gave it.
  const int zero = plan.costs && plan.costs->memory ? plan.costs->memory->zero : 0;
  if (zero > 0 && !costs.layers.empty() && !costs.memory) costs.memory.emplace();
  if (costs.memory && costs.memory->zero == 0) costs.memory->zero = zero;
  if (!costs.layers.empty()) {
    const CommCost comm = costs.comm;
    costs = StagesForPlan(costs, plan, OverlapOf(option, costs));
    if (option.comm) costs.comm = comm;
  }
  return NamingCosts(option, [&] {
    costs = AtReplicas(OnRanks(CutForPlan(costs, plan), plan), plan);
    CheckCosts(costs, plan.stages, plan.microbatches);
    CheckLayers(plan, costs);
    return costs;
  });
}

void AddExpertParallel(CLI::App* app, int* members) {
  AddInteger(app, "--expert-parallel", members, "N",
             "devices per rank, which split its experts (default: from the\ncosts, else 1)", 1);
}

void AddDeviceMemoryOptions(CLI::App* app, DeviceMemoryOption* option) {
  app->add_option(
         "--device-memory", option->bytes,
         "memory of a rank's device, such as 80GB: parameters (of every copy),\ngradients, "
         "optimizer state, activations, messages and workspace\n(none: no limit; "
         "default: that of the GPU in the costs)")
      ->type_name("BYTES|none");
  AddInteger(app, "--zero", &option->zero, "N",
             "ZeRO stage: replicas share optimizer state (1), gradients too (2),\nparameters too "
             "(3; two stages are gathered at a time). Parameters\nother than experts' are also "
             "shared over the expert group\n(default: from the costs, else 0)");
}

namespace {

/// True if a stage or a layer has these bytes.
bool Says(const CostModel& costs, std::vector<int64_t> MemoryCost::*of_stages,
          std::optional<int64_t> LayerCost::*of_layer) {
  if (costs.layers.empty()) return costs.memory && !((*costs.memory).*of_stages).empty();
  return std::ranges::any_of(costs.layers,
                             [&](const LayerCost& layer) { return (layer.*of_layer).has_value(); });
}

/// Throws Error if the costs lack the shared parts for this stage of ZeRO.
void CheckShared(const CostModel& costs, int64_t zero) {
  const bool optimizer = Says(costs, &MemoryCost::optimizer_bytes, &LayerCost::optimizer_bytes);
  const bool gradients = Says(costs, &MemoryCost::gradient_bytes, &LayerCost::gradient_bytes);
  const bool parameters = Says(costs, &MemoryCost::parameter_bytes, &LayerCost::parameter_bytes);
  if (zero == 0 || optimizer || (zero >= 2 && gradients) || (zero == 3 && parameters)) return;
  throw Error("`zero`: the costs do not say what replicas would share; give costs with " +
              std::string(zero == 3 ? "\"parameter_bytes\", " : "") +
              std::string(zero >= 2 ? "\"gradient_bytes\" and " : "") + "\"optimizer_bytes\"");
}

/// Throws UsageError if no two devices hold the same parameters, as far as the costs know.
void CheckSharing(const Spec& spec, int64_t zero) {
  const Copies copies = CopiesOf(ParallelOf(spec), spec.data_parallel);
  const auto knows = [](const LayerCost& layer) { return layer.rest_bytes.has_value(); };
  const bool known = (spec.costs.memory && !spec.costs.memory->parameter_rest.empty()) ||
                     std::ranges::any_of(spec.costs.layers, knows);
  const int64_t most = std::max(copies.experts, copies.rest);
  if (std::min(copies.experts, copies.rest) > 1 || (known && most > 1)) return;
  throw UsageError("`zero` " + std::to_string(zero) +
                   ": is what replicas share, and there is one; give `data_parallel` N, " +
                   (most > 1 ? "costs that tell the bytes of experts from the rest, which an "
                               "expert group shares, "
                             : "") +
                   "or leave `zero` out");
}

}  // namespace

void ApplyDeviceMemory(const DeviceMemoryOption& option, Spec* spec) {
  CostModel& costs = spec->costs;
  if (option.zero) {
    if (*option.zero < 0 || *option.zero > 3) {
      throw UsageError("`zero`: must be 0, 1, 2 or 3, is " + std::to_string(*option.zero));
    }
    CheckShared(costs, *option.zero);
    if (*option.zero > 0) CheckSharing(*spec, *option.zero);
    if (*option.zero > 0 && !costs.memory) costs.memory.emplace();
    if (costs.memory) costs.memory->zero = static_cast<int>(*option.zero);
  }
  const bool holds = Says(costs, &MemoryCost::parameter_bytes, &LayerCost::parameter_bytes);
  if (!option.bytes && costs.gpu && CountsBytes(costs) && holds) {
    spec->device_memory = costs.gpu->memory_bytes;
  }
  if (!option.bytes || *option.bytes == "none") return;
  spec->device_memory = ReadOption([&] { return ParseBytes(*option.bytes, "`device_memory`"); });
  if (LacksUnit(*option.bytes, costs)) {
    throw Error("`device_memory`: is " + *option.bytes + " bytes; did you mean " + *option.bytes +
                "GB?");
  }
  if (!CountsBytes(costs)) {
    throw Error(
        "`device_memory`: the costs do not say what activations take; give costs with "
        "\"activation_bytes\"");
  }
  if (!holds) {
    throw Error(
        "`device_memory`: the costs do not say what parameters take; give costs with "
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
                  "only plans that this system runs: torch (plans of one route), megatron\n(1f1b, "
                  "interleaved-1f1b, combined-1f1b) or dualpipe (dualpipe,\ndualpipe-v)")
      ->type_name("torch|megatron|dualpipe");
}

Target ReadFor(const std::optional<std::string>& text) {
  return text ? ReadOption([&] { return ParseTarget(*text); }) : Target::kAny;
}

void AssumeOverlap(Target target, CostsOption* option) {
  if (target == Target::kMegatron) option->framework_overlap = Overlap::kPublished;
}

Overlap OverlapOf(const CostsOption& option, const CostModel& costs) {
  if (!option.overlap) {
    return option.framework_overlap.value_or(costs.derived.value_or(Overlap::kAll));
  }
  try {
    return ParseOverlap(*option.overlap);
  } catch (const Error& error) {
    throw UsageError("`overlap`: " + std::string(error.what()));
  }
}

namespace {

/// Largest noise: beyond half, durations are far from the plan's.
constexpr double kMostNoise = 0.5;
/// --until where it is not given, and the largest.
constexpr double kUntil = 0.003, kMostUntil = 0.5;

/// "0.3%". Throws UsageError.
double ParseShare(const std::string& text) {
  double percent = -1;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, percent);
  const bool read = error == std::errc() && at + 1 == end && *at == '%';
  if (!read || !(percent >= 0 && percent <= 100 * kMostUntil)) {
    throw UsageError("`until`: must be a percentage in 0..50, as in 0.3%, not \"" +
                     text.substr(0, 64) + "\"");
  }
  return percent / 100;
}

}  // namespace

void AddSearchOptions(CLI::App* app, SearchOption* option) {
  app->add_option(
         "--placement", option->placement,
         "for auto: linear (one stage per rank), v (two), interleaved or wave\n(--chunks), "
         "bidirectional (two routes, parameters twice), single\n(all but bidirectional) "
         "or any. Stages are split or merged to keep\nthe model. Waves and over two "
         "chunks need costs with layers\n(default: any)")
      ->type_name("PLACEMENT");
  app->add_option("--budget", option->budget,
                  "for auto: about the processor time of the command. Counted in\nevaluated "
                  "instructions, so every machine gives the same result\n(default: 2s)")
      ->type_name("500ms|1s|2m");
  app->add_option(
         "--until", option->until,
         "for auto: end once the best plan is within this of the lower bound\n(default: 0.3%)")
      ->type_name("X%");
  AddInteger(app, "--seed", &option->seed, "N", "for auto: random seed of the search (default: 0)");
  AddNumber(app, "--noise", &option->noise, "X",
            "for auto: of equally short orders, prefer the least sensitive to\nrandom durations of "
            "standard deviation X times the mean (0 to 0.5;\ndefault: 0)");
}

SearchOptions ResolveSearch(const SearchOption& option) {
  SearchOptions search;
  if (option.placement) {
    try {
      search.placement = ParsePlacement(*option.placement);
    } catch (const Error& error) {
      throw UsageError("`placement`: " + std::string(error.what()));
    }
  }
  if (option.budget) search.budget = ParseDuration("--budget", *option.budget);
  search.until = option.until ? ParseShare(*option.until) : kUntil;
  if (option.seed) search.seed = static_cast<uint64_t>(*option.seed);
  if (option.noise) {
    if (!(*option.noise >= 0 && *option.noise <= kMostNoise)) {
      throw UsageError("`noise`: must be in 0..0.5, as in 0.1 for durations that vary by 10 %");
    }
    search.noise = *option.noise;
  }
  return search;
}

void RefuseSearchOptions(const SearchOption& option, const std::string& schedule) {
  const std::pair<const char*, bool> flags[] = {{"`placement`", option.placement.has_value()},
                                                {"`budget`", option.budget.has_value()},
                                                {"`until`", option.until.has_value()},
                                                {"`seed`", option.seed.has_value()},
                                                {"`noise`", option.noise.has_value()}};
  for (const auto& [name, given] : flags) {
    if (!given) continue;
    throw UsageError(std::string(name) + ": is for auto, but " + schedule +
                     " is not searched; drop one of them");
  }
}

}  // namespace contraflow
