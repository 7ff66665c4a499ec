#include "compiler/plan/spec.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <numeric>
#include <utility>

#include "compiler/plan/error.h"
#include "compiler/plan/layer_cost.h"
#include "compiler/plan/memory_limit.h"
#include "compiler/plan/plan.h"
#include "compiler/plan/units.h"

namespace contraflow {
namespace {

constexpr std::array<std::string_view, 7> kPlacementNames = {
    "any", "single", "linear", "v", "interleaved", "wave", "bidirectional"};

/// Bytes or activations; leaves room for sums.
constexpr int64_t kMaxMemory = int64_t{1} << 62;

void CheckRange(const char* flag, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return;
  throw Error(std::string(flag) + ": must be in " + std::to_string(low) + ".." +
              std::to_string(high) + ", is " + std::to_string(value));
}

constexpr const char* kForm =
    "must be a number of bytes, or N times what 1F1B's fullest rank holds as \"Nx\"";
/// More than that are bytes.
constexpr int64_t kManyActivations = 1'000'000;

struct Amount {
  int64_t value = 0;
  bool unit = false;   ///< one was given
  bool whole = false;  ///< it was a whole number without one
};

Amount ReadAmount(const std::string& text, const std::string& flag, const std::string& form) {
  const auto fail = [&](const std::string& what) {
    throw Error(flag + ": " + what + ", is \"" + text.substr(0, 40) + "\"");
  };
  const char* const begin = text.data();
  const char* const end = begin + text.size();
  int64_t whole = 0;
  const auto [digits, error] = std::from_chars(begin, end, whole);
  if (digits == end && error == std::errc()) {
    if (whole <= 0) fail("must be positive");
    if (whole > kMaxMemory) fail("must be at most " + std::to_string(kMaxMemory));
    return {whole, false, true};
  }
  double value = 0;
  const auto [at, flaw] = std::from_chars(begin, end, value);
  if (flaw == std::errc::result_out_of_range) {
    fail("must be at most " + std::to_string(kMaxMemory));
  }
  if (flaw != std::errc() || !std::isfinite(value)) fail(form);
  constexpr std::pair<std::string_view, double> kByteUnits[] = {
      {"", 1},      {"B", 1},        {"kB", 1e3},     {"MB", 1e6},     {"GB", 1e9},
      {"TB", 1e12}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40},
      {"KB", 1e3},  {"K", 1e3},      {"M", 1e6},      {"G", 1e9},      {"T", 1e12}};
  const std::string_view name(at, static_cast<size_t>(end - at));
  const auto unit = std::find_if(std::begin(kByteUnits), std::end(kByteUnits),
                                 [&](const auto& known) { return known.first == name; });
  if (unit == std::end(kByteUnits)) fail(form);
  const double bytes = std::round(value * unit->second);
  if (!(bytes >= 1)) fail("must be positive");
  if (bytes > static_cast<double>(kMaxMemory)) {
    fail("must be at most " + std::to_string(kMaxMemory));
  }
  return {static_cast<int64_t>(bytes), !name.empty()};
}

/// Returns the number of "1.5x", of any sign; nothing for other text.
std::optional<double> ReadMultiple(const std::string& text) {
  double factor = 0;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, factor, std::chars_format::fixed);
  if (error != std::errc() || std::string_view(at, static_cast<size_t>(end - at)) != "x" ||
      !std::isfinite(factor)) {
    return std::nullopt;
  }
  return factor;
}

[[noreturn]] void FailLimit(const std::string& text, const std::string& what) {
  throw Error("`memory_limit`: " + what + ", is \"" + text.substr(0, 40) + "\"");
}

}  // namespace

std::string_view Name(Placement placement) {
  return kPlacementNames[static_cast<size_t>(placement)];
}

bool IsChoice(Placement placement) {
  return placement == Placement::kAny || placement == Placement::kSingle;
}

bool Allows(Placement asked, Placement placement) {
  if (asked == Placement::kSingle) return placement != Placement::kBidirectional;
  return asked == Placement::kAny || asked == placement;
}

Placement ParsePlacement(std::string_view name) {
  std::string known;
  for (size_t i = 0; i < kPlacementNames.size(); ++i) {
    if (kPlacementNames[i] == name) return static_cast<Placement>(i);
    known += (i > 0 ? ", " : "") + std::string(kPlacementNames[i]);
  }
  const std::string shown(name.substr(0, 64));
  throw Error("unknown placement \"" + shown + "\"" + DidYouMean(shown, kPlacementNames) +
              "; placements are " + known);
}

namespace {

/// Stages and ranges, "0,3,5-7"; `flag` and `words` are for errors: "`recompute`", "none, auto".
std::vector<int> ParseStages(std::string_view text, const char* flag, const char* words) {
  const auto fail = [&](const std::string& what) {
    throw Error(std::string(flag) + ": " + what + ", is \"" + std::string(text.substr(0, 40)) +
                "\"");
  };
  const auto number = [&](std::string_view digits) {
    int stage = -1;
    const char* const end = digits.data() + digits.size();
    const auto [at, error] = std::from_chars(digits.data(), end, stage);
    if (error != std::errc() || at != end || stage < 0) {
      fail("must be " + std::string(words) + " or stages as in \"0,3,5-7\"");
    }
    if (stage >= kMaxStages) fail("a stage must be below " + std::to_string(kMaxStages));
    return stage;
  };
  std::vector<int> stages;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view part = text.substr(begin, end - begin);
    const size_t dash = part.find('-');
    const int first = number(part.substr(0, dash));
    const int last = dash == std::string_view::npos ? first : number(part.substr(dash + 1));
    const int before = stages.empty() ? -1 : stages.back();
    if (first <= before || last < first) fail("stages must ascend, each named once");
    for (int stage = first; stage <= last; ++stage) stages.push_back(stage);
    begin = end + 1;
  }
  return stages;
}

constexpr const char* kRecompute = "`recompute`";

/// Reads the text after "layers=".
Recompute ParseRecomputeLayers(std::string_view text) {
  const auto fail = [&](const std::string& what) {
    throw Error(std::string(kRecompute) + ": " + what +
                ", is \"layers=" + std::string(text.substr(0, 40)) + "\"");
  };
  const size_t colon = text.find(':');
  const std::string_view numbers = text.substr(0, colon);
  std::vector<int> layers;
  for (size_t begin = 0; begin <= numbers.size();) {
    const size_t end = std::min(numbers.find(',', begin), numbers.size());
    int count = -1;
    const char* const last = numbers.data() + end;
    const auto [at, error] = std::from_chars(numbers.data() + begin, last, count);
    if (error != std::errc() || at != last || count < 0 || count > kMaxModelLayers) {
      fail(
          "must be layers=N, layers=N:STAGES or layers=N,N,.. with a number for each stage, each "
          "0.." +
          std::to_string(kMaxModelLayers));
    }
    layers.push_back(count);
    if (layers.size() > size_t{kMaxStages}) fail("has more numbers than there can be stages");
    begin = end + 1;
  }
  if (layers.size() == 1) {
    if (layers[0] == 0) fail("must be of 1 layer or more; give none to recompute nothing");
    if (colon == std::string_view::npos) {
      return {.choice = Recompute::Choice::kFull, .layers = std::move(layers)};
    }
    return {.choice = Recompute::Choice::kStages,
            .stages = ParseStages(text.substr(colon + 1), kRecompute, "layers=N"),
            .layers = std::move(layers)};
  }
  if (colon != std::string_view::npos) {
    fail("names stages and has a number for each stage; give one number, or no stages");
  }
  if (std::ranges::max(layers) == 0) return {};
  std::vector<int> stages(layers.size());
  std::iota(stages.begin(), stages.end(), 0);
  return {.choice = Recompute::Choice::kStages,
          .stages = std::move(stages),
          .layers = std::move(layers)};
}

}  // namespace

Recompute ParseRecompute(std::string_view text) {
  if (text == "none") return {};
  if (text == "full") return {.choice = Recompute::Choice::kFull};
  if (text == "auto") return {.choice = Recompute::Choice::kAuto};
  constexpr std::string_view kLayers = "layers=";
  if (text.starts_with(kLayers)) return ParseRecomputeLayers(text.substr(kLayers.size()));
  RecomputePart part = RecomputePart::kFull;
  for (const RecomputePart named : kParts) {
    if (named == RecomputePart::kFull || !text.starts_with(Name(named))) continue;
    const std::string_view rest = text.substr(Name(named).size());
    if (rest.empty()) return {.choice = Recompute::Choice::kFull, .part = named};
    if (rest[0] != ':') continue;
    part = named;
    text = rest.substr(1);
    break;
  }
  return {
      .choice = Recompute::Choice::kStages,
      .stages = ParseStages(text, kRecompute,
                            "none, full, auto, attention, experts, all-but-attention, layers=N"),
      .part = part};
}

Offload ParseOffload(std::string_view text) {
  if (text == "none") return {};
  if (text == "full") return {.choice = Offload::Choice::kFull};
  if (text == "auto") return {.choice = Offload::Choice::kAuto};
  return {.choice = Offload::Choice::kStages,
          .stages = ParseStages(text, "`offload`", "none, full, auto")};
}

namespace {
constexpr std::string_view kTargets[] = {"any", "torch", "megatron", "dualpipe"};
}

std::string_view Name(Target target) { return kTargets[static_cast<size_t>(target)]; }

Target ParseTarget(std::string_view name) {
  for (size_t i = 1; i < std::size(kTargets); ++i) {
    if (name == kTargets[i]) return static_cast<Target>(i);
  }
  const std::vector<std::string> known(std::begin(kTargets) + 1, std::end(kTargets));
  const std::string shown(name.substr(0, 64));
  throw Error("`for`: unknown system \"" + shown + "\"" + DidYouMean(shown, known) +
              "; they are torch, megatron and dualpipe");
}

PartitionChoice ParsePartition(std::string_view text) {
  if (text == "auto") return {};
  if (text == "even") return {.kind = PartitionChoice::Kind::kEven};
  const auto fail = [&](const std::string& what) {
    throw Error("`partition`: " + what + ", is \"" + std::string(text.substr(0, 40)) + "\"");
  };
  const auto number = [&](std::string_view digits, int most) {
    int value = -1;
    const char* const end = digits.data() + digits.size();
    const auto [at, error] = std::from_chars(digits.data(), end, value);
    if (error == std::errc::invalid_argument || at != end || digits.front() == '-') {
      fail("must be auto, even or the layers of each stage as in \"4,4,5,3\" or \"4x15,1\"");
    }
    if (value < 1 || value > most) fail("a number must be in 1.." + std::to_string(most));
    return value;
  };
  PartitionChoice choice = {.kind = PartitionChoice::Kind::kList};
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view part = text.substr(begin, end - begin);
    const size_t times = part.find('x');
    const int layers = number(part.substr(0, times), kMaxModelLayers);
    const int count =
        times == std::string_view::npos ? 1 : number(part.substr(times + 1), kMaxModelLayers);
    if (choice.layers.size() + static_cast<size_t>(count) > kMaxModelLayers) {
      fail("has more than " + std::to_string(kMaxModelLayers) + " stages");
    }
    choice.layers.insert(choice.layers.end(), static_cast<size_t>(count), layers);
    begin = end + 1;
  }
  return choice;
}

std::string FormatPartition(const Partition& partition) {
  std::string text;
  for (size_t begin = 0; begin < partition.size();) {
    size_t end = begin + 1;
    while (end < partition.size() && partition[end] == partition[begin]) ++end;
    const size_t count = end - begin;
    // "4,4" is no longer than "4x2" and easier to read.
    for (size_t k = 0; k < (count > 2 ? 1 : count); ++k) {
      text += (text.empty() ? "" : ",") + std::to_string(partition[begin]);
    }
    if (count > 2) text += "x" + std::to_string(count);
    begin = end;
  }
  return text;
}

int64_t ParseBytes(const std::string& text, const char* flag) {
  return ReadAmount(text, flag, "must be a number of bytes such as 80GB or 74.5GiB").value;
}

double ParseMultiple(const std::string& text, const std::string& place) {
  const std::optional<double> factor = ReadMultiple(text);
  if (!factor || *factor <= 0) {
    throw Error(place + "must be a multiple such as 1x or 0.75x, is \"" + text.substr(0, 40) +
                "\"");
  }
  return *factor;
}

int64_t ParseMemoryLimit(const std::string& text, const Spec& spec, int stages) {
  if (text.empty() || text.back() != 'x') {
    const bool bytes = CountsBytes(spec.costs);
    if (LacksUnit(text, spec.costs)) {
      FailLimit(text, "needs a unit (did you mean \"" + text + "x\"" +
                          (bytes ? " or \"" + text + "GB\"" : "") + "?)");
    }
    if (text.ends_with('%')) {
      const std::optional<double> share = ReadMultiple(text.substr(0, text.size() - 1) + "x");
      if (share) FailLimit(text, "must be a multiple, as 0.6x for 60 %");
    }
    const Amount amount = ReadAmount(text, "`memory_limit`", kForm);
    if (bytes) return amount.value;
    const int64_t all = int64_t{stages} * spec.microbatches;
    if (amount.unit || (amount.value > all && amount.value > kManyActivations)) {
      FailLimit(text,
                "counts activations, since the costs give no \"activation_bytes\", and there "
                "are " +
                    std::to_string(all) + "; for bytes, give costs that do");
    }
    if (!amount.whole) FailLimit(text, "must be a whole number of activations");
    return amount.value;
  }
  const std::optional<double> factor = ReadMultiple(text);
  if (!factor) FailLimit(text, kForm);
  if (!(*factor > 0)) FailLimit(text, "must be positive");
  // P activations of a whole rank: that is one of every stage.
  const MemoryLimit unit(spec.costs);
  int64_t all = unit.bytes() ? spec.costs.memory->ActivationOfAll(stages) : stages;
  int64_t layers = 0;
  for (const LayerCost& layer : spec.costs.layers) layers += layer.repeat * layer.activation_bytes;
  if (layers > 0) all = layers;
  // The double nearest to 0.29 lies below it, and so would 0.29 of 100.
  const double limit = std::floor(*factor * static_cast<double>(all) * (1 + 1e-15));
  if (limit < 1)
    FailLimit(text, "must leave room for at least one " +
                        std::string(unit.bytes() ? "byte" : "activation"));
  if (limit > static_cast<double>(kMaxMemory)) {
    FailLimit(text, "must come to at most " + std::to_string(kMaxMemory) + " bytes");
  }
  return static_cast<int64_t>(limit);
}

Parallel ParallelOf(const Spec& spec) {
  return spec.costs.parallel.value_or(Parallel{.ep = spec.expert_parallel.value_or(1)});
}

std::vector<int64_t> DevicesOf(const Spec& spec) {
  const std::vector<RankCost>& ranks = spec.costs.ranks;
  const auto limited = [](const RankCost& rank) { return rank.memory_bytes.has_value(); };
  if (!spec.device_memory && std::none_of(ranks.begin(), ranks.end(), limited)) return {};
  std::vector<int64_t> devices(static_cast<size_t>(spec.ranks),
                               spec.device_memory.value_or(kMaxMemory));
  for (size_t r = 0; r < ranks.size(); ++r) {
    devices[r] = std::min(devices[r], ranks[r].memory_bytes.value_or(devices[r]));
  }
  return devices;
}

void CheckSpec(const Spec& spec) {
  CheckRange("`ranks`", spec.ranks, 1, kMaxRanks);
  CheckRange("`microbatches`", spec.microbatches, 1, kMaxMicrobatches);
  if (spec.chunks != 0) CheckRange("`chunks`", spec.chunks, 1, kMaxStages);
  CheckRange("`data_parallel`", spec.data_parallel, 1, kMaxDataParallel);
  const int members = spec.expert_parallel.value_or(1), made_for = ParallelOf(spec).ep;
  CheckRange("`expert_parallel`", members, 1, kMaxExpertParallel);
  if (spec.expert_parallel && members != made_for) {
    throw Error("`expert_parallel`: is " + std::to_string(members) + ", the costs are of ep " +
                std::to_string(made_for) + "; leave it out, or give costs of ep " +
                std::to_string(members));
  }
  if (spec.memory_limit) CheckRange("`memory_limit`", *spec.memory_limit, 1, kMaxMemory);
  if (spec.device_memory) CheckRange("`device_memory`", *spec.device_memory, 1, kMaxMemory);
  const size_t listed = spec.costs.ranks.size();
  if (listed > 0 && listed != static_cast<size_t>(spec.ranks)) {
    throw Error("`costs`: /ranks: lists " + std::to_string(listed) + " ranks, `ranks` is " +
                std::to_string(spec.ranks) + "; give one entry for each rank");
  }
  const int64_t stages = int64_t{spec.ranks} * std::max(spec.chunks, 1);
  if (stages > kMaxStages) {
    throw Error("`ranks` " + std::to_string(spec.ranks) + " with `chunks` " +
                std::to_string(spec.chunks) + ": makes " + std::to_string(stages) +
                " stages, at most " + std::to_string(kMaxStages) + " are supported");
  }
  if (stages * spec.microbatches > kMaxCells) {
    throw Error("`ranks` " + std::to_string(spec.ranks) +
                (spec.chunks > 0 ? " with `chunks` " + std::to_string(spec.chunks) : "") +
                " and `microbatches` " + std::to_string(spec.microbatches) + ": makes " +
                std::to_string(stages * spec.microbatches) +
                " cells (stages * micro-batches), at most " + std::to_string(kMaxCells) +
                " are supported");
  }
}

}  // namespace contraflow
