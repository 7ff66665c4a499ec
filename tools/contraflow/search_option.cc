#include "tools/contraflow/search_option.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <utility>

#include "compiler/plan/error.h"
#include "tools/contraflow/exit.h"
#include "tools/contraflow/options.h"
#include "tools/contraflow/progress.h"
#include "tools/contraflow/report_text.h"
#include "tools/contraflow/table.h"

namespace contraflow {
namespace {

/// The search stops counting there, too: a week.
constexpr int64_t kMostSeconds = 7 * 24 * 3600;
/// Durations that vary by more than half are no longer near what was planned for.
constexpr double kMostNoise = 0.5;

/// "1.20 % above its bound"
std::string AboveBound(Time makespan, Time bound) {
  if (bound == 0) return "at its bound";
  return FormatPercent(static_cast<double>(makespan - bound) / static_cast<double>(bound)) +
         " above its bound";
}

[[noreturn]] void FailBudget(const std::string& text) {
  throw UsageError("--budget: must be a time up to 7 days as 500ms, 1s or 2m, is \"" +
                   text.substr(0, 40) + "\"");
}

}  // namespace

void AddSearchOptions(CLI::App* app, SearchOption* option) {
  app->add_option("--placement", option->placement,
                  "of auto: linear (one stage a rank), v (two, there and back),\n"
                  "interleaved (--chunks), bidirectional (two routes, parameters\n"
                  "twice) or any; costs are cut or merged for the same model\n"
                  "(default: any)")
      ->type_name("PLACEMENT");
  app->add_option("--budget", option->budget,
                  "of auto: how long to search each placement, about, and as long\n"
                  "again for --noise; what counts is evaluated instructions, so the\n"
                  "result is the same everywhere (default: 1s)")
      ->type_name("500ms|1s|2m");
  AddInteger(app, "--seed", &option->seed, "N", "of auto: another search (default: 0)");
  AddNumber(app, "--noise", &option->noise, "X",
            "of auto: durations vary by this share of themselves (standard\n"
            "deviation); of equally short orders take what suffers least\n"
            "(default: 0)");
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
  if (option.budget) search.budget = ParseBudget(*option.budget);
  if (option.seed) search.seed = static_cast<uint64_t>(*option.seed);
  if (option.noise) {
    if (!(*option.noise >= 0 && *option.noise <= kMostNoise)) {
      throw UsageError("--noise: must be in 0..0.5, as in 0.1 for durations that vary by 10 %");
    }
    search.noise = *option.noise;
  }
  return search;
}

SearchControl WatchSearch(const std::atomic<bool>& stop, Progress* progress, Unit unit) {
  SearchControl control = {.stop = &stop};
  if (progress == nullptr) return control;
  control.report = [=](const SearchState& state) {
    std::string text = "auto: " + std::string(state.phase);
    if (state.makespan > 0) {
      text += ", " + FormatWithUnit(state.makespan, unit) + ", " +
              AboveBound(state.makespan, state.bound);
    }
    progress->Say(text + ", " + FormatPercent(state.spent) + " of the budget (Ctrl-C: enough)");
  };
  return control;
}

std::string DescribeInterrupt(const Plan& plan) {
  if (!plan.provenance || !plan.provenance->interrupted) return "";
  return "interrupted: makespan " + FormatWithUnit(plan.provenance->makespan, plan.costs->unit) +
         " is the best so far, " + AboveBound(plan.provenance->makespan, plan.provenance->bound);
}

void RefuseSearchOptions(const SearchOption& option, const std::string& schedule) {
  const std::pair<const char*, bool> flags[] = {{"--placement", option.placement.has_value()},
                                                {"--budget", option.budget.has_value()},
                                                {"--seed", option.seed.has_value()},
                                                {"--noise", option.noise.has_value()}};
  for (const auto& [name, given] : flags) {
    if (!given) continue;
    throw UsageError(std::string(name) + ": is for the search of auto, and " + schedule +
                     " is not searched; drop one of them");
  }
}

int64_t ParseBudget(const std::string& text) {
  const char* const end = text.data() + text.size();
  double value = 0;
  const auto [at, error] = std::from_chars(text.data(), end, value, std::chars_format::fixed);
  if (error != std::errc() || !(value >= 0)) FailBudget(text);
  const std::string unit(at, end);
  const double seconds = unit == "ms"  ? value / 1000
                         : unit == "s" ? value
                         : unit == "m" ? value * 60
                                       : -1;
  if (!(seconds >= 0 && seconds <= static_cast<double>(kMostSeconds))) FailBudget(text);
  return static_cast<int64_t>(seconds * 1e9 + 0.5);
}

}  // namespace contraflow
