#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compiler/files/profiles.h"
#include "compiler/plan/error.h"
#include "compiler/plan/plan.h"
#include "compiler/plan/spec.h"
#include "compiler/plan/units.h"

namespace CLI {
class App;
}

namespace contraflow {

/// Values of the options --costs --f --b --w --bw --fb --comm --host-link --overlap.
struct CostsOption {
  std::optional<std::string> file = {};  ///< a file or the name of a profile
  std::optional<std::string> text = {};  ///< in place of a file: the text of one
  std::optional<CostModel> read = {};    ///< in place of a file: costs that are read already
  std::optional<GivenTime> f = {}, b = {}, w = {}, bw = {}, fb = {}, comm = {};
  std::optional<double> split = {};  ///< share of b in a bw that is given without b and w
  std::optional<std::string> overlap = {};
  /// That of the framework the plan is for, where `overlap` is not given.
  std::optional<Overlap> framework_overlap = {};
  std::optional<std::string> host_link = {};

  /// True if any option gives a cost.
  bool given() const {
    return file || text || read || f || b || w || bw || fb || comm || host_link;
  }
};

/// Values of --costs.
inline constexpr const char* kCostsHelp =
    "cost file (guide: Cost files), whose path has a / or ends in .json;\n"
    "- is standard input; or a profile that ships (contraflow profiles)";

/// Message of the library, with the file of the costs in place of the field `costs`.
std::string WithCostsFile(const CostsOption& option, const std::string& text);

/// Returns the result of `use` for the costs. An Error about them names their file.
template <typename Use>
auto NamingCosts(const CostsOption& option, Use use) {
  try {
    return use();
  } catch (const Error& error) {
    const std::string text = WithCostsFile(option, error.what());
    if (text == error.what()) throw;
    throw Error(text);
  }
}

/// Adds those options to a command. `otherwise` says what is used where none of them is given.
void AddCostsOptions(CLI::App* app, CostsOption* option, const std::string& otherwise);

/// Adds --overlap alone.
void AddOverlapOption(CLI::App* app, CostsOption* option);

/// F = B = W = 1, no communication.
CostModel UnitCosts();

/// The costs the options ask for: those of the file, else `base`, with the single figures put over
/// every stage, in units of their own or in that of what they override; where there are no costs,
/// figures in a unit of time bring it. Costs that are not given stay, but for a bw that was b + w
/// or an fb that was f + bw: these are sums of the new figures, and so is one that would now be
/// shorter than a part of it or longer than all, which is assumed aloud. Chunk costs that follow
/// from components are derived first: where there are none yet, and again where --overlap asks for
/// it. Throws UsageError for a time or an overlap that is none, Error if --overlap is given for
/// costs without components. Assumptions about noisy or missing figures are put into `assumed` for
/// the caller to say or, where that is null, said (Warn).
CostModel ResolveCosts(const CostsOption& option, const CostModel& base,
                       std::vector<std::string>* assumed = nullptr);

/// Prints the assumptions on stderr, in one line for any number of stages; nothing if there are
/// none.
void Warn(const std::vector<std::string>& assumed);

/// Throws Error if a cost of chunks is given, which a plan of components, or costs of `layers`,
/// have no use for.
void RefuseChunkCosts(const CostsOption& option, bool layers = false);

/// The costs for a plan that is read from a file: the options over its own costs, else over unit
/// costs. Throws Error for options that cannot change a plan of components.
CostModel CostsForPlan(const CostsOption& option, const Plan& plan,
                       std::vector<std::string>* assumed = nullptr);

/// Adds --expert-parallel; 0 if it is not given.
void AddExpertParallel(CLI::App* app, int* members);

/// --device-memory and --zero.
struct DeviceMemoryOption {
  std::optional<std::string> bytes;
  std::optional<int64_t> zero;
};
void AddDeviceMemoryOptions(CLI::App* app, DeviceMemoryOption* option);
/// Puts the options into the spec and its costs. Throws UsageError for a malformed size, Error if
/// the costs lack the bytes of activations.
void ApplyDeviceMemory(const DeviceMemoryOption& option, Spec* spec);

/// --partition, for these costs; nothing where it is not given. Throws UsageError.
void AddPartitionOption(CLI::App* app, std::optional<std::string>* text, const std::string& help);
std::optional<PartitionChoice> ReadPartition(const std::optional<std::string>& text,
                                             const CostModel& costs);

/// --for; Target::kAny where it is not given. Throws UsageError.
void AddForOption(CLI::App* app, std::optional<std::string>* text);
Target ReadFor(const std::optional<std::string>& text);

/// How far chunks shall overlap: as --overlap says, else as the chunk costs were derived, else all.
Overlap OverlapOf(const CostsOption& option, const CostModel& costs);
/// Sets how components overlap in a framework: Megatron-LM hides all-to-alls in F&B pairs alone.
void AssumeOverlap(Target target, CostsOption* option);

/// Values of the options --placement --budget --until --seed --noise: how `auto` searches.
struct SearchOption {
  std::optional<std::string> placement = {}, budget = {}, until = {};
  std::optional<int64_t> seed = {};
  std::optional<double> noise = {};
};

/// Adds those options to a command.
void AddSearchOptions(CLI::App* app, SearchOption* option);

/// The search they ask for. Throws UsageError for a placement that there is none of, a budget that
/// is no time or too long, and a share or a noise out of range.
SearchOptions ResolveSearch(const SearchOption& option);

/// Throws UsageError that names the first option given, since `schedule` is not searched.
void RefuseSearchOptions(const SearchOption& option, const std::string& schedule);

}  // namespace contraflow
