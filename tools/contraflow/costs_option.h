#pragma once

#include <optional>
#include <string>

#include "compiler/files/profiles.h"
#include "compiler/plan/plan.h"

namespace CLI {
class App;
}

namespace contraflow {

/// What the options --costs --f --b --w --bw --fb --comm --overlap say.
struct CostsOption {
  std::optional<std::string> file = {};  ///< a file or the name of a profile
  std::optional<double> f = {}, b = {}, w = {}, bw = {}, fb = {}, comm = {};
  std::optional<std::string> overlap = {};

  /// True if any of them says what something costs.
  bool given() const { return file || f || b || w || bw || fb || comm; }
};

/// Adds those options to a command. `otherwise` says what is used where none of them is given.
void AddCostsOptions(CLI::App* app, CostsOption* option, const std::string& otherwise);

/// Adds --overlap alone.
void AddOverlapOption(CLI::App* app, CostsOption* option);

/// F = B = W = 1, no communication.
CostModel UnitCosts();

/// The costs the options ask for: those of the file, else `base`, with the single figures put over
/// every stage, in the unit of what they override. A new f, b or w resets bw to b + w and fb to
/// f + bw, and a new bw resets fb, unless these are given as well. Chunk costs that follow from
/// components are derived first: where there are none yet, and again where --overlap asks for it.
/// Throws UsageError for a time or an overlap that is none, Error if --overlap is given for costs
/// without components.
CostModel ResolveCosts(const CostsOption& option, const CostModel& base);

/// Throws Error if a cost of chunks is given, which a plan of components has no use for.
void RefuseChunkCosts(const CostsOption& option);

/// The costs for a plan that is read from a file: the options over its own costs, else over unit
/// costs. Throws Error for options that cannot change a plan of components.
CostModel CostsForPlan(const CostsOption& option, const Plan& plan);

/// How far chunks shall overlap: as --overlap says, else as the chunk costs were derived, else all.
Overlap OverlapOf(const CostsOption& option, const CostModel& costs);

/// One line for people: "costs: f 1, b 1, w 1, bw 2, fb 3, comm 0 (unit)".
std::string DescribeCosts(const CostModel& costs);

}  // namespace contraflow
