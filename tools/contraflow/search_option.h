#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "compiler/plan/plan.h"
#include "compiler/plan/spec.h"
#include "schedules/search_control.h"

namespace CLI {
class App;
}

namespace contraflow {

class Progress;

/// What the options --placement --budget --seed --noise say: how `auto` searches.
struct SearchOption {
  std::optional<std::string> placement = {}, budget = {};
  std::optional<int64_t> seed = {};
  std::optional<double> noise = {};
};

/// Adds those options to a command.
void AddSearchOptions(CLI::App* app, SearchOption* option);

/// The search they ask for. Throws UsageError for a placement that there is none of, a budget that
/// is no time or too long, and a noise out of range.
SearchOptions ResolveSearch(const SearchOption& option);

/// Has a search end once `stop` is true and report to `progress`, if there is one; both must
/// outlive it.
SearchControl WatchSearch(const std::atomic<bool>& stop, Progress* progress, Unit unit);

/// "interrupted: makespan 66 us is the best so far, 1.20 % above its bound" of a plan whose search
/// was, else "".
std::string DescribeInterrupt(const Plan& plan);

/// Throws UsageError that names the first option given, since `schedule` is not searched.
void RefuseSearchOptions(const SearchOption& option, const std::string& schedule);

/// "500ms", "1s" or "2m" in nanoseconds. Throws UsageError.
int64_t ParseBudget(const std::string& text);

}  // namespace contraflow
